"""What the coordinator is told and what it asks for: its contract with the sidecar's shell (rules: `facts`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rlguard.checkpoint.records import Record
from rlguard.group.facts import Advance, ControllerLink, Ticked
from rlguard.messages import FileEntry, Grant, GroupReport, MemberReport, Order
from rlguard.model import CheckpointId, Incarnation, Incident

# ---------------------------------------------------------------- facts


@dataclass(frozen=True, slots=True)
class LineageScan:
    """The checkpoint root as listed at one moment.

    `claims`: all claims, with the leader UID in each (empty if unreadable). `visible`: all folders of `steps/` and
    `trash/` that have a checkpoint's name. `completed`: `completed.json` of this job is there. Without a checkpoint
    root the shell tells an empty scan.
    """

    claims: tuple[tuple[Incarnation, str], ...] = ()
    records: tuple[Record, ...] = ()
    unreadable: tuple[Incarnation, ...] = ()
    visible: tuple[CheckpointId, ...] = ()
    completed: bool = False


class Operation(StrEnum):
    """What may fail with `StoreFailed`: one for each action that touches the root, plus the port."""

    LOOK = "look"
    CLAIM = "claim"
    VERIFY = "verify"
    RECORD = "record"
    PORT = "port"
    BEGIN_FLUSH = "begin-flush"
    COMMIT = "commit"
    COMPLETE = "complete"
    INCIDENT = "incident"


@dataclass(frozen=True, slots=True)
class WallClock:
    """Fact: the Unix time `wall` belongs to `at`. Told first of all and once a minute; only incidents show it."""

    at: float
    wall: float


@dataclass(frozen=True, slots=True)
class MemberHeard:
    """Fact: a member's report, the leader pod's own included."""

    at: float
    report: MemberReport


@dataclass(frozen=True, slots=True)
class GrantHeard:
    """Fact: the controller's word."""

    at: float
    grant: Grant


@dataclass(frozen=True, slots=True)
class DiskSeen:
    """Fact: answers `LookAtDisk`."""

    at: float
    scan: LineageScan


@dataclass(frozen=True, slots=True)
class Claimed:
    """Fact: answers `ClaimAttempt`. `scan` was listed after the claim was written (C2); `nonce` is the claim's."""

    at: float
    incarnation: Incarnation
    nonce: str
    scan: LineageScan


@dataclass(frozen=True, slots=True)
class ClaimRefused:
    """Fact: answers `ClaimAttempt`: another claim of this incarnation, or a newer one, is there already (`scan`)."""

    at: float
    incarnation: Incarnation
    scan: LineageScan


@dataclass(frozen=True, slots=True)
class Verified:
    """Fact: answers `VerifyCheckpoint`. `directory`: where it lies now (moved back from trash if need be).

    `world_size`: the number of members it was saved by, None if the manifest cannot be read. `detail`: what is broken.
    """

    at: float
    checkpoint: CheckpointId
    whole: bool
    directory: str | None
    world_size: int | None
    detail: str


@dataclass(frozen=True, slots=True)
class Recorded:
    """Fact: answers `WriteRecord`."""

    at: float
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class PortReserved:
    """Fact: answers `ReservePort`: a free TCP port of this pod."""

    at: float
    incarnation: Incarnation
    port: int


@dataclass(frozen=True, slots=True)
class FlushBegun:
    """Fact: answers `BeginFlush`: the tmp folder `directory`, whose name carries `nonce`, has been made."""

    at: float
    nonce: str
    checkpoint: CheckpointId
    directory: str


@dataclass(frozen=True, slots=True)
class Committed:
    """Fact: answers `Commit`: renamed into place at `directory`, and no newer claim was there afterwards."""

    at: float
    checkpoint: CheckpointId
    directory: str


@dataclass(frozen=True, slots=True)
class Voided:
    """Fact: answers `Commit`: renamed, but `newer` had been claimed: it counts only if that one's record names it."""

    at: float
    checkpoint: CheckpointId
    newer: Incarnation
    newer_leader: str


@dataclass(frozen=True, slots=True)
class MarkedComplete:
    """Fact: answers `MarkComplete`."""

    at: float


@dataclass(frozen=True, slots=True)
class IncidentWritten:
    """Fact: answers `WriteIncident`, with what was written: an incident may have grown meanwhile."""

    at: float
    incident: Incident


@dataclass(frozen=True, slots=True)
class StoreFailed:
    """Fact: answers any action that touches the root (or the port) when it failed; `detail` is for people."""

    at: float
    operation: Operation
    detail: str


CoordinatorFact = (
    Ticked
    | ControllerLink
    | WallClock
    | MemberHeard
    | GrantHeard
    | DiskSeen
    | Claimed
    | ClaimRefused
    | Verified
    | Recorded
    | PortReserved
    | FlushBegun
    | Committed
    | Voided
    | MarkedComplete
    | IncidentWritten
    | StoreFailed
)

# ---------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class SendOrder:
    """Action: the newest order for this member; the shell's outbox replaces and repeats it."""

    uid: str
    order: Order


@dataclass(frozen=True, slots=True)
class LookAtDisk:
    """Action: list the root. Answered by `DiskSeen`."""


@dataclass(frozen=True, slots=True)
class ClaimAttempt:
    """Action: write the claim, then list the root (C2). Answered by `Claimed` or `ClaimRefused`.

    The shell keeps one nonce for each incarnation, so that a try whose answer got lost is its own claim (C1).
    """

    incarnation: Incarnation
    leader_uid: str


@dataclass(frozen=True, slots=True)
class VerifyCheckpoint:
    """Action: find it by name, move it back from trash, verify its manifest and files. Answered by `Verified`."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """Action: write the lineage record. Answered by `Recorded`."""

    record: Record


@dataclass(frozen=True, slots=True)
class ReservePort:
    """Action: find a free port for the master. Answered by `PortReserved`."""

    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class BeginFlush:
    """Action: make a fresh tmp folder with a new nonce. Answered by `FlushBegun`."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class Commit:
    """Action: commit the tmp folder `directory` (C6, C2). Answered by `Committed` or `Voided`.

    `incarnation` is the committer's own: a claim newer than it makes the commit void. It may be newer than that of
    the checkpoint, when a flush outlives the attempt that it began in. `files` are those that all members wrote;
    `world_size` is the number of members.
    """

    checkpoint: CheckpointId
    incarnation: Incarnation
    nonce: str
    directory: str
    job_uid: str
    world_size: int
    files: tuple[FileEntry, ...]


@dataclass(frozen=True, slots=True)
class MarkComplete:
    """Action: write `completed.json`. Answered by `MarkedComplete`."""

    checkpoint: CheckpointId | None
    job_uid: str


@dataclass(frozen=True, slots=True)
class WriteIncident:
    """Action: write `incidents/<id>/`, replacing it. `tails`: pod name and last output. By `IncidentWritten`."""

    incident: Incident
    tails: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Publish:
    """Action: the newest group report, for the controller, inside this pod's report."""

    report: GroupReport


CoordinatorAction = (
    Advance
    | SendOrder
    | LookAtDisk
    | ClaimAttempt
    | VerifyCheckpoint
    | WriteRecord
    | ReservePort
    | BeginFlush
    | Commit
    | MarkComplete
    | WriteIncident
    | Publish
)
