"""What the coordinator knows: one frozen value, changed in `fold` alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from rlguard.checkpoint.records import Record
from rlguard.group.coordinator_facts import LineageScan, Operation, Verified
from rlguard.messages import Grant, MemberReport, Ranks
from rlguard.model import CheckpointId, Incarnation, Incident, Member, World
from rlguard.policy import SUSPECT

RETRY_FIRST: Final = 0.5
RETRY_MOST: Final = 30.0
"""A failed store operation is tried again after a pause that doubles between these, in seconds."""


class Mode(StrEnum):
    """What the coordinator is doing. `Phase` is what a person sees of it."""

    GATHERING = "gathering"  # waits for the granted members, all without ranks
    CLAIMING = "claiming"
    CHOOSING = "choosing"
    RECORDING = "recording"
    RUNNING = "running"
    STOPPING = "stopping"
    HELD = "held"  # stopped and saved: the controller is to recreate the group
    COMPLETING = "completing"
    COMPLETED = "completed"
    GAVE_UP = "gave-up"
    IDLE = "idle"  # by the controller's word
    UNGUARDED = "unguarded"
    FENCED = "fenced"  # another coordinator acts for this group


class After(StrEnum):
    """What comes when the ranks are down."""

    RESTART = "restart"
    HOLD = "hold"
    GIVE_UP = "give-up"
    IDLE = "idle"


class SaveFor(StrEnum):
    """Why everything is saved before the ranks are stopped."""

    LEAVING = "leaving"  # a worker's node goes: the world will change
    RECREATE = "recreate"  # the group will be recreated
    WORLD = "world"  # another world has been granted


@dataclass(frozen=True, slots=True)
class Heard:
    """A member's newest report and when it came."""

    report: MemberReport
    at: float


@dataclass(frozen=True, slots=True)
class Attempt:
    """One incarnation, from its claim on.

    `adopted`: begun by an earlier process of this coordinator; `surveyed`: what its members hold is known. `ran`:
    UIDs seen running it. `furthest`, `slowest`: over all ranks; `rate` in steps per second,
    measured from the step and moment in `rate_from`.
    """

    incarnation: Incarnation
    world: World
    world_number: int
    nonce: str = ""
    parent: CheckpointId | None = None
    directory: str | None = None
    port: int | None = None
    recorded: bool = False
    adopted: bool = False
    started_at: float = 0.0
    ran: frozenset[str] = frozenset()
    furthest: int | None = None
    slowest: int | None = None
    progress_at: float = 0.0
    rate: float = 1.0
    rate_from: tuple[int, float] | None = None
    surveyed: bool = True

    @property
    def stepped(self) -> bool:
        """True when every rank has done a step beyond what it was resumed from."""
        return self.slowest is not None and (self.parent is None or self.slowest > self.parent.step)


@dataclass(frozen=True, slots=True)
class StagePlan:
    """The stage order in force; `times` widens the margin each time that a rank was past the step already."""

    order: int
    step: int
    asked_at: float
    times: int = 1


@dataclass(frozen=True, slots=True)
class FlushPlan:
    """The flush in flight; `nonce` is empty until the folder is there."""

    checkpoint: CheckpointId
    asked_at: float
    nonce: str = ""
    directory: str = ""


