"""The shared file systems that pods on this node have mounted, and what is wrong with them. Pure.

`data/storage.json`, versioned: which types of file systems count, and how bad each state is, with its source and what
ends it. A mount that hangs pauses checkpoints; it does not condemn the node.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

from rlguard.errors import BadConfigError
from rlguard.health.faults import Fault
from rlguard.model import Repair, Scope, Severity

MOST_MOUNTS: Final = 256
"""File systems known of; a node has a handful."""
MOST_POINTS: Final = 8
"""Places remembered of each; any one of them will do."""
_NAME_LENGTH: Final = 96
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")
_FIELDS_BEFORE: Final = 6  # id, parent, major:minor, root, mount point, options
_FIELDS_AFTER: Final = 3  # type, source, options of the super block


@dataclass(frozen=True, slots=True)
class Mount:
    """A shared file system: `device` is its major:minor, `source` what is mounted, `points` some of the places where.

    `pods` are the UIDs of those that have it; `writable` is what its super block says.
    """

    device: str
    kind: str
    source: str
    points: tuple[str, ...]
    pods: tuple[str, ...]
    writable: bool


@dataclass(frozen=True, slots=True)
class Space:
    """What statfs said: blocks and inodes, all and free for others than root. `inodes` 0: they are not counted."""

    blocks: int
    free: int
    inodes: int
    inodes_free: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Statfs failed with that error, by name."""

    error: str


@dataclass(frozen=True, slots=True)
class Hung:
    """Statfs did not come back."""


@dataclass(frozen=True, slots=True)
class NotProbed:
    """Nobody asked: the probe itself failed, which says nothing about the file system."""

    reason: str


Probed = Space | Refused | Hung | NotProbed


@dataclass(frozen=True, slots=True)
class Rating:
    """How bad one state is, and the words for people."""

    severity: Severity
    scope: Scope
    repair: Repair
    meaning: str
    clears: str
    source: str


@dataclass(frozen=True, slots=True)
class StorageTable:
    """The whole data file."""

    version: str
    types: frozenset[str]
    prefixes: tuple[str, ...]
    gone: frozenset[str]
    full_below: float
    rows: Mapping[str, Rating]


@dataclass(frozen=True, slots=True)
class Judged:
    """What is wrong with the file systems, why some could not be judged, and which (by device) are or were writable."""

    faults: tuple[Fault, ...]
    unseen: tuple[str, ...]
    writable: frozenset[str]


def builtin() -> StorageTable:
    """The table that comes with this version."""
    return parse_table(resources.files("rlguard.health").joinpath("data/storage.json").read_text("utf-8"))


