"""The member: what each pod's sidecar decides about its own pod, to converge to the coordinator's order. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from rlguard.decision import Decision
from rlguard.group import facts, member_facts
from rlguard.group.member_facts import LauncherState, MemberAction, MemberFact, RankSeen, SlotSeen
from rlguard.group.memory import Reading, StageChoice, choose_slot, slot_with, stage_state
from rlguard.messages import FlushResult, FlushState, MemberReport, Order, Ranks, Slot, Want
from rlguard.model import Incarnation, Member, Notice, Repair, Scope, Severity
from rlguard.policy import FAIL_OPEN, HEARTBEAT, SUSPECT, T_SELF

GRACE_SELF: Final = 2.0
"""Between SIGTERM and SIGKILL when a member stops its own ranks, in seconds."""
STOP_ANSWER: Final = 2.0
"""The launcher repeats its state once a second: one heard so long after the order to stop was made knowing it."""


@dataclass(frozen=True, slots=True)
class MemberView:
    """What a member knows.

    `order` is the newest one accepted; `asked`: the newest incarnation it was ordered to run, `stopped`: to stop, and
    when; `cut_since`: since when neither coordinator nor controller is in reach, None while one is; `alone_since`: the
    same of the coordinator only; `quiet_since`: since when the pod is being deleted and nobody wants its memory
    flushed, `released`: long enough, its container may end.
    """

    member: Member
    born: float
    order: Order | None = None
    asked: Incarnation | None = None
    stopped: Incarnation | None = None
    stopped_at: float = 0.0
    launcher: LauncherState | None = None
    launcher_at: float = 0.0
    ranks: tuple[RankSeen, ...] = ()
    slots: tuple[SlotSeen, ...] = ()
    pages_at: float = 0.0
    choice: StageChoice | None = None
    flush: FlushState | None = None
    reading: tuple[Reading, ...] = ()
    coordinator_open: bool = False
    controller_open: bool = False
    controller_ever: bool = False
    cut_since: float | None = None
    cut: bool = False
    alone_since: float | None = None
    alone: bool = False
    quiet_since: float | None = None
    released: bool = False
    notices: tuple[Notice, ...] = ()
    notices_at: float = 0.0
    root: member_facts.RootSeen | None = None
    untouched: bool = False


def begin(member: Member, now: float) -> MemberView:
    """The view of a sidecar whose process has just begun."""
    return MemberView(member=member, born=now, cut_since=now, alone_since=now)


def fold(view: MemberView, fact: MemberFact) -> MemberView:
    """Take in a fact, then what its time brings."""
    absorb: Callable[[MemberView, Any], MemberView] = ABSORB[type(fact)]
    return _advance(absorb(view, fact), fact.at)


def decide(view: MemberView, now: float) -> Decision:
    """Converge to the order. If time alone has changed something, only `Advance`."""
    if _advance(view, now) is not view:
        return Decision((facts.Advance(),), _why(view), now)
    actions = [*_launcher_actions(view), *_memory_actions(view), member_facts.PublishMember(report_of(view, now))]
    return Decision(tuple(actions), _why(view), _wake_at(view, now))


def _why(view: MemberView) -> Want | None:
    if view.untouched:
        return Want.UNTOUCHED
    return view.order.want if view.order else None


# ---------------------------------------------------------------- time


def _advance(view: MemberView, now: float) -> MemberView:
    cut = view.cut_since is not None and now - view.cut_since >= T_SELF
    alone = view.alone_since is not None and now - view.alone_since >= SUSPECT
    released = view.quiet_since is not None and now - view.quiet_since >= SUSPECT
    if (cut, alone, released) != (view.cut, view.alone, view.released):
        view = replace(view, cut=cut, alone=alone, released=released)
    if not view.untouched and _fails_open(view, now):
        view = replace(view, untouched=True)
    return view


def _fails_open(view: MemberView, now: float) -> bool:
    """A9: only at the very first start, with nothing to resume, and nobody who could tell otherwise."""
    root, launcher = view.root, view.launcher
    if launcher is not None and launcher.incarnation is None and launcher.ranks not in (Ranks.NONE, Ranks.UNKNOWN):
        return True
    if root is None or launcher is None or view.controller_ever or view.order is not None:
        return False
    nothing = root.readable and not root.lineage and not root.completed
    return nothing and launcher.ranks is Ranks.NONE and now - view.born >= FAIL_OPEN


def _wake_at(view: MemberView, now: float) -> float:
    times = [now + HEARTBEAT, view.born + FAIL_OPEN, view.stopped_at + STOP_ANSWER]
    times += [view.cut_since + T_SELF] if view.cut_since is not None else []
    times += [since + SUSPECT for since in (view.alone_since, view.quiet_since) if since is not None]
    return min(time for time in times if time > now)


# ---------------------------------------------------------------- actions


def _launcher_actions(view: MemberView) -> Iterable[MemberAction]:
    launcher, order = view.launcher, view.order
    if launcher is None:
        return
    if view.untouched or (order is not None and order.want is Want.UNTOUCHED):
        yield from _untouched(view, launcher)
    elif view.cut or _ends(view, launcher):
        yield from _stop(view, launcher, GRACE_SELF)
        yield from _release(view, launcher)
    elif order is not None and order.want is Want.RUN and _node_rank(view, order) is not None:
        yield from _run(view, launcher, order)
    elif order is not None:
        yield from _stop(view, launcher, order.grace)
        if order.want is Want.IDLE and launcher.ranks.absent and not launcher.idle:
            yield member_facts.Idle()


def _ends(view: MemberView, launcher: LauncherState) -> bool:
    """A pod that is being deleted saves first, on its coordinator's order; without one its grace would only pass."""
    return launcher.terminating and (view.alone or (view.released and launcher.ranks.absent))


