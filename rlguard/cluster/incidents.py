"""Incidents as the Guard shows them: those of the coordinator, and those that outlive it. Pure."""

from __future__ import annotations

from dataclasses import replace

from rlguard.cluster.context import Context
from rlguard.cluster.status import INCIDENTS_KEPT, GroupStatus
from rlguard.messages import GroupReport
from rlguard.model import Incarnation, Incident, Phase, Rung


def recreation(context: Context, stored: GroupStatus, fault: str, detail: str) -> GroupStatus:
    """The status with one recreation more in its budget and in its incidents.

    As everywhere, an incident's id is the incarnation that ends with it; the coordinator's own becomes this one.
    """
    name = str(Incarnation(stored.generation, stored.attempt))
    wall = context.clock.wall
    known = next((incident for incident in stored.incidents if incident.id == name), None)
    others = [incident for incident in stored.incidents if incident.id != name]
    ours = known or Incident(name, fault, detail, wall, Rung.RECREATE, fault, wall)
    return replace(
        stored,
        incidents=(*others, replace(ours, decision=Rung.RECREATE))[-INCIDENTS_KEPT:],
        recreations=(*stored.recreations, name)[-context.spec.restart.recreations - 1 :],
    )


def budget_spent(context: Context) -> str:
    """The budget of recreations in words, for a group that has used it up."""
    return f"{context.recreations} recreations in {context.spec.restart.window_seconds:g} s, no more are allowed"


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
    if incident.decision is not Rung.RECREATE or report.incarnation.attempt == 0:
        return incident
    if _generation(incident) >= report.incarnation.generation:
        return incident
    # Until its lineage record is written the coordinator names no newest checkpoint, whatever it is going to choose.
    chosen = report.newest is not None or report.phase is Phase.RUNNING
    if incident.lost_steps is None and chosen and stored.step is not None:
        incident = _cost(incident, stored.step, report)
    stepped = incident.first_step_at is None and report.phase is Phase.RUNNING
    return replace(incident, first_step_at=context.clock.wall) if stepped else incident


def _cost(incident: Incident, reached: int, report: GroupReport) -> Incident:
    """What a recreation resumed from: a checkpoint of its own generation came later, so then it began at step 0."""
    newest = report.newest
    parent = newest if newest is not None and newest.incarnation.generation < report.incarnation.generation else None
    lost = reached - (parent.step if parent is not None else 0)
    return replace(incident, resumed=parent, lost_steps=max(0, lost))


def _generation(incident: Incident) -> int:
    """The generation that ended with it; 0 for an id that names none."""
    generation = incident.id.partition(".")[0]
    return int(generation) if generation.isdecimal() else 0
