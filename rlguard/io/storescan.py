"""Reading the checkpoint root: tolerant of foreign and damaged files, exact about what it could not read."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from rlguard.checkpoint import names
from rlguard.checkpoint.outcomes import Scan
from rlguard.checkpoint.records import Claim, Completed, Record
from rlguard.errors import BadWireError
from rlguard.io.storecopy import read_small

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rlguard.io.files import Files
    from rlguard.model import CheckpointId, Incarnation

_Read = TypeVar("_Read")


def listing(files: Files, folder: Path) -> list[str]:
    """Names in a folder, sorted; a folder that is not there holds none."""
    try:
        return sorted(files.listdir(folder))
    except FileNotFoundError:
        return []


def read_json(files: Files, path: Path) -> object:
    """The JSON in a small file. Raises BadWireError, OSError."""
    try:
        return json.loads(read_small(files, path))
    except (ValueError, RecursionError) as error:
        raise BadWireError(f"no JSON ({type(error).__name__})") from error


def claimed_in(files: Files, root: Path) -> frozenset[Incarnation]:
    """Every incarnation whose claim or record shows now, readable or not."""
    return _incarnations(listing(files, root / names.LINEAGE))


def read_claim(files: Files, root: Path, incarnation: Incarnation) -> Claim | None:
    """A claim by its name; None if it is missing or cannot be read."""
    path = root / names.LINEAGE / names.claim_name(incarnation)
    try:
        return Claim.from_json(incarnation, read_json(files, path))
    except (BadWireError, FileNotFoundError):
        return None


def scan_root(files: Files, root: Path) -> Scan:
    """Everything at once. Raises OSError when the file system fails, never for a bad file."""
    if files.entry(root) is None:
        return Scan(exists=False)
    problems: list[str] = []
    claims: dict[Incarnation, Claim] = {}
    records: dict[Incarnation, Record] = {}
    listed = listing(files, root / names.LINEAGE)  # once: a record that comes while we read is not there yet
    claimed = _incarnations(listed)
    for incarnation in sorted(claimed):
        path = root / names.LINEAGE / names.claim_name(incarnation)
        claim = _tried(files, path, partial(Claim.from_json, incarnation), problems)
        path = root / names.LINEAGE / names.record_name(incarnation)
        record = _tried(files, path, partial(_record_of, incarnation), problems)
        claims |= {} if claim is None else {incarnation: claim}
        records |= {} if record is None else {incarnation: record}
    committed = (names.parse_checkpoint(name) for name in listing(files, root / names.STEPS))
    return Scan(
        exists=True,
        claimed=claimed,
        claims=claims,
        records=records,
        unreadable=frozenset(one for one in map(names.parse_record, listed) if one is not None and one not in records),
        committed=frozenset(checkpoint for checkpoint in committed if checkpoint is not None),
        trashed=_trashed(files, root),
        completed=_tried(files, root / names.COMPLETED, Completed.from_json, problems),
        problems=tuple(problems),
    )


def _incarnations(listed: list[str]) -> frozenset[Incarnation]:
    both = (names.parse_claim(name) or names.parse_record(name) for name in listed)
    return frozenset(incarnation for incarnation in both if incarnation is not None)


def _tried(files: Files, path: Path, read: Callable[[object], _Read], problems: list[str]) -> _Read | None:
    try:
        return read(read_json(files, path))
    except FileNotFoundError:
        return None
    except BadWireError as error:
        problems.append(f"{path}: {error}")
        return None


def _record_of(incarnation: Incarnation, raw: object) -> Record:
    record = Record.from_json(raw)
    if record.incarnation != incarnation:
        raise BadWireError(f"the record inside is of {record.incarnation}")
    return record


def _trashed(files: Files, root: Path) -> dict[CheckpointId, Incarnation]:
    found = {}
    for name in listing(files, root / names.TRASH):
        incarnation = names.parse_incarnation(name)
        inside = listing(files, root / names.TRASH / name) if incarnation is not None else []
        for checkpoint in (names.parse_checkpoint(entry) for entry in inside):
            if checkpoint is not None and incarnation is not None:
                found[checkpoint] = incarnation
    return found