def _release(view: MemberView, launcher: LauncherState) -> Iterable[MemberAction]:
    """A launcher whose ranks are down waits for a stop before it ends its container: memory might still be flushed."""
    if launcher.ranks.absent and launcher.incarnation is not None and _ends(view, launcher):
        yield member_facts.StopRanks(launcher.incarnation, GRACE_SELF)


def _untouched(view: MemberView, launcher: LauncherState) -> Iterable[MemberAction]:
    if launcher.incarnation is None and launcher.ranks is not Ranks.NONE:
        return
    if launcher.ranks.absent:
        yield member_facts.RunUntouched()
    else:
        yield from _stop(view, launcher, GRACE_SELF)


def _stop(view: MemberView, launcher: LauncherState, grace: float) -> Iterable[MemberAction]:
    """Also for a start that the launcher may not have read yet: it reads the stop after it."""
    if launcher.incarnation is not None and not launcher.ranks.absent:
        yield member_facts.StopRanks(launcher.incarnation, grace)
    if view.asked is not None and launcher.incarnation != view.asked and view.asked == view.stopped:
        yield member_facts.StopRanks(view.asked, grace)


def _run(view: MemberView, launcher: LauncherState, order: Order) -> Iterable[MemberAction]:
    if launcher.incarnation == order.incarnation or launcher.ranks is Ranks.UNKNOWN:
        return
    if not launcher.ranks.absent:
        yield from _stop(view, launcher, order.grace)
        return
    rank = _node_rank(view, order)
    if rank is None or order.world is None or order.master_port is None:
        return
    yield member_facts.StartRanks(
        incarnation=order.incarnation,
        nnodes=len(order.world.members),
        node_rank=rank,
        master_addr=order.world.members[0].address,
        master_port=order.master_port,
        resume=order.resume,
        slot=slot_with(view.slots, order.resume),
        directory=order.resume_directory,
    )


def _node_rank(view: MemberView, order: Order) -> int | None:
    members = order.world.members if order.world else ()
    return next((rank for rank, member in enumerate(members) if member.uid == view.member.uid), None)


def _memory_actions(view: MemberView) -> Iterable[MemberAction]:
    order, choice = view.order, view.choice
    launcher = view.launcher
    current = order is not None and launcher is not None and launcher.incarnation == order.incarnation
    if current and order is not None and order.stage is not None and choice is not None and choice.slot is not None:
        yield member_facts.WriteControl(order.incarnation, choice.order, choice.step, choice.slot)
    wanted = order.flush if order else None
    for reading in view.reading:
        if wanted is None or reading.order.nonce != wanted.nonce:
            yield member_facts.CancelFlush(reading.order.nonce)
        else:
            yield member_facts.RunFlush(reading.order, reading.slot)


# ---------------------------------------------------------------- the report


