"""The next status of one group: first what its coordinator says, then who it is, what must go, who trains. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from rlguard.cluster.context import Context
from rlguard.cluster.identity import identify
from rlguard.cluster.incidents import merged
from rlguard.cluster.removal import removal, settle
from rlguard.cluster.status import GroupStatus
from rlguard.cluster.worlds import next_world
from rlguard.messages import GroupReport
from rlguard.model import Incarnation, Phase

OVER: Final = (Phase.COMPLETED, Phase.GAVE_UP)
"""Phases that only a person ends."""


def next_group(context: Context, stored: GroupStatus) -> GroupStatus:
    """What the status of the group should be. The same view and status give the same answer."""
    group = settle(context, _absorb(context, stored))
    identified = identify(context, group)
    if group.phase in OVER:
        # Pods made anew are told that they may idle, and for that their leader needs a generation.
        return replace(identified or group, phase=group.phase, why=group.why)
    if identified is not None:
        return identified
    if _failed_open(context, group):
        return replace(group, phase=Phase.UNGUARDED, why="a member runs untouched: no controller when it started")
    return removal(context, group) or next_world(context, group) or group


def _failed_open(context: Context, group: GroupStatus) -> bool:
    """A group is wholly guarded or wholly untouched until its leader pod is another one (A9)."""
    heard = [context.view.heard.get(seen.pod.uid) for seen in context.members.values()]
    return group.phase is Phase.UNGUARDED or any(h is not None and h.report.untouched for h in heard)


def _absorb(context: Context, stored: GroupStatus) -> GroupStatus:
    """The status with what the coordinator of this generation said last; its phase only while it is heard."""
    last = _last_words(context, stored)
    if last is None:
        return replace(stored, step=_reached(context, stored))
    fresh = context.report(stored)
    group = replace(
        stored,
        attempt=max(stored.attempt, last.incarnation.attempt),
        newest=last.newest if last.newest is not None else stored.newest,
        step=last.step if last.step is not None else stored.step,
        fenced=known_fenced(stored, last),
        incidents=merged(context, stored, last, fresh=fresh is not None),
    )
    if stored.phase in (*OVER, Phase.UNGUARDED):
        return group
    if fresh is None:
        return replace(group, why=f"the leader's sidecar is silent: {_proof(context)}")
    return replace(group, phase=fresh.phase, why=fresh.why)


def _reached(context: Context, stored: GroupStatus) -> int | None:
    """How far the group got, by its members: the stored step is seconds old when leader and controller went at once."""
    running = Incarnation(stored.generation, stored.attempt)
    told = [heard.report.reached for seen in context.members.values() if (heard := context.heard(seen.pod.uid))]
    steps = [reached.step for reached in told if reached is not None and reached.incarnation == running]
    return max([*steps, stored.step] if stored.step is not None else steps, default=None)


def known_fenced(stored: GroupStatus, last: GroupReport) -> bool | None:
    """Until its ranks run nobody knows whether a job has the training hook."""
    return last.fenced if last.fenced or last.phase is Phase.RUNNING else stored.fenced


def _last_words(context: Context, stored: GroupStatus) -> GroupReport | None:
    heard = context.view.heard.get(stored.leader_uid)
    report = heard.report.group if heard is not None else None
    return report if report is not None and report.incarnation.generation == stored.generation else None


def _proof(context: Context) -> str:
    leader = context.leader
    return context.proof(leader).value if leader is not None else "its pod is gone"
