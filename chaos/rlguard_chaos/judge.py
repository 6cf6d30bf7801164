"""From what was seen to recovered or not, with the sentence that says why. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rlguard.model import CheckpointId
from rlguard_chaos.experiment import Expectation


@dataclass(frozen=True, slots=True)
class Seen:
    """One incident of a Guard's status; times are Unix seconds."""

    id: str
    fault: str
    detail: str
    decision: str
    why: str
    detected_at: float
    decided_at: float
    resumed: str | None
    lost_steps: int | None
    first_step_at: float | None


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """A group as its Guard shows it now."""

    phase: str
    generation: int
    attempt: int
    world: tuple[str, ...]
    nodes: tuple[str, ...]
    pods: tuple[str, ...]
    step: int | None
    newest: CheckpointId | None
    incidents: tuple[Seen, ...]
    avoided: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Judgement:
    """The result of one step. `pending`: nothing failed yet, keep watching. Durations are seconds from the fault.

    `reached_after`: until an expected phase was seen, where no incident is expected.
    """

    recovered: bool
    pending: bool
    reason: str
    incident: Seen | None = None
    detected_after: float | None = None
    first_step_after: float | None = None
    reached_after: float | None = None


def read_group(guard: Mapping[str, Any], group: int) -> GroupSeen | None:
    """The group in a Guard object, None before the controller has written about it."""
    status = guard.get("status") or {}
    entry = next((item for item in status.get("groups") or [] if item.get("group") == group), None)
    if entry is None:
        return None
    world = entry.get("world") or []
    newest = entry.get("newest")
    return GroupSeen(
        phase=entry.get("phase", ""),
        generation=entry.get("generation", 0),
        attempt=entry.get("attempt", 0),
        world=tuple(member["uid"] for member in world),
        nodes=tuple(member["node"] for member in world),
        pods=tuple(member["pod"] for member in world),
        step=entry.get("step"),
        newest=CheckpointId.parse(newest) if newest else None,
        incidents=tuple(_incident(item) for item in entry.get("incidents") or []),
        avoided=tuple(item["node"] for item in status.get("avoid") or []),
    )


def _incident(item: Mapping[str, Any]) -> Seen:
    return Seen(
        id=item["id"],
        fault=item.get("fault", ""),
        detail=item.get("detail", ""),
        decision=item.get("decision", ""),
        why=item.get("why", ""),
        detected_at=_unix(item.get("detectedAt")) or 0.0,
        decided_at=_unix(item.get("decidedAt")) or 0.0,
        resumed=item.get("resumed"),
        lost_steps=item.get("lostSteps"),
        first_step_at=_unix(item.get("firstStepAt")),
    )


def _unix(text: str | None) -> float | None:
    return None if not text else datetime.fromisoformat(text).timestamp()


@dataclass(frozen=True, slots=True)
class Injected:
    """When the fault was injected (Unix seconds), what stood then, and the notice's deadline if there was one."""

    at: float
    before: GroupSeen
    deadline: float | None


def judge(expect: Expectation, injected: Injected, group: GroupSeen | None, now: float) -> Judgement:
    """Compare what is seen at `now` with what must be seen."""
    late = now > injected.at + expect.within
    if group is None:
        return _verdict(late, "the Guard shows nothing of this group")
    if expect.decision is None:
        return _judge_phase(expect, group, injected, now, late=late)
    incident = _the_incident(expect, injected, group)
    if incident is None:
        return _verdict(late, f"no {expect.decision} was decided (phase {group.phase})")
    if incident.first_step_at is None:
        return _verdict(late, f"{incident.decision} decided, but no new step yet (phase {group.phase})", incident)
    return _judge_incident(expect, injected, group, incident, late=late)


def _verdict(late: bool, reason: str, incident: Seen | None = None) -> Judgement:
    return Judgement(recovered=False, pending=not late, reason=reason, incident=incident)


def _judge_phase(expect: Expectation, group: GroupSeen, injected: Injected, now: float, *, late: bool) -> Judgement:
    if group.phase != expect.phase:
        return _verdict(late, f"phase is {group.phase}, not {expect.phase}")
    return Judgement(recovered=True, pending=False, reason=f"phase {group.phase}", reached_after=now - injected.at)


def _the_incident(expect: Expectation, injected: Injected, group: GroupSeen) -> Seen | None:
    known = {incident.id for incident in injected.before.incidents}
    fresh = [incident for incident in group.incidents if incident.id not in known]
    return next((incident for incident in fresh if incident.decision == expect.decision), None)


def _judge_incident(
    expect: Expectation, injected: Injected, group: GroupSeen, incident: Seen, *, late: bool
) -> Judgement:
    if expect.world is not None and len(group.world) != expect.world:
        return _verdict(late, f"a world of {len(group.world)}, not {expect.world}", incident)
    failure = _failure(expect, injected, incident)
    return Judgement(
        recovered=failure is None,
        pending=False,
        reason=failure or incident.why,
        incident=incident,
        detected_after=max(0.0, incident.detected_at - injected.at),
        first_step_after=(incident.first_step_at or injected.at) - injected.at,
    )


def _failure(expect: Expectation, injected: Injected, incident: Seen) -> str | None:
    if expect.lost_steps is not None and (incident.lost_steps is None or incident.lost_steps > expect.lost_steps):
        return f"lost {incident.lost_steps} steps, at most {expect.lost_steps} allowed"
    if incident.first_step_at is not None and incident.first_step_at > injected.at + expect.within:
        return f"first new step after {incident.first_step_at - injected.at:.1f} s, {expect.within:g} s allowed"
    if expect.before_deadline and (injected.deadline is None or (incident.first_step_at or 0) > injected.deadline):
        return "the group left after the deadline"
    if expect.keeps_committed and _lost_committed(injected, incident):
        return f"resumed from {incident.resumed}, but {injected.before.newest} was committed"
    return None


def _lost_committed(injected: Injected, incident: Seen) -> bool:
    newest = injected.before.newest
    resumed = CheckpointId.parse(incident.resumed) if incident.resumed else None
    return newest is not None and (resumed is None or resumed < newest)
