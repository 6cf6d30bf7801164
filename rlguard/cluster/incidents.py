"""Incidents as the Guard shows them: those of the coordinator, and those that outlive it. Pure."""

from __future__ import annotations

from dataclasses import replace

from rlguard.cluster.context import Clock, Context
from rlguard.cluster.status import INCIDENTS_KEPT, GroupStatus
from rlguard.messages import GroupReport
from rlguard.model import Incarnation, Incident, Phase, Rung


def with_recreation(stored: GroupStatus, fault: str, detail: str, clock: Clock) -> tuple[Incident, ...]:
    """The incidents with one more that the controller itself saw, or with the coordinator's own come to this.

    As everywhere, an incident's id is the incarnation that ends with it.
    """
    name = str(Incarnation(stored.generation, stored.attempt))
    known = next((incident for incident in stored.incidents if incident.id == name), None)
    others = [incident for incident in stored.incidents if incident.id != name]
    fresh = known or Incident(name, fault, detail, clock.wall, Rung.RECREATE, fault, clock.wall)
    return (*others, replace(fresh, decision=Rung.RECREATE))[-INCIDENTS_KEPT:]


def merged(context: Context, stored: GroupStatus, report: GroupReport, *, fresh: bool) -> tuple[Incident, ...]:
    """The stored incidents, those of the coordinator in its newest words, and what has become of a recreation."""
    by_id = {incident.id: incident for incident in stored.incidents}
    for told in report.incidents:
        known = by_id.get(told.id)
        if known is None or known.decision is not Rung.RECREATE:
            by_id[told.id] = told
    kept = sorted(by_id.values(), key=lambda incident: incident.detected_at)[-INCIDENTS_KEPT:]
    if not fresh:
        return tuple(kept)
    return tuple(_resumed(context, stored, report, incident) for incident in kept)


def _resumed(context: Context, stored: GroupStatus, report: GroupReport, incident: Incident) -> Incident:
    """A recreation is over with the first new step of a later generation."""
    if incident.decision is not Rung.RECREATE or incident.first_step_at is not None or report.incarnation.attempt == 0:
        return incident
    if _generation(incident) >= report.incarnation.generation:
        return incident
    if incident.resumed is None and report.newest is not None and stored.step is not None:
        lost = max(0, stored.step - report.newest.step)
        incident = replace(incident, resumed=report.newest, lost_steps=lost)
    return replace(incident, first_step_at=context.clock.wall) if report.phase is Phase.RUNNING else incident


def _generation(incident: Incident) -> int:
    """The generation that ended with it; 0 for an id that names none."""
    generation = incident.id.partition(".")[0]
    return int(generation) if generation.isdecimal() else 0
