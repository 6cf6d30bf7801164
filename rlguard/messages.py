"""What the processes say to each other. Every message is a whole snapshot of what its sender knows or wants.

So a lost message is repaired by the next one, and a receiver that was restarted needs no history. `wire` turns them
into JSON; the links that carry them are in `io.link`. Durations are seconds; no message carries a clock time that a
rule would compare.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rlguard.model import CheckpointId, GroupKey, Incarnation, Incident, Member, Notice, Phase, Verdict, World


class Ranks(StrEnum):
    """The state of one pod's training processes, as its launcher tells it."""

    UNKNOWN = "unknown"  # no launcher heard yet
    NONE = "none"  # nothing was started in this launcher's life
    RUNNING = "running"
    STOPPING = "stopping"
    EXITED = "exited"  # ended by themselves, nothing left behind
    GONE = "gone"  # stopped by order, nothing left behind
    STUCK = "stuck"  # processes that survive SIGKILL

    @property
    def absent(self) -> bool:
        """True when no process of the incarnation can act any more."""
        return self in (Ranks.NONE, Ranks.EXITED, Ranks.GONE)


class Want(StrEnum):
    """What the coordinator wants of a member's ranks."""

    STOP = "stop"
    RUN = "run"
    IDLE = "idle"
    UNTOUCHED = "untouched"


class StageResult(StrEnum):
    """How a member answers a stage order."""

    PENDING = "pending"
    STAGED = "staged"
    PAST = "past"  # a rank is beyond the step already: choose a later one
    SKIPPED = "skipped"  # no slot may be overwritten now
    FAILED = "failed"


class FlushResult(StrEnum):
    """How a member answers a flush order."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of a checkpoint: its size in bytes and the hex SHA-256 of its content."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Slot:
    """A memory slot that holds a whole checkpoint, staged by every rank of the pod."""

    slot: int
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class StageState:
    """The answer to the stage order numbered `order`. `furthest` is the furthest rank's step."""

    order: int
    step: int
    result: StageResult
    furthest: int


@dataclass(frozen=True, slots=True)
class FlushState:
    """The answer to the flush order with this nonce. `files` is what this member wrote."""

    nonce: str
    checkpoint: CheckpointId
    result: FlushResult
    detail: str
    files: tuple[FileEntry, ...]


@dataclass(frozen=True, slots=True)
class MemberReport:
    """Sidecar to coordinator: everything about one pod. `step` is that of its slowest rank, None before the first.

    `heartbeat_age` is how long ago the slowest rank was last heard, None without the training hook.
    """

    member: Member
    incarnation: Incarnation | None
    ranks: Ranks
    code: int | None
    signal: int | None
    tail: str
    hooked: bool | None
    reshardable: bool
    step: int | None
    heartbeat_age: float | None
    slots: tuple[Slot, ...]
    stage: StageState | None
    flush: FlushState | None
    notices: tuple[Notice, ...]
    terminating: bool
    untouched: bool


@dataclass(frozen=True, slots=True)
class StageOrder:
    """Stage when a rank reaches `step`. `confirmed`: the newest checkpoint all members hold; nobody overwrites it."""

    order: int
    step: int
    confirmed: CheckpointId | None


@dataclass(frozen=True, slots=True)
class FlushOrder:
    """Copy the slot holding `checkpoint` into `directory` (a tmp folder of the root).

    `shared`: also the files that one member writes for all.
    """

    nonce: str
    checkpoint: CheckpointId
    directory: str
    shared: bool


@dataclass(frozen=True, slots=True)
class Order:
    """Coordinator to member: the state to converge to. Of an older incarnation than one seen before: refused.

    `resume_directory` is where `resume` lies on the shared file system, None if only in memory.
    """

    incarnation: Incarnation
    want: Want
    world: World | None
    master_port: int | None
    resume: CheckpointId | None
    resume_directory: str | None
    stage: StageOrder | None
    flush: FlushOrder | None
    grace: float


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A member that the coordinator asks the controller to take out of the world, and why."""

    uid: str
    code: str
    detail: str
    leaving: bool  # its node goes or must be left; False: it is only silent


@dataclass(frozen=True, slots=True)
class GroupReport:
    """Coordinator to controller, inside its pod's report.

    `world` is the one of `incarnation`, or the one being started. `fenced`: the ranks load only what their order names
    (a training hook was heard), so an old incarnation's files cannot come back (A10). `saved` says that whatever could
    be saved before the world changes or the group is recreated has been. `recreate` asks for rung 4 with the reason.
    """

    incarnation: Incarnation
    phase: Phase
    why: str
    world: tuple[str, ...]
    world_number: int
    step: int | None
    newest: CheckpointId | None
    reshardable: bool
    fenced: bool
    saved: bool
    exclude: tuple[Exclusion, ...]
    recreate: str | None
    incidents: tuple[Incident, ...]
    heard: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PodReport:
    """Sidecar to controller. `port` is where its sidecar listens for peers on the pod's address.

    `root_state`: "ok", "none" (no checkpoint root configured) or what is wrong with it, in words.
    `disk_generation` is the newest generation under the checkpoint root, None when it cannot be read. `reached`: the
    step of the pod's slowest rank and its incarnation, so that the last step of a lost leader is known to whoever
    leads the controllers by then. `completed_by`: the UID of the LWS that the root's mark of completion names, maybe an
    earlier one of the same name (C10); empty without a mark.
    """

    key: GroupKey
    member: Member
    port: int
    root_state: str
    disk_generation: int | None
    completed: bool
    hears_coordinator: bool
    notices: tuple[Notice, ...]
    terminating: bool
    untouched: bool
    group: GroupReport | None
    reached: CheckpointId | None = None
    completed_by: str = ""


@dataclass(frozen=True, slots=True)
class Timing:
    """The part of a Guard's policy that the coordinator needs; units are seconds. `keep`: committed checkpoints."""

    stage_interval: float
    flush_interval: float
    stall_limit: float
    same_step_limit: int
    attempts: int
    attempts_window: float
    keep: int = 3


@dataclass(frozen=True, slots=True)
class Grant:
    """Controller to the sidecars of a group. Written to Guard status before it is told.

    `world` is granted as number `world_number`; None: wait. `expected` is the newest committed checkpoint the
    controller knows (C8). `save_within`: save everything within so many seconds, the group will be recreated.
    """

    key: GroupKey
    generation: int
    job_uid: str
    leader: Member
    leader_port: int
    world: World | None
    world_number: int
    expected: CheckpointId | None
    save_within: float | None
    want: Want  # RUN, IDLE (completed or held) or UNTOUCHED
    why: str
    timing: Timing


@dataclass(frozen=True, slots=True)
class AgentReport:
    """Agent to controller, and to each sidecar on its node: the verdict on the node and what it is based on."""

    node: str
    boot_id: str
    verdict: Verdict
    notices: tuple[Notice, ...]


@dataclass(frozen=True, slots=True)
class Figures:
    """How far one member is, for the metrics that its node's agent shows. It has the meaning of MemberReport.

    `staged`: the newest checkpoint in memory.
    """

    key: GroupKey
    index: int
    incarnation: Incarnation | None
    ranks: Ranks
    step: int | None
    heartbeat_age: float | None
    staged: CheckpointId | None


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Sidecar to agent: the notices it has taken over, and its figures once it has any."""

    uid: str
    notices: tuple[str, ...]
    figures: Figures | None = None


Message = MemberReport | Order | PodReport | Grant | AgentReport | Acknowledged