def report_of(view: MemberView, now: float) -> MemberReport:
    """The snapshot for the coordinator.

    `incarnation` is the newest one ordered, so a report is also the answer to the order: ranks that are absent in it
    stay absent until a newer incarnation is ordered.
    """
    launcher = view.launcher
    own = _own_ranks(view)
    hooked = [rank for rank in own if rank.hook]
    ended = launcher is not None and launcher.incarnation == _incarnation(view)
    return MemberReport(
        member=view.member,
        incarnation=_incarnation(view),
        ranks=_ranks(view),
        code=launcher.code if launcher and ended else None,
        signal=launcher.signal if launcher and ended else None,
        tail=launcher.tail if launcher else "",
        hooked=launcher.hooked if launcher else None,
        reshardable=bool(hooked) and all(rank.reshardable for rank in hooked),
        step=_slowest(own),
        heartbeat_age=float(int(max(rank.heartbeat_age for rank in hooked))) if hooked else None,
        slots=tuple(Slot(slot.slot, slot.checkpoint) for slot in view.slots if slot.checkpoint is not None),
        stage=stage_state(view.choice, view.ranks, view.slots),
        flush=view.flush,
        notices=(*_aged(view, now), *_nan(own)),
        terminating=launcher is not None and launcher.terminating,
        untouched=view.untouched,
    )


def _incarnation(view: MemberView) -> Incarnation | None:
    if view.order is not None:
        return view.order.incarnation
    return view.launcher.incarnation if view.launcher else None


def _ranks(view: MemberView) -> Ranks:
    """The state of the ranks with respect to the order; UNKNOWN while a start is under way."""
    launcher, order = view.launcher, view.order
    if launcher is None:
        return Ranks.UNKNOWN
    if order is None or launcher.incarnation == order.incarnation:
        return launcher.ranks
    if not launcher.ranks.absent:
        return Ranks.STUCK if launcher.ranks is Ranks.STUCK else Ranks.STOPPING
    if order.want is Want.RUN and _node_rank(view, order) is not None:
        return Ranks.UNKNOWN
    unread = view.asked is not None and view.asked != launcher.incarnation and view.asked == view.stopped
    if unread and view.launcher_at < view.stopped_at + STOP_ANSWER:
        return Ranks.STOPPING
    return Ranks.NONE


def _own_ranks(view: MemberView) -> list[RankSeen]:
    """The pages of the incarnation that is ordered and started; those of one before it say nothing of it."""
    incarnation = view.launcher.incarnation if view.launcher else None
    if incarnation != _incarnation(view):
        return []
    return [rank for rank in view.ranks if rank.incarnation == incarnation]


def _slowest(ranks: list[RankSeen]) -> int | None:
    hooked = [rank for rank in ranks if rank.hook]
    if not hooked or len(hooked) < hooked[0].local_world_size:
        return None
    steps = [rank.step for rank in hooked]
    known = [step for step in steps if step is not None]
    return min(known) if len(known) == len(steps) else None


def _aged(view: MemberView, now: float) -> Iterable[Notice]:
    """A6: deadlines travel as whole seconds left, rounded down, counted from now."""
    for notice in view.notices:
        left = notice.seconds_left
        yield (
            notice
            if left is None
            else replace(notice, seconds_left=float(int(max(0.0, left - (now - view.notices_at)))))
        )


def _nan(ranks: list[RankSeen]) -> Iterable[Notice]:
    for rank in ranks:
        if rank.nan:
            detail = f"local rank {rank.local_rank} saw a NaN at step {rank.step}"
            yield Notice(
                f"nan-{rank.incarnation}", "nan", Severity.FATAL, Scope.PROCESS, Repair.RESTART_PROCESS, detail
            )
            return


# ---------------------------------------------------------------- facts


def _ticked(view: MemberView, _fact: facts.Ticked) -> MemberView:
    return view


def _controller_link(view: MemberView, fact: facts.ControllerLink) -> MemberView:
    view = replace(view, controller_open=fact.open, controller_ever=view.controller_ever or fact.open)
    return _reach(view, fact.at)


def _coordinator_link(view: MemberView, fact: member_facts.CoordinatorLink) -> MemberView:
    since = None if fact.open else (view.alone_since if view.alone_since is not None else fact.at)
    return _reach(replace(view, coordinator_open=fact.open, alone_since=since), fact.at)


def _reach(view: MemberView, at: float) -> MemberView:
    """A5: only the loss of both links starts the clock, at the last moment at which anything can have been heard."""
    if view.coordinator_open or view.controller_open:
        return replace(view, cut_since=None)
    return view if view.cut_since is not None else replace(view, cut_since=at - SUSPECT)


def _launcher(view: MemberView, fact: member_facts.LauncherHeard) -> MemberView:
    return _quiet(replace(view, launcher=fact.state, launcher_at=fact.at), fact.at)


