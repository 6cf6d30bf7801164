"""Who a group is: its generation, and what its leader says of itself. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from rlguard.cluster.context import Context
from rlguard.cluster.incidents import budget_spent, recreation
from rlguard.cluster.status import REFUSED_KEPT, DeleteKind, GroupStatus, PendingDelete
from rlguard.messages import PodReport
from rlguard.model import Phase

ROOT_WAIT: Final = 120.0
"""How long a checkpoint root may be unreadable before the group counts as blocked, in seconds."""
NO_ROOT: Final = "none"
"""`PodReport.root_state` of a pod without a checkpoint root."""


def identify(context: Context, stored: GroupStatus) -> GroupStatus | None:
    """The status with the next generation for a new leader pod, or with the reason why it has none yet.

    None when the leader is the one that has the stored generation.
    """
    leader = context.leader
    if leader is None:
        return None if stored.pending is not None else _waiting(stored, "the leader pod does not exist")
    if leader.pod.uid == stored.leader_uid:
        return None
    heard = context.heard(leader.pod.uid)
    if heard is None:
        why = f"leader pod {leader.pod.name} has not been heard yet"
        return _waiting(stored, f"{why}: {leader.pod.waits}" if leader.pod.waits else why)
    report = heard.report
    if report.disk_generation is None and report.root_state != NO_ROOT:
        return _unreadable(stored, report, context.now - heard.first_at)
    return _next_generation(_counted(context, stored, report), report, context.job.uid)


def _counted(context: Context, stored: GroupStatus, report: PodReport) -> GroupStatus:
    """A leader that went without our doing, while its group trained, is a recreation like any other."""
    if not stored.world or stored.phase in (Phase.RECREATING, Phase.COMPLETED, Phase.GAVE_UP):
        return stored
    detail = f"leader pod {report.member.pod} was replaced from outside"
    counted = recreation(context, stored, "leader-replaced", detail)
    spent = context.recreations >= context.spec.restart.recreations
    return replace(counted, phase=Phase.GAVE_UP, why=f"{budget_spent(context)}: {detail}") if spent else counted


def _waiting(stored: GroupStatus, why: str) -> GroupStatus:
    phase = Phase.RECREATING if stored.phase is Phase.RECREATING else Phase.PENDING
    return replace(stored, phase=phase, why=why)


def _unreadable(stored: GroupStatus, report: PodReport, waited: float) -> GroupStatus:
    why = f"checkpoint root of {report.member.pod}: {report.root_state}"
    return replace(stored, phase=Phase.BLOCKED if waited > ROOT_WAIT else Phase.PENDING, why=why)


def _still(pending: PendingDelete | None) -> PendingDelete | None:
    """What is left of a deletion concerns old pods only: it goes on, and holds the new generation up no longer."""
    return replace(pending, kind=DeleteKind.REPLACE) if pending is not None else None


def _next_generation(stored: GroupStatus, report: PodReport, job_uid: str) -> GroupStatus:
    """Written before anybody is told (A3). Pods of the generation before belong to a leader that is no more."""
    old = [uid for uid in stored.world_uids if uid not in stored.refused and uid != report.member.uid]
    phase, why = _begin(stored, report, job_uid)
    return replace(
        stored,
        phase=phase,
        why=why,
        generation=max(stored.generation, report.disk_generation or 0) + 1,
        attempt=0,
        leader_uid=report.member.uid,
        world_number=0,
        world=(),
        refused=(*stored.refused, *sorted(old))[-REFUSED_KEPT:],
        pending=_still(stored.pending),
        fenced=None,
    )


def _begin(stored: GroupStatus, report: PodReport, job_uid: str) -> tuple[Phase, str]:
    if stored.phase is Phase.GAVE_UP:
        return stored.phase, stored.why
    if report.completed_by == job_uid:
        return Phase.COMPLETED, "the checkpoint root says that the job is complete"
    return Phase.PENDING, "new leader pod"
