"""What the coordinator says: an order for each member, a report for the controller. Both follow from the view alone."""

from __future__ import annotations

from typing import Final

from rlguard.group.attempts import undecided
from rlguard.group.faults import GRACE_PLANNED
from rlguard.group.saving import rescue_pending, world_of
from rlguard.group.view import Attempt, Mode, View, floor, uids
from rlguard.messages import Exclusion, FlushOrder, GroupReport, Order, Ranks, StageOrder, Want
from rlguard.model import Incarnation, Phase

HOOK_WAIT: Final = 30.0
"""A job without a training hook counts as running so many seconds after its start: no step will ever tell."""

PHASES: Final = {
    Mode.CLAIMING: Phase.STARTING,
    Mode.CHOOSING: Phase.STARTING,
    Mode.RECORDING: Phase.STARTING,
    Mode.STOPPING: Phase.STOPPING,
    Mode.HELD: Phase.RECREATING,
    Mode.COMPLETING: Phase.RUNNING,
    Mode.COMPLETED: Phase.COMPLETED,
    Mode.GAVE_UP: Phase.GAVE_UP,
    Mode.IDLE: Phase.GAVE_UP,
    Mode.UNGUARDED: Phase.UNGUARDED,
    Mode.FENCED: Phase.BLOCKED,
}
IDLE_MODES: Final = frozenset({Mode.COMPLETED, Mode.GAVE_UP, Mode.IDLE})
QUIET_MODES: Final = frozenset({Mode.CLAIMING, Mode.CHOOSING, Mode.RECORDING})
"""While an attempt is being prepared the last order (to stop) stands: nothing may start, nothing is stopped twice."""


def order_for(view: View, uid: str, now: float) -> Order | None:
    """The order for this member, None while nothing can be said."""
    if view.mode in QUIET_MODES or undecided(view, now):
        return None
    if view.grant is None and view.mode not in (Mode.UNGUARDED, Mode.FENCED):
        return None
    attempt = view.attempt
    if view.mode in (Mode.RUNNING, Mode.COMPLETING) and attempt is not None and uid in attempt.world.uids:
        return _run(view, attempt, uid)
    return _plain(view, uid, _want(view))


def _want(view: View) -> Want:
    if view.mode is Mode.UNGUARDED:
        return Want.UNTOUCHED
    return Want.IDLE if view.mode in IDLE_MODES else Want.STOP


def _plain(view: View, uid: str, want: Want) -> Order:
    return Order(floor(view), want, None, None, None, None, None, _flush(view, uid), view.grace or GRACE_PLANNED)


def _run(view: View, attempt: Attempt, uid: str) -> Order:
    stage = StageOrder(view.stage.order, view.stage.step, view.confirmed) if view.stage else None
    return Order(
        attempt.incarnation, Want.RUN, attempt.world, attempt.port, attempt.parent, attempt.directory,
        stage, _flush(view, uid), GRACE_PLANNED,
    )  # fmt: skip


def _flush(view: View, uid: str) -> FlushOrder | None:
    plan = view.flush
    world = world_of(view, plan.checkpoint) if plan else None
    if plan is None or not plan.nonce or world is None or uid not in world.uids:
        return None
    return FlushOrder(plan.nonce, plan.checkpoint, plan.directory, shared=uid == world.members[0].uid)


def report_of(view: View, now: float) -> GroupReport:
    """The snapshot for the controller."""
    attempt = view.attempt or view.before
    exclude = exclusions(view, now)
    return GroupReport(
        incarnation=attempt.incarnation if attempt else Incarnation(view.grant.generation if view.grant else 0, 0),
        phase=_phase(view, bool(exclude), now),
        why=_why(view, now),
        world=uids(attempt.world.members) if attempt else (),
        world_number=attempt.world_number if attempt else 0,
        step=attempt.slowest if attempt else None,
        newest=view.newest,
        reshardable=view.reshardable,
        fenced=view.hook_seen,
        saved=is_saved(view, now),
        exclude=exclude,
        recreate=_recreate(view),
        incidents=tuple(item.incident for item in view.incidents),
        heard=tuple(sorted(uid for uid in view.members if view.fresh(uid, now))),
    )


