"""What the member is told and what it asks for: its contract with the sidecar's shell (rules: `facts`)."""

from __future__ import annotations

from dataclasses import dataclass

from rlguard.group.facts import Advance, ControllerLink, Ticked
from rlguard.messages import FileEntry, FlushOrder, MemberReport, Order, Ranks, StageResult
from rlguard.model import CheckpointId, Incarnation, Notice

# ---------------------------------------------------------------- facts


@dataclass(frozen=True, slots=True)
class LauncherState:
    """The launcher's `state` message. `incarnation` None with ranks that run or ran: the untouched command."""

    incarnation: Incarnation | None
    ranks: Ranks
    code: int | None
    signal: int | None
    tail: str
    hooked: bool | None
    terminating: bool
    stuck: tuple[int, ...]
    idle: bool


@dataclass(frozen=True, slots=True)
class RankSeen:
    """One rank's page. `step` None before the first; `heartbeat_age` in seconds when read.

    `order`, `stage_step`, `slot`, `result` are the last stage order that it answered (`result` None: none yet).
    """

    local_rank: int
    local_world_size: int
    incarnation: Incarnation
    step: int | None
    heartbeat_age: float
    order: int
    stage_step: int
    slot: int
    result: StageResult | None
    hook: bool
    reshardable: bool
    nan: bool


@dataclass(frozen=True, slots=True)
class SlotSeen:
    """One of the two slots over all ranks of the pod. `checkpoint`: what every rank staged there, None if not whole."""

    slot: int
    checkpoint: CheckpointId | None


@dataclass(frozen=True, slots=True)
class LauncherHeard:
    """Fact: the launcher's state; each one that arrives."""

    at: float
    state: LauncherState


@dataclass(frozen=True, slots=True)
class LauncherLost:
    """Fact: its socket has closed. What it said last stays the best knowledge until it connects again."""

    at: float


@dataclass(frozen=True, slots=True)
class PagesRead:
    """Fact: the rank pages and the slots, read about every 100 ms and at a change of the launcher's state."""

    at: float
    ranks: tuple[RankSeen, ...]
    slots: tuple[SlotSeen, ...]


@dataclass(frozen=True, slots=True)
class OrderHeard:
    """Fact: an order of the coordinator."""

    at: float
    order: Order


@dataclass(frozen=True, slots=True)
class FlushEnded:
    """Fact: answers `RunFlush`. `detail` says what failed, empty when all went well."""

    at: float
    nonce: str
    done: bool
    detail: str
    files: tuple[FileEntry, ...]


@dataclass(frozen=True, slots=True)
class CoordinatorLink:
    """Fact: is the leader pod within reach: a live link, or a TCP handshake completed within `SUSPECT` (A5).

    Told at changes. In the leader pod it is always open.
    """

    at: float
    open: bool


@dataclass(frozen=True, slots=True)
class NoticesHeard:
    """Fact: all notices that stand now, of the agent and of the pod itself; replaces those told before."""

    at: float
    notices: tuple[Notice, ...]


@dataclass(frozen=True, slots=True)
class RootSeen:
    """Fact: the root as far as failing open needs it (A9); told at start and every 10 s until ranks were started.

    No checkpoint root configured counts as readable and without lineage.
    """

    at: float
    readable: bool
    lineage: bool
    completed: bool


MemberFact = (
    Ticked
    | ControllerLink
    | LauncherHeard
    | LauncherLost
    | PagesRead
    | OrderHeard
    | FlushEnded
    | CoordinatorLink
    | NoticesHeard
    | RootSeen
)

# ---------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class StartRanks:
    """Action: tell the launcher to start. `slot`: where `resume` lies in this pod's memory; `directory`: on disk."""

    incarnation: Incarnation
    nnodes: int
    node_rank: int
    master_addr: str
    master_port: int
    resume: CheckpointId | None
    slot: int | None
    directory: str | None


@dataclass(frozen=True, slots=True)
class StopRanks:
    """Action: tell the launcher to stop the ranks of `incarnation`: SIGTERM, `grace` seconds, SIGKILL."""

    incarnation: Incarnation
    grace: float


@dataclass(frozen=True, slots=True)
class Idle:
    """Action: tell the launcher that there is nothing to run any more."""


@dataclass(frozen=True, slots=True)
class RunUntouched:
    """Action: tell the launcher to run the user's command as it stands."""


@dataclass(frozen=True, slots=True)
class WriteControl:
    """Action: write the control page: rank order `order`, stage at `step` into `slot`. Shown in `RankSeen.order`."""

    incarnation: Incarnation
    order: int
    step: int
    slot: int


@dataclass(frozen=True, slots=True)
class RunFlush:
    """Action: copy `slot` into the order's directory, torn-read checked (M2). Answered by `FlushEnded`."""

    order: FlushOrder
    slot: int


@dataclass(frozen=True, slots=True)
class CancelFlush:
    """Action: nobody wants this flush any more; kill it. Answered by `FlushEnded`, not done."""

    nonce: str


@dataclass(frozen=True, slots=True)
class PublishMember:
    """Action: the newest report of this pod, for the coordinator."""

    report: MemberReport


MemberAction = (
    Advance | StartRanks | StopRanks | Idle | RunUntouched | WriteControl | RunFlush | CancelFlush | PublishMember
)
