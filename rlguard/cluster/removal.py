"""What is deleted, and when: single workers, the whole group, and what is left on fenced nodes. Pure.

A deletion is first written as `pending` and only then done (A3), always with the pod's UID. It waits until everything
that can be saved is saved or the time for that is over, and it needs proof (A4): the word of a living agent or
coordinator, or that the node is lost.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from rlguard.cluster.context import Context, exclusions
from rlguard.cluster.facts import Pod
from rlguard.cluster.incidents import budget_spent, recreation
from rlguard.cluster.silence import Proof
from rlguard.cluster.status import DeleteKind, GroupStatus, PendingDelete
from rlguard.cluster.view import SeenPod
from rlguard.messages import Exclusion
from rlguard.model import Phase
from rlguard.policy import LEAVE_MARGIN, SAVE_LIMIT, SUSPECT

SAVE_WAIT: Final = SAVE_LIMIT + 10.0
"""How long a deletion waits for the coordinator to save, in seconds: a little longer than it takes by itself."""
LAST_MOMENT: Final = LEAVE_MARGIN - 2.0
"""So many seconds before a node leaves nothing waits for saving any more; the coordinator has stopped before."""
SILENT_LIMIT: Final = 120.0
"""A sidecar silent for so long, in seconds, with its node alive and nobody in the group hearing it, is ended (A7)."""


def settle(context: Context, stored: GroupStatus) -> GroupStatus:
    """The status with the pending deletion brought up to date: dropped when done, forced where a node is now lost."""
    pods = context.view.pods
    pending = stored.pending
    if pending is not None and not any(uid in pods for uid in (*pending.uids, *pending.force)):
        pending = None
    lost = _fenced(context, pending)
    if lost and context.held is None:
        before = pending or PendingDelete(DeleteKind.REPLACE, lost, (), "left behind on a lost node")
        pending = replace(before, force=(*before.force, *(uid for uid in lost if uid not in before.force)))
    return replace(stored, pending=pending)


def _fenced(context: Context, pending: PendingDelete | None) -> tuple[str, ...]:
    """Pods of the group that nobody but us can end: on a lost node, and being deleted or meant to be."""
    uids = pending.uids if pending is not None else ()
    whole = pending is not None and pending.kind is DeleteKind.RECREATE
    wanted = [seen for seen in context.view.of_group(context.key) if whole or seen.pod.deleting or seen.pod.uid in uids]
    return tuple(sorted(seen.pod.uid for seen in wanted if context.lost(seen)))


def removal(context: Context, stored: GroupStatus) -> GroupStatus | None:
    """The status with the next deletion, with what it waits for, or None when there is nothing to delete."""
    if stored.pending is not None and stored.pending.kind is DeleteKind.RECREATE:
        return replace(stored, phase=Phase.RECREATING, why=stored.pending.why)
    cause = _cause_to_recreate(context, stored)
    if cause is not None:
        return _recreate(context, stored, cause)
    return _replace_workers(context, stored)


# ---------------------------------------------------------------- the whole group


def _cause_to_recreate(context: Context, stored: GroupStatus) -> tuple[str, str] | None:
    """(fault, detail) of what costs the group, None if nothing does."""
    leader, report = context.leader, context.report(stored)
    if leader is None or leader.pod.uid != stored.leader_uid:
        return None
    if context.lost(leader):
        return "node-lost", f"node {leader.pod.node} of leader pod {leader.pod.name} is silent and proven lost"
    if report is not None and report.recreate is not None:
        return "recreate-asked", report.recreate
    if _leader_unreachable(context, leader):
        return "leader-silent", f"leader pod {leader.pod.name} is silent for {SILENT_LIMIT:g} s, its node is alive"
    return _cause_among_workers(context, stored)


def _leader_unreachable(context: Context, leader: SeenPod) -> bool:
    heard = context.view.heard.get(leader.pod.uid)
    agent = context.view.agents.get(leader.pod.node)
    if heard is None or agent is None or context.now - heard.at <= SILENT_LIMIT:
        return False
    alive = context.now - agent.at <= SILENT_LIMIT
    return alive and context.proof(leader) not in (Proof.MEMBER_HEARS, Proof.NOBODY_HEARD)


def _cause_among_workers(context: Context, stored: GroupStatus) -> tuple[str, str] | None:
    for exclusion in exclusions(context, stored):
        seen = context.view.pods.get(exclusion.uid)
        whole = not context.job.isolated or (seen is not None and seen.pod.index == 0)
        if seen is not None and whole and (exclusion.leaving or _out_of_reach(context, stored, seen)):
            return exclusion.code, exclusion.detail
    for index, seen in context.members.items():
        if index < context.job.size and stored.world and _never_comes(context, stored, seen):
            return "replacement-silent", f"pod {seen.pod.name} runs on {seen.pod.node} but is not heard"
    return None


def _never_comes(context: Context, stored: GroupStatus, seen: SeenPod) -> bool:
    if seen.pod.uid in stored.world_uids:
        return False
    needed = seen.pod.index in {member.index for member in stored.world if member.uid not in context.view.pods}
    return needed and context.unheard(seen)


def _recreate(context: Context, stored: GroupStatus, cause: tuple[str, str]) -> GroupStatus:
    fault, detail = cause
    if context.held is not None:
        return replace(stored, why=f"held ({context.held}); would recreate: {detail}")
    if context.recreations >= context.spec.restart.recreations:
        return replace(stored, phase=Phase.GAVE_UP, why=f"{budget_spent(context)}: {detail}")
    if save_left(context, stored) is not None:
        return replace(stored, phase=Phase.RECREATING, why=f"saving first: {detail}")
    pending = PendingDelete(DeleteKind.RECREATE, (stored.leader_uid,), (), detail)
    counted = recreation(context, stored, fault, detail)
    return settle(context, replace(counted, phase=Phase.RECREATING, why=detail, pending=pending))


def save_left(context: Context, stored: GroupStatus) -> float | None:
    """Seconds that the coordinator still has to save before its group is recreated; None: done, over, or no use."""
    report = context.report(stored)
    if report is None or report.saved or not stored.world:
        return None
    waited = context.now - context.saving_since if context.saving_since is not None else 0.0
    left = min([SAVE_WAIT - waited, *_time_to_leave(context, stored.leader_uid)])
    return left if left > 0 else None


def _time_to_leave(context: Context, uid: str) -> list[float]:
    """Seconds that each dated notice still leaves to the pod."""
    heard = context.view.heard.get(uid)
    if heard is None:
        return []
    seconds = [notice.seconds_left for notice in heard.report.notices if notice.seconds_left is not None]
    return [left - (context.now - heard.at) - LAST_MOMENT for left in seconds]


# ---------------------------------------------------------------- single workers


def _replace_workers(context: Context, stored: GroupStatus) -> GroupStatus | None:
    """Only under restartPolicy None; under the others any deleted worker costs the group, so it is recreated."""
    due = [exclusion for exclusion in exclusions(context, stored) if _due(context, stored, exclusion)]
    pods = [context.view.pods[exclusion.uid].pod for exclusion in due]
    before = stored.pending.uids if stored.pending is not None else ()
    fresh = [pod for pod in pods if pod.uid not in before]
    if not fresh:
        return None
    if context.held is not None:
        return replace(stored, why=f"held ({context.held}); would replace {_names(fresh)}")
    why = "; ".join(f"{exclusion.code}: {exclusion.detail}" for exclusion in due)
    kept = stored.pending.force if stored.pending is not None else ()
    uids = (*before, *(pod.uid for pod in fresh))
    pending = PendingDelete(DeleteKind.REPLACE, uids, kept, why)
    return settle(context, replace(stored, phase=Phase.WAITING, why=f"replacing {_names(fresh)}", pending=pending))


def _out_of_reach(context: Context, stored: GroupStatus, seen: SeenPod) -> bool:
    """A member that its coordinator misses: its node is lost, or lives and so can end the pod, after a long time."""
    agent = context.view.agents.get(seen.pod.node)
    alive = agent is not None and context.now - agent.at <= SUSPECT
    return context.lost(seen) or (alive and context.asked_for(stored, seen.pod.uid) > SILENT_LIMIT)


def _names(pods: list[Pod]) -> str:
    return ", ".join(f"{pod.name} on {pod.node}" for pod in pods)


def _due(context: Context, stored: GroupStatus, exclusion: Exclusion) -> bool:
    seen, report = context.view.pods.get(exclusion.uid), context.report(stored)
    if seen is None or report is None or not context.job.isolated:
        return False
    if not exclusion.leaving:
        return _out_of_reach(context, stored, seen)
    left = min([SAVE_WAIT - context.asked_for(stored, exclusion.uid), *_time_to_leave(context, exclusion.uid)])
    return report.saved or left <= 0 or context.lost(seen)
