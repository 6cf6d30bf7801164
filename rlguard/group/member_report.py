"""What a member says of its pod to the coordinator. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from rlguard.group.member_facts import RankSeen
from rlguard.group.member_view import MemberView, node_rank_of, ordered_incarnation, own_ranks, slowest_step
from rlguard.group.memory import stage_state
from rlguard.messages import MemberReport, Ranks, Slot, Want
from rlguard.model import Notice, Repair, Scope, Severity

STOP_ANSWER: Final = 2.0
"""The launcher repeats its state once a second: one heard so long after the order to stop was made knowing it."""


def report_of(view: MemberView, now: float) -> MemberReport:
    """The snapshot for the coordinator.

    `incarnation` is the newest one ordered, so a report is also the answer to the order: ranks that are absent in it
    stay absent until a newer incarnation is ordered.
    """
    launcher = view.launcher
    own = own_ranks(view)
    hooked = [rank for rank in own if rank.hook]
    ended = launcher is not None and launcher.incarnation == ordered_incarnation(view)
    return MemberReport(
        member=view.member,
        incarnation=ordered_incarnation(view),
        ranks=_ranks(view),
        code=launcher.code if launcher and ended else None,
        signal=launcher.signal if launcher and ended else None,
        tail=launcher.tail if launcher else "",
        hooked=launcher.hooked if launcher else None,
        reshardable=bool(hooked) and all(rank.reshardable for rank in hooked),
        step=slowest_step(own),
        heartbeat_age=float(int(max(rank.heartbeat_age for rank in hooked))) if hooked else None,
        slots=tuple(Slot(slot.slot, slot.checkpoint) for slot in view.slots if slot.checkpoint is not None),
        stage=stage_state(view.choice, view.ranks, view.slots),
        flush=view.flush,
        notices=(*_aged(view, now), *_nan(own)),
        terminating=launcher is not None and launcher.terminating,
        untouched=view.untouched,
    )


def _ranks(view: MemberView) -> Ranks:
    """The state of the ranks with respect to the order; UNKNOWN while a start is under way."""
    launcher, order = view.launcher, view.order
    if launcher is None:
        return Ranks.UNKNOWN
    if order is None or launcher.incarnation == order.incarnation:
        return launcher.ranks
    if not launcher.ranks.absent:
        return Ranks.STUCK if launcher.ranks is Ranks.STUCK else Ranks.STOPPING
    if order.want is Want.RUN and node_rank_of(view, order) is not None:
        return Ranks.UNKNOWN
    unread = view.asked is not None and view.asked != launcher.incarnation and view.asked == view.stopped
    if unread and view.launcher_at < view.stopped_at + STOP_ANSWER:
        return Ranks.STOPPING
    return Ranks.NONE


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