@dataclass(frozen=True, slots=True)
class Save:
    """A save before a planned stop. `target`: the checkpoint that it has staged, None until then."""

    reason: SaveFor
    detail: str
    started_at: float
    deadline: float
    target: CheckpointId | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed attempt, for the budget."""

    at: float
    fault: str
    step: int | None


@dataclass(frozen=True, slots=True)
class Backoff:
    """A store operation that failed `tries` times in a row."""

    until: float
    tries: int
    detail: str


@dataclass(frozen=True, slots=True)
class Leaving:
    """A member whose node goes or must be left."""

    code: str
    detail: str
    notice: str


@dataclass(frozen=True, slots=True)
class OpenIncident:
    """An incident and what its folder needs. `written`: as it stands now."""

    incident: Incident
    tails: tuple[tuple[str, str], ...]
    furthest: int | None
    written: bool = False
    closed: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """The coordinator's whole knowledge.

    `born`: when its process began; `awake_at`: the time of the newest fact, about; `size`: members of the group by its
    LWS; `before`: the last attempt that ran, while `attempt` is still being started; `held_out`: the controller did not
    recreate the group in time; `noticed`: when each (UID, notice id) was first heard; `missed`: since when those of
    them stand no more; `handled`: notices that the controller has judged by a grant; `uncertain`: commits that our own
    next claim made void, unless its record names them (C2).
    """

    own_uid: str
    size: int
    has_root: bool
    born: float
    mode: Mode = Mode.GATHERING
    since: float = 0.0
    why: str = ""
    awake_at: float = 0.0
    wall_offset: float = 0.0
    grant: Grant | None = None
    grant_at: float = 0.0
    controller_open: bool = False
    controller_ever: bool = False
    scan: LineageScan | None = None
    scanned_at: float = 0.0
    members: Mapping[str, Heard] = field(default_factory=dict)
    attempt: Attempt | None = None
    before: Attempt | None = None
    looked_since: float = 0.0
    blocked: str | None = None
    after: After = After.RESTART
    grace: float = 0.0
    need_number: int | None = None
    records: Mapping[Incarnation, Record] = field(default_factory=dict)
    newest: CheckpointId | None = None
    directories: Mapping[CheckpointId, str] = field(default_factory=dict)
    verified: Mapping[CheckpointId, Verified] = field(default_factory=dict)
    uncertain: tuple[CheckpointId, ...] = ()
    confirmed: CheckpointId | None = None
    stage: StagePlan | None = None
    stage_order: int = 0
    stage_due: float = 0.0
    flush: FlushPlan | None = None
    flush_due: float = 0.0
    save: Save | None = None
    leaving: Mapping[str, Leaving] = field(default_factory=dict)
    noticed: Mapping[tuple[str, str], float] = field(default_factory=dict)
    missed: Mapping[tuple[str, str], float] = field(default_factory=dict)
    handled: frozenset[tuple[str, str]] = frozenset()
    recreate: str | None = None
    held_out: bool = False
    failures: tuple[Failure, ...] = ()
    incidents: tuple[OpenIncident, ...] = ()
    backoff: Mapping[Operation, Backoff] = field(default_factory=dict)
    hook_seen: bool = False
    reshardable: bool = False

    def go(self, mode: Mode, now: float, why: str) -> View:
        """Change the mode."""
        return replace(self, mode=mode, since=now, why=why)

    def fresh(self, uid: str, now: float) -> bool:
        """True when this member has been heard within `SUSPECT`."""
        heard = self.members.get(uid)
        return heard is not None and now - heard.at <= SUSPECT

    def down(self, uid: str) -> bool:
        """A2: True when this member, having seen the order to stop, has said that no rank of it can act any more."""
        heard = self.members.get(uid)
        return heard is not None and heard.report.incarnation == floor(self) and heard.report.ranks.absent

    def wall(self, at: float) -> float:
        """The Unix time of `at`, for people."""
        return at + self.wall_offset

    def ready(self, operation: Operation, now: float) -> bool:
        """True when this store operation may be tried now."""
        pause = self.backoff.get(operation)
        return pause is None or now >= pause.until


def floor(view: View) -> Incarnation:
    """The newest incarnation of this generation that is known to have been begun: what a stop order carries."""
    generation = view.grant.generation if view.grant else 0
    claims = (claim for claim, _ in view.scan.claims) if view.scan else ()
    own = [view.attempt.incarnation] if view.attempt else []
    told = (heard.report.incarnation for heard in view.members.values() if heard.report.incarnation)
    mine = [incarnation for incarnation in (*claims, *own, *told) if incarnation.generation == generation]
    return max(mine, default=Incarnation(generation, 0))


def reports(view: View, world: World) -> dict[str, MemberReport]:
    """The newest reports of the members of `world`, by UID; members never heard are missing."""
    return {uid: view.members[uid].report for uid in world.uids if uid in view.members}


def running(view: View, world: World) -> dict[str, MemberReport]:
    """The members of `world` that have ranks of the current attempt."""
    incarnation = view.attempt.incarnation if view.attempt else None
    return {
        uid: report
        for uid, report in reports(view, world).items()
        if report.ranks is Ranks.RUNNING and report.incarnation == incarnation
    }


def in_memory(view: View, world: World) -> set[CheckpointId]:
    """The checkpoints that every member of `world` holds whole in a slot, staged by this same world (C3, C4)."""
    told = reports(view, world)
    if not world.members or len(told) < len(world.members):
        return set()
    held = [{slot.checkpoint for slot in report.slots} for report in told.values()]
    return {checkpoint for checkpoint in set.intersection(*held) if _same_world(view, checkpoint, world)}


def _same_world(view: View, checkpoint: CheckpointId, world: World) -> bool:
    record = view.records.get(checkpoint.incarnation)
    return record is not None and uids(record.world.members) == uids(world.members)


def uids(members: Iterable[Member]) -> tuple[str, ...]:
    """The pod UIDs in rank order."""
    return tuple(member.uid for member in members)


def failed(view: View, operation: Operation, at: float, detail: str) -> View:
    """Remember that a store operation failed: the next try comes after a longer pause."""
    before = view.backoff.get(operation)
    tries = before.tries + 1 if before else 1
    pause = min(RETRY_MOST, RETRY_FIRST * 2.0 ** (tries - 1))
    return replace(view, backoff={**view.backoff, operation: Backoff(at + pause, tries, detail)})


def succeeded(view: View, operation: Operation) -> View:
    """Forget earlier failures of a store operation."""
    if operation not in view.backoff:
        return view
    return replace(view, backoff={key: value for key, value in view.backoff.items() if key is not operation})
