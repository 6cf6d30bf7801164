"""The nodes a job stays away from: put on the list with the decision to leave them, taken off on proof. Pure."""

from __future__ import annotations

from typing import Final

from rlguard.cluster.context import Clock, Context
from rlguard.cluster.status import Avoided, GroupStatus, Until
from rlguard.cluster.view import SeenPod, View
from rlguard.messages import Exclusion
from rlguard.model import Notice, Repair, Scope, Severity, Verdict
from rlguard.policy import NODE_LOST, SUSPECT

POD_ONLY: Final = frozenset({"pod-terminating"})
"""Codes that say something about a pod and nothing about its node."""
NODE_LOST_REASON: Final = "node-lost"
CAN_WORK: Final = (Verdict.HEALTHY, Verdict.DEGRADED)


def still_avoided(view: View, avoid: tuple[Avoided, ...], clock: Clock) -> tuple[Avoided, ...]:
    """The list without the nodes that have been proven good again, and without those that no longer exist."""
    return tuple(entry for entry in avoid if not _good_again(view, entry, clock) and not _vanished(view, entry, clock))


def _good_again(view: View, entry: Avoided, clock: Clock) -> bool:
    heard = view.agents.get(entry.node)
    if heard is None or clock.now - heard.at > SUSPECT or heard.report.verdict not in CAN_WORK:
        return False
    return entry.until is Until.HEALTHY or heard.report.boot_id != entry.boot_id


def _vanished(view: View, entry: Avoided, clock: Clock) -> bool:
    heard, since = view.agents.get(entry.node), view.taken_at or clock.now
    silent = clock.now - max(since, heard.at if heard is not None else since)
    return entry.node not in view.nodes and silent > NODE_LOST


def newly_avoided(context: Context, stored: GroupStatus) -> tuple[Avoided, ...]:
    """The nodes that this group must leave now, each with the reason."""
    found: list[Avoided] = []
    for seen in context.members.values():
        reason = _reason_to_leave(context, stored, seen)
        if reason is not None and seen.pod.node and seen.pod.node not in context.avoided:
            found.append(_entry(context, seen, reason))
    return tuple(found)


def _reason_to_leave(context: Context, stored: GroupStatus, seen: SeenPod) -> str | None:
    if seen.pod.uid in _in_question(context, stored) and context.lost(seen):
        return NODE_LOST_REASON
    report = context.report(stored)
    if report is None:
        return None
    asked = next((exclusion for exclusion in report.exclude if exclusion.uid == seen.pod.uid), None)
    if asked is not None:
        return _code(asked)
    fatal = _fatal_notices(context, seen) if seen.pod.index == 0 and report.recreate is not None else []
    return fatal[0].code if fatal else None


def _in_question(context: Context, stored: GroupStatus) -> frozenset[str]:
    """Members whose loss would be acted on: proof is only looked for where somebody misses them."""
    report = context.report(stored)
    silent = [exclusion.uid for exclusion in report.exclude if not exclusion.leaving] if report is not None else []
    forced = stored.pending.force if stored.pending is not None else ()
    return frozenset([stored.leader_uid, *silent, *forced])


def _code(asked: Exclusion) -> str | None:
    return asked.code if asked.leaving and asked.code not in POD_ONLY else None


def _fatal_notices(context: Context, seen: SeenPod) -> list[Notice]:
    return [
        notice
        for notice in _notices(context, seen)
        if notice.severity is Severity.FATAL and notice.scope is not Scope.PROCESS and notice.code not in POD_ONLY
    ]


def _notices(context: Context, seen: SeenPod) -> tuple[Notice, ...]:
    pod, agent = context.view.heard.get(seen.pod.uid), context.view.agents.get(seen.pod.node)
    return (*(pod.report.notices if pod is not None else ()), *(agent.report.notices if agent is not None else ()))


def _entry(context: Context, seen: SeenPod, reason: str) -> Avoided:
    agent, node = context.view.agents.get(seen.pod.node), context.view.nodes.get(seen.pod.node)
    boot = agent.report.boot_id if agent is not None else (node.boot_id if node is not None else "")
    repairs = {notice.repair for notice in _notices(context, seen) if notice.code == reason}
    # What no notice explains is only trusted again after a boot.
    mended_in_place = bool(repairs) and not repairs & {Repair.REBOOT, Repair.REPLACE}
    return Avoided(seen.pod.node, reason, boot, Until.HEALTHY if mended_in_place else Until.REBOOT)