def _quiet(view: MemberView, at: float) -> MemberView:
    """Start the time after which a pod that is being deleted may end; a flush that is wanted stops it."""
    ending = view.launcher is not None and view.launcher.terminating
    wanted = bool(view.reading) or (view.order is not None and view.order.flush is not None)
    if not ending or wanted:
        return replace(view, quiet_since=None) if view.quiet_since is not None else view
    return view if view.quiet_since is not None else replace(view, quiet_since=at)


def _launcher_lost(view: MemberView, _fact: member_facts.LauncherLost) -> MemberView:
    return view


def _pages(view: MemberView, fact: member_facts.PagesRead) -> MemberView:
    return replace(view, ranks=fact.ranks, slots=fact.slots, pages_at=fact.at)


def _order(view: MemberView, fact: member_facts.OrderHeard) -> MemberView:
    order = fact.order
    if view.untouched or not _acceptable(view, order):
        return view
    view = replace(view, order=order)
    if order.want is Want.RUN and _node_rank(view, order) is not None:
        view = replace(view, asked=order.incarnation)
    elif view.stopped is None or view.stopped < order.incarnation:
        view = replace(view, stopped=order.incarnation, stopped_at=fact.at)
    return _quiet(_take_flush(_take_stage(view, order), order), fact.at)


def _acceptable(view: MemberView, order: Order) -> bool:
    """An older incarnation than one seen is refused, and so is running what was ordered to stop."""
    launcher = view.launcher.incarnation if view.launcher else None
    seen = max((item for item in (launcher, view.asked, view.stopped) if item is not None), default=None)
    if seen is not None and order.incarnation < seen:
        return False
    return order.want is not Want.RUN or view.stopped is None or order.incarnation > view.stopped


def _take_stage(view: MemberView, order: Order) -> MemberView:
    stage = order.stage
    if stage is None or (view.choice is not None and view.choice.order >= stage.order):
        return view
    slot = choose_slot(view.slots, stage.confirmed, [reading.slot for reading in view.reading], _loading(view, order))
    return replace(view, choice=StageChoice(stage.order, order.incarnation, stage.step, slot))


def _loading(view: MemberView, order: Order) -> int | None:
    """The slot that ranks may still be reading their state from."""
    slowest = _slowest(_own_ranks(view))
    if order.resume is None or (slowest is not None and slowest > order.resume.step):
        return None
    return slot_with(view.slots, order.resume)


def _take_flush(view: MemberView, order: Order) -> MemberView:
    flush = order.flush
    if flush is None or (view.flush is not None and view.flush.nonce == flush.nonce):
        return view
    slot = slot_with(view.slots, flush.checkpoint)
    staging = view.choice.slot if view.choice and order.stage and view.choice.order == order.stage.order else None
    if slot is None or slot == staging:
        detail = f"{flush.checkpoint} is not in this pod's memory"
        return replace(view, flush=FlushState(flush.nonce, flush.checkpoint, FlushResult.FAILED, detail, ()))
    state = FlushState(flush.nonce, flush.checkpoint, FlushResult.RUNNING, "", ())
    return replace(view, flush=state, reading=(*view.reading, Reading(flush, slot)))


def _flush_ended(view: MemberView, fact: member_facts.FlushEnded) -> MemberView:
    reading = tuple(item for item in view.reading if item.order.nonce != fact.nonce)
    view = _quiet(replace(view, reading=reading), fact.at)
    if view.flush is None or view.flush.nonce != fact.nonce:
        return view
    result = FlushResult.DONE if fact.done else FlushResult.FAILED
    return replace(view, flush=replace(view.flush, result=result, detail=fact.detail, files=fact.files))


def _notices(view: MemberView, fact: member_facts.NoticesHeard) -> MemberView:
    return replace(view, notices=fact.notices, notices_at=fact.at)


def _root(view: MemberView, fact: member_facts.RootSeen) -> MemberView:
    return replace(view, root=fact)


ABSORB: Final[dict[type, Callable[[MemberView, Any], MemberView]]] = {
    facts.Ticked: _ticked,
    facts.ControllerLink: _controller_link,
    member_facts.CoordinatorLink: _coordinator_link,
    member_facts.LauncherHeard: _launcher,
    member_facts.LauncherLost: _launcher_lost,
    member_facts.PagesRead: _pages,
    member_facts.OrderHeard: _order,
    member_facts.FlushEnded: _flush_ended,
    member_facts.NoticesHeard: _notices,
    member_facts.RootSeen: _root,
}
