"""Claims, records, manifests and the completion mark <-> JSON.

Reading raises BadWireError with a message that names the field; the caller adds the path.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from rlguard.checkpoint.names import is_data_file
from rlguard.errors import BadWireError
from rlguard.messages import FileEntry
from rlguard.model import CheckpointId, Incarnation, Member, World

VERSION: Final = 1
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Claim:
    """Who starts an incarnation. C1: the nonce tells my own claim from another's."""

    incarnation: Incarnation
    leader_uid: str
    nonce: str

    def to_json(self) -> dict[str, Any]:
        """The file's content; the incarnation is the file's name."""
        return {"version": VERSION, "leader_uid": self.leader_uid, "nonce": self.nonce}

    @classmethod
    def from_json(cls, incarnation: Incarnation, raw: object) -> Self:
        """Read the content of a claim named `incarnation`. Raises BadWireError."""
        fields = _object(raw, "claim")
        return cls(incarnation, _text(fields, "leader_uid"), _text(fields, "nonce"))


@dataclass(frozen=True, slots=True)
class Record:
    """One incarnation of the lineage: who trains, and from which checkpoint (None: from step 0)."""

    incarnation: Incarnation
    job_uid: str
    leader_uid: str
    nonce: str
    world: World
    parent: CheckpointId | None

    def to_json(self) -> dict[str, Any]:
        """The file's content."""
        return {
            "version": VERSION,
            "incarnation": str(self.incarnation),
            "job_uid": self.job_uid,
            "leader_uid": self.leader_uid,
            "nonce": self.nonce,
            "world": [asdict(member) for member in self.world.members],
            "parent": str(self.parent) if self.parent else None,
        }

    @classmethod
    def from_json(cls, raw: object) -> Self:
        """Read a record. Raises BadWireError, also for a parent that is not older than the record."""
        fields = _object(raw, "record")
        incarnation = _incarnation(fields, "incarnation")
        parent = _checkpoint_or_none(fields, "parent")
        if parent is not None and parent.incarnation >= incarnation:
            raise BadWireError(f"parent {parent} is not older than the record {incarnation} that names it")
        members = tuple(_member(item) for item in _list(fields, "world"))
        uid, leader, nonce = (_text(fields, key) for key in ("job_uid", "leader_uid", "nonce"))
        return cls(incarnation, uid, leader, nonce, World(members), parent)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What makes a folder a checkpoint: the list of its files, and where it belongs."""

    checkpoint: CheckpointId
    world_size: int
    job_uid: str
    leader_uid: str
    files: tuple[FileEntry, ...]
    written_by: str

    def to_json(self) -> dict[str, Any]:
        """The content of `rlguard.json`."""
        return {
            "version": VERSION,
            "checkpoint": str(self.checkpoint),
            "world_size": self.world_size,
            "job_uid": self.job_uid,
            "leader_uid": self.leader_uid,
            "files": [asdict(entry) for entry in self.files],
            "written_by": self.written_by,
        }

    @classmethod
    def from_json(cls, raw: object) -> Self:
        """Read `rlguard.json`. Raises BadWireError, also when no file or one file twice is listed."""
        fields = _object(raw, "manifest")
        files = tuple(file_entry(item) for item in _list(fields, "files"))
        if not files or len({entry.name for entry in files}) != len(files):
            raise BadWireError("'files' must list at least one file, and each file once")
        checkpoint, size = _checkpoint(fields, "checkpoint"), _count(fields, "world_size")
        uid, leader, writer = (_text(fields, key) for key in ("job_uid", "leader_uid", "written_by"))
        return cls(checkpoint, size, uid, leader, files, writer)


@dataclass(frozen=True, slots=True)
class Completed:
    """The job `job_uid` (the LWS's UID) is done; `checkpoint` is its last one, None if it has none."""

    checkpoint: CheckpointId | None
    job_uid: str

    def to_json(self) -> dict[str, Any]:
        """The content of `completed.json`."""
        checkpoint = str(self.checkpoint) if self.checkpoint else None
        return {"version": VERSION, "checkpoint": checkpoint, "job_uid": self.job_uid}

    @classmethod
    def from_json(cls, raw: object) -> Self:
        """Read `completed.json`. Raises BadWireError."""
        fields = _object(raw, "completion mark")
        return cls(_checkpoint_or_none(fields, "checkpoint"), _text(fields, "job_uid"))


def file_entry(raw: object) -> FileEntry:
    """Read one item of a manifest's `files`. Raises BadWireError, also for a name that is not one plain file's."""
    fields = _object(raw, "file", version=False)
    name, size, sha256 = _text(fields, "name"), _count(fields, "size"), _text(fields, "sha256")
    if not is_data_file(name):
        raise BadWireError(f"'name' must be a plain file name, not {name!r}")
    if not _SHA256.fullmatch(sha256):
        raise BadWireError(f"'sha256' of {name} must be 64 hex digits, not {sha256!r}")
    return FileEntry(name, size, sha256)


def _object(raw: object, what: str, *, version: bool = True) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise BadWireError(f"a {what} must be a JSON object, not {type(raw).__name__}")
    if version and raw.get("version") != VERSION:
        raise BadWireError(f"a {what} of version {raw.get('version')!r} cannot be read, only version {VERSION}")
    return raw


def _text(fields: dict[str, Any], key: str) -> str:
    value = fields.get(key)
    if not isinstance(value, str) or not value:
        raise BadWireError(f"'{key}' must be a text, not {value!r}")
    return value


def _count(fields: dict[str, Any], key: str) -> int:
    value = fields.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadWireError(f"'{key}' must be a number >= 0, not {value!r}")
    return value


def _list(fields: dict[str, Any], key: str) -> list[Any]:
    value = fields.get(key)
    if not isinstance(value, list):
        raise BadWireError(f"'{key}' must be a list, not {type(value).__name__}")
    return value


def _incarnation(fields: dict[str, Any], key: str) -> Incarnation:
    try:
        return Incarnation.parse(_text(fields, key))
    except ValueError as error:
        raise BadWireError(f"'{key}': {error}") from error


def _checkpoint(fields: dict[str, Any], key: str) -> CheckpointId:
    try:
        return CheckpointId.parse(_text(fields, key))
    except ValueError as error:
        raise BadWireError(f"'{key}': {error}") from error


def _checkpoint_or_none(fields: dict[str, Any], key: str) -> CheckpointId | None:
    # The key must be there: a record that lost its parent would silently mean "from step 0".
    if key in fields and fields[key] is None:
        return None
    return _checkpoint(fields, key)


def _member(raw: object) -> Member:
    fields = _object(raw, "member", version=False)
    uid, pod, node, address = (_text(fields, key) for key in ("uid", "pod", "node", "address"))
    return Member(_count(fields, "index"), uid, pod, node, address)
