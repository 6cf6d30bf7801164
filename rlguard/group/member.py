"""The member: what each pod's sidecar decides about its own pod, to converge to the coordinator's order. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from rlguard.decision import Decision
from rlguard.group import facts, member_facts
from rlguard.group.member_actions import launcher_actions, memory_actions
from rlguard.group.member_facts import MemberFact
from rlguard.group.member_report import STOP_ANSWER, report_of
from rlguard.group.member_view import MemberView, node_rank_of, own_ranks, slowest_step
from rlguard.group.memory import Reading, StageChoice, choose_slot, slot_with
from rlguard.messages import FlushResult, FlushState, Order, Ranks, Want
from rlguard.model import Member
from rlguard.policy import FAIL_OPEN, HEARTBEAT, SUSPECT, T_SELF


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
    actions = [*launcher_actions(view), *memory_actions(view), member_facts.PublishMember(report_of(view, now))]
    return Decision(tuple(actions), _why(view), _wake_at(view, now))


def _why(view: MemberView) -> Want | None:
    if view.untouched:
        return Want.UNTOUCHED
    return view.order.want if view.order else None


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
    return replace(view, ranks=fact.ranks, slots=fact.slots)


def _order(view: MemberView, fact: member_facts.OrderHeard) -> MemberView:
    order = fact.order
    if view.untouched or not _acceptable(view, order):
        return view
    view = replace(view, order=order)
    if order.want is Want.RUN and node_rank_of(view, order) is not None:
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
    slowest = slowest_step(own_ranks(view))
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
