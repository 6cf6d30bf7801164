"""What the store answers: what it found, and how a commit or a verification ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rlguard.checkpoint.records import Claim, Completed, Manifest, Record
from rlguard.model import CheckpointId, Incarnation


@dataclass(frozen=True, slots=True)
class Scan:
    """All that the checkpoint root shows, as far as it can be read.

    `exists`: the root folder is there. `claimed`: every incarnation with a claim or record file, readable or not.
    `unreadable`: records that are there and cannot be read. `committed`: names in `steps/`, not verified. `trashed`:
    pruned checkpoints, each with the folder of `trash/` it lies in. `problems`: one sentence for each bad file.
    """

    exists: bool
    claimed: frozenset[Incarnation] = frozenset()
    claims: Mapping[Incarnation, Claim] = field(default_factory=dict)
    records: Mapping[Incarnation, Record] = field(default_factory=dict)
    unreadable: frozenset[Incarnation] = frozenset()
    committed: frozenset[CheckpointId] = frozenset()
    trashed: Mapping[CheckpointId, Incarnation] = field(default_factory=dict)
    completed: Completed | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Committed:
    """The checkpoint is in place, durable, and no newer claim was there afterwards."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class Void:
    """C2: in place, but `newer` was claimed: it counts only if the record of `newer` names it."""

    checkpoint: CheckpointId
    newer: Incarnation


@dataclass(frozen=True, slots=True)
class Whole:
    """Every file of the manifest is there as it should be."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Broken:
    """Visible, and not what was written. `reason` names the file."""

    reason: str


@dataclass(frozen=True, slots=True)
class Absent:
    """No such folder in `steps/`. C8: no reason to go lower."""


Verification = Whole | Broken | Absent
CommitResult = Committed | Void
