"""What a member asks of its launcher and of its memory, to converge to the coordinator's order. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rlguard.group import member_facts
from rlguard.group.member_facts import LauncherState, MemberAction
from rlguard.group.member_view import MemberView, node_rank_of
from rlguard.group.memory import slot_with
from rlguard.messages import Order, Ranks, Want

GRACE_SELF: Final = 2.0
"""Between SIGTERM and SIGKILL when a member stops its own ranks, in seconds."""


def launcher_actions(view: MemberView) -> Iterable[MemberAction]:
    """What its launcher has to do: run, stop, idle, run untouched; nothing while none was heard."""
    launcher, order = view.launcher, view.order
    if launcher is None:
        return
    if view.untouched or (order is not None and order.want is Want.UNTOUCHED):
        yield from _untouched(view, launcher)
    elif view.cut or _ends(view, launcher):
        yield from _stop(view, launcher, GRACE_SELF)
        yield from _release(view, launcher)
    elif order is not None and order.want is Want.RUN and node_rank_of(view, order) is not None:
        yield from _run(view, launcher, order)
    elif order is not None:
        yield from _stop(view, launcher, order.grace)
        if order.want is Want.IDLE and launcher.ranks.absent and not launcher.idle:
            yield member_facts.Idle()


def memory_actions(view: MemberView) -> Iterable[MemberAction]:
    """The stage order for the ranks, and a flush to run or cancel for each slot that is read."""
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
    rank = node_rank_of(view, order)
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