def is_saved(view: View, now: float) -> bool:
    """True when a changed world or a recreation costs nothing that could still be saved."""
    if view.mode in (Mode.RUNNING, Mode.STOPPING, Mode.COMPLETING, Mode.FENCED, Mode.UNGUARDED):
        return False
    return view.flush is None and not rescue_pending(view, now)


def exclusions(view: View, now: float) -> tuple[Exclusion, ...]:
    """Whom the controller is asked to take out of the world."""
    leaving = tuple(Exclusion(uid, item.code, item.detail, leaving=True) for uid, item in view.leaving.items())
    if view.mode is not Mode.GATHERING or not _started(view) or undecided(view, now):
        return leaving
    granted = view.grant.world.members if view.grant and view.grant.world else ()
    named = {item.uid for item in leaving}
    rest = tuple(_broken(view, member.uid, now) for member in granted if member.uid not in named | {view.own_uid})
    return leaving + tuple(item for item in rest if item is not None)


def _started(view: View) -> bool:
    """True when this generation has claimed something: all members were there once."""
    return floor(view).attempt > 0


def _broken(view: View, uid: str, now: float) -> Exclusion | None:
    heard = view.members.get(uid)
    if heard is None or not view.fresh(uid, now):
        return Exclusion(uid, "silent", "nothing is heard of it", leaving=False)
    if heard.report.ranks is Ranks.STUCK:
        return Exclusion(uid, "ranks-stuck", "its processes survive SIGKILL", leaving=True)
    return None


def _recreate(view: View) -> str | None:
    own = view.members.get(view.own_uid)
    if view.mode is Mode.GATHERING and own is not None and own.report.ranks is Ranks.STUCK:
        return "processes in the leader's pod survive SIGKILL"
    return view.recreate


def _phase(view: View, excluding: bool, now: float) -> Phase:
    if view.blocked is not None:
        return Phase.BLOCKED
    if view.mode is Mode.IDLE and view.scan is not None and view.scan.completed:
        return Phase.COMPLETED
    if view.mode is Mode.RUNNING:
        return _running_phase(view, now)
    if view.mode is Mode.GATHERING:
        waits = view.need_number is not None or excluding
        return Phase.WAITING if waits else Phase.STARTING if _started(view) else Phase.PENDING
    return PHASES[view.mode]


def _running_phase(view: View, now: float) -> Phase:
    attempt = view.attempt
    if view.save is not None:
        return Phase.SAVING
    if attempt is None or attempt.stepped:
        return Phase.RUNNING
    hookless = not view.hook_seen and now - attempt.started_at > HOOK_WAIT and attempt.ran >= attempt.world.uids
    return Phase.RUNNING if hookless or attempt.adopted else Phase.STARTING


def _why(view: View, now: float) -> str:
    if view.blocked is not None:
        return view.blocked
    if view.mode is Mode.GATHERING:
        return _why_gathering(view, now)
    troubles = [f"{operation} failed {item.tries} times: {item.detail}" for operation, item in view.backoff.items()]
    return "; ".join([view.why, *troubles])


def _why_gathering(view: View, now: float) -> str:
    grant = view.grant
    if grant is None:
        return "waiting for the controller's first grant"
    if grant.world is None:
        return grant.why or "waiting for a world"
    silent = [member.pod for member in grant.world.members if not view.fresh(member.uid, now)]
    up = [member.pod for member in grant.world.members if member.pod not in silent and not view.down(member.uid)]
    parts = [view.why] if view.why else []
    parts += [f"not heard: {', '.join(silent)}"] if silent else []
    parts += [f"ranks not down: {', '.join(up)}"] if up else []
    return "; ".join(parts)
