"""The nodes a job stays away from: put on the list with the decision to leave them, taken off on proof. Pure."""

from __future__ import annotations

from typing import Final

from rlguard.cluster.context import Clock, Context
from rlguard.cluster.status import Avoided, GroupStatus, Until
from rlguard.cluster.view import SeenPod, View
from rlguard.messages import Exclusion, GroupReport
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
    report = context.report(stored)
    missed = _in_question(stored, report)
    asked = {exclusion.uid: exclusion for exclusion in report.exclude} if report is not None else {}
    found: list[Avoided] = []
    for seen in context.members.values():
        if not seen.pod.node or seen.pod.node in context.avoided:
            continue
        reason = NODE_LOST_REASON if seen.pod.uid in missed and context.lost(seen) else None
        reason = reason or _code(asked.get(seen.pod.uid)) or _code_of_leader(context, report, seen)
        if reason is not None:
            found.append(_entry(context, seen, reason))
    return tuple(found)


def _code_of_leader(context: Context, report: GroupReport | None, seen: SeenPod) -> str | None:
    if seen.pod.index or report is None or report.recreate is None:
        return None
    return next((notice.code for notice in _notices(context, seen) if _is_fatal(notice)), None)


def _in_question(stored: GroupStatus, report: GroupReport | None) -> frozenset[str]:
    """Members whose loss would be acted on: proof is only looked for where somebody misses them."""
    silent = [exclusion.uid for exclusion in report.exclude if not exclusion.leaving] if report is not None else []
    forced = stored.pending.force if stored.pending is not None else ()
    return frozenset([stored.leader_uid, *silent, *forced])


def _code(asked: Exclusion | None) -> str | None:
    return asked.code if asked is not None and asked.leaving and asked.code not in POD_ONLY else None


def _is_fatal(notice: Notice) -> bool:
    """True for what costs the node: a fatal fault, or a date by which it goes."""
    fatal = notice.severity is Severity.FATAL or notice.seconds_left is not None
    return fatal and notice.scope is not Scope.PROCESS and notice.code not in POD_ONLY


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
