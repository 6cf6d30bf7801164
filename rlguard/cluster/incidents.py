"""Incidents as the Guard shows them: those of the coordinator, and those that outlive it. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from rlguard.cluster.context import Clock, Context
from rlguard.cluster.status import INCIDENTS_KEPT, GroupStatus
from rlguard.messages import GroupReport
from rlguard.model import Incarnation, Incident, Phase, Rung

OURS: Final = "recreate-"
"""How the ids of the controller's own incidents begin; the incarnation that ended follows."""


def opened(stored: GroupStatus, decision: Rung, fault: str, detail: str, clock: Clock) -> Incident:
    """A new incident that the controller itself saw; its id names the incarnation that ends with it."""
    return Incident(
        id=f"{OURS}{stored.generation}.{stored.attempt}",
        fault=fault,
        detail=detail,
        detected_at=clock.wall,
        decision=decision,
        why=stored.phase.value,
        decided_at=clock.wall,
    )


def merged(context: Context, stored: GroupStatus, report: GroupReport, *, fresh: bool) -> tuple[Incident, ...]:
    """The stored incidents, those of the coordinator in its newest words, and what has become of a recreation."""
    by_id = {incident.id: incident for incident in stored.incidents}
    by_id.update({incident.id: incident for incident in report.incidents})
    kept = sorted(by_id.values(), key=lambda incident: incident.detected_at)[-INCIDENTS_KEPT:]
    if not fresh:
        return tuple(kept)
    return tuple(_resumed(context, stored, report, incident) for incident in kept)


def _resumed(context: Context, stored: GroupStatus, report: GroupReport, incident: Incident) -> Incident:
    """A recreation is over with the first new step of a later generation."""
    if not incident.id.startswith(OURS) or incident.first_step_at is not None:
        return incident
    ended = Incarnation.parse(incident.id.removeprefix(OURS))
    if ended.generation >= report.incarnation.generation or report.incarnation.attempt == 0:
        return incident
    if incident.resumed is None and report.newest is not None and stored.step is not None:
        lost = max(0, stored.step - report.newest.step)
        incident = replace(incident, resumed=report.newest, lost_steps=lost)
    return replace(incident, first_step_at=context.clock.wall) if report.phase is Phase.RUNNING else incident