def parse_table(text: str) -> StorageTable:
    """Read a table. Raises BadConfigError."""
    try:
        raw = json.loads(text)
        return StorageTable(
            str(raw["version"]),
            frozenset(map(str, raw["types"])),
            tuple(map(str, raw["type_prefixes"])),
            frozenset(map(str, raw["gone"])),
            float(raw["full_below"]),
            {str(row["code"]): _rating(row) for row in raw["rows"]},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadConfigError(f"the storage table cannot be read: {error!r}") from error


def _rating(row: Mapping[str, Any]) -> Rating:
    rated = Severity(row["severity"]), Scope(row["scope"]), Repair(row["repair"])
    return Rating(*rated, str(row["meaning"]), str(row["clears"]), str(row["source"]))


def read_mounts(text: str, folder: str, pods: Collection[str], table: StorageTable) -> tuple[Mount, ...]:
    """The shared file systems in a mountinfo text that those pods (UIDs) have under kubelet's `folder`. Never raises.

    One per device, however often it is mounted. Lines that are none are passed over.
    """
    of_pods = (_of_pod(mount, folder.rstrip("/") + "/") for mount in _shared(text, table))
    return _by_device(mount for mount in of_pods if mount is not None and set(mount.pods) & set(pods))


def read_all_mounts(text: str, table: StorageTable) -> tuple[Mount, ...]:
    """Every shared file system in a mountinfo text, whoever has mounted it; of no pods. Never raises."""
    return _by_device(_shared(text, table))


def _by_device(mounts: Iterable[Mount]) -> tuple[Mount, ...]:
    found: dict[str, Mount] = {}
    for mount in mounts:
        known = found.get(mount.device)
        if known is not None:
            found[mount.device] = _joined(known, mount)
        elif len(found) < MOST_MOUNTS:
            found[mount.device] = mount
    return tuple(found.values())


def _shared(text: str, table: StorageTable) -> Iterable[Mount]:
    for line in text.splitlines():
        before, _, after = (part.split() for part in line.partition(" - "))
        if len(before) < _FIELDS_BEFORE or len(after) < _FIELDS_AFTER:
            continue
        kind = after[0]
        if kind in table.types or kind.startswith(table.prefixes):
            source, writable = _plain(after[1])[:_NAME_LENGTH], "ro" not in after[2].split(",")
            yield Mount(before[2], kind, source, (_plain(before[4]),), (), writable)


def _of_pod(mount: Mount, folder: str) -> Mount | None:
    (point,) = mount.points
    pod, slash, _ = point.removeprefix(folder).partition("/")
    return dataclasses.replace(mount, pods=(pod,)) if point.startswith(folder) and pod and slash else None


def _plain(text: str) -> str:
    """A name as it is: mountinfo writes blanks and the like in octal."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 8)), text)


def _joined(known: Mount, more: Mount) -> Mount:
    points = tuple(dict.fromkeys((*known.points, *more.points)))[:MOST_POINTS]
    pods = tuple(sorted({*known.pods, *more.pods}))
    return Mount(known.device, known.kind, known.source, points, pods, known.writable)


def read_reply(line: bytes) -> Probed:
    """What the probe's line says: four numbers, or the name of an error. Never raises."""
    words = line.decode("ascii", "replace").split()
    numbers = [int(word) for word in words[1:] if word.isascii() and word.isdigit() and len(word) < 20]  # noqa: PLR2004 - 64 bits
    match words[:1], numbers:
        case ["ok"], [blocks, free, inodes, inodes_free]:
            return Space(blocks, free, inodes, inodes_free)
        case ["error"], []:
            return Refused("".join(words[1:])[:32])
        case _:
            return NotProbed(f"its probe wrote {line[:60]!r}")


def judge(seen: Iterable[tuple[Mount, Probed]], before: frozenset[str], table: StorageTable) -> Judged:
    """What is wrong with the mounts as they were probed; `before` are the devices that were ever seen writable."""
    pairs = list(seen)
    unseen = tuple(f"{mount.source}: {why}" for mount, probed in pairs if (why := _unseen(probed, table)))
    told = [fault for mount, probed in pairs for fault in _faults(mount, probed, before, table)]
    present = frozenset(mount.device for mount, _ in pairs)
    writable = frozenset(mount.device for mount, _ in pairs if mount.writable)
    return Judged(tuple({(one.code, one.device): one for one in told}.values()), unseen, writable | before & present)


def _unseen(probed: Probed, table: StorageTable) -> str:
    match probed:
        case NotProbed(reason):
            return reason
        case Refused(error) if error not in table.gone and error != "ENOENT":
            return f"statfs failed with {error}"
        case _:
            return ""  # a place that is there no more was unmounted a moment ago


def _faults(mount: Mount, probed: Probed, before: frozenset[str], table: StorageTable) -> Iterable[Fault]:
    match probed:
        case Hung():
            yield _fault(mount, "storage-hung", "", table)
        case Refused(error) if error in table.gone:
            yield _fault(mount, "storage-gone", f" ({error})", table)
        case Space():
            what = _short_of(probed, table.full_below)
            if what:
                yield _fault(mount, "storage-full", f" ({what})", table)
        case _:
            return
    if not mount.writable and mount.device in before:
        yield _fault(mount, "storage-read-only", "", table)


def _short_of(space: Space, share: float) -> str:
    """What there is too little of, empty if there is enough or if it is not counted."""
    if space.free < share * space.blocks:
        return f"{space.free} of {space.blocks} blocks are free"
    if space.inodes_free < share * space.inodes:
        return f"{space.inodes_free} of {space.inodes} inodes are free"
    return ""


def _fault(mount: Mount, code: str, more: str, table: StorageTable) -> Fault:
    row = table.rows[code]
    detail = f"{mount.source} ({mount.kind}) {row.meaning}{more}; {_whose(mount)}"
    return Fault(code, mount.source, row.severity, row.scope, row.repair, detail)


def _whose(mount: Mount) -> str:
    if not mount.pods:
        return f"mounted at {mount.points[0]}"
    more = f" and {len(mount.pods) - 4} more" if len(mount.pods) > 4 else ""  # noqa: PLR2004 - enough to find it
    return f"mounted by pods {', '.join(mount.pods[:4])}{more}"
