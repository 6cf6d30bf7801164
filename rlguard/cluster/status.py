"""The status of a Guard: everything the controller must remember, because its process may be killed at any moment.

Reading is lenient (a field that makes no sense is taken as missing), so that a status written by another version or
by hand never stops the controller; writing is strict. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, TypeVar

from rlguard.model import CheckpointId, Incident, Member, Phase, Rung

INCIDENTS_KEPT: Final = 10
STEPPED_BACK: Final = "SteppedBack"
"""The condition that says which nodes are left to another remediator."""
REFUSED_KEPT: Final = 256
"""Refused pod UIDs remembered per group; older ones belong to generations that are over."""

T = TypeVar("T")


class Until(StrEnum):
    """What ends the avoidance of a node."""

    REBOOT = "another-boot"  # back with another boot id, and its agent says it can work
    HEALTHY = "healthy"  # its agent says it can work


class DeleteKind(StrEnum):
    """What a pending deletion is for."""

    REPLACE = "replace"
    RECREATE = "recreate"


@dataclass(frozen=True, slots=True)
class Condition:
    """A Kubernetes condition; `status` is "True", "False" or "Unknown"."""

    type: str
    status: str
    reason: str
    message: str
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class Avoided:
    """A node this job stays away from. `boot_id` is the boot during which it was bad, empty if never known."""

    node: str
    reason: str
    boot_id: str
    until: Until


@dataclass(frozen=True, slots=True)
class PendingDelete:
    """Pods that are being deleted. `force`: of these the node is proven lost, nobody else can end them."""

    kind: DeleteKind
    uids: tuple[str, ...]
    force: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """One group. `generation` never shrinks; `world` was granted as `world_number` of this generation.

    `refused` are pod UIDs that were replaced in a world; `recreations` are the ids of the recreations decided.
    """

    group: int
    phase: Phase = Phase.PENDING
    why: str = ""
    generation: int = 0
    attempt: int = 0
    leader_uid: str = ""
    world_number: int = 0
    world: tuple[Member, ...] = ()
    newest: CheckpointId | None = None
    step: int | None = None
    fenced: bool | None = None
    refused: tuple[str, ...] = ()
    incidents: tuple[Incident, ...] = ()
    pending: PendingDelete | None = None
    recreations: tuple[str, ...] = ()

    @property
    def world_uids(self) -> frozenset[str]:
        """The pod UIDs of the granted world."""
        return frozenset(member.uid for member in self.world)


@dataclass(frozen=True, slots=True)
class GuardStatus:
    """The whole status. `job_uid` is the LWS it belongs to (C10)."""

    phase: Phase = Phase.PENDING
    job_uid: str = ""
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    avoid: tuple[Avoided, ...] = ()
    groups: tuple[GroupStatus, ...] = field(default=())

    def group(self, index: int) -> GroupStatus:
        """The status of one group, a fresh one if there is none yet."""
        return next((group for group in self.groups if group.group == index), GroupStatus(group=index))


def rfc3339(seconds: float) -> str:
    """Unix seconds as Kubernetes writes times, with microseconds."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def status_to_json(status: GuardStatus) -> dict[str, Any]:
    """The status as the API server stores it."""
    return {
        "phase": status.phase.value,
        "jobUID": status.job_uid,
        "observedGeneration": status.observed_generation,
        "conditions": [_condition_to_json(condition) for condition in status.conditions],
        "avoid": [
            {"node": a.node, "reason": a.reason, "bootID": a.boot_id, "until": a.until.value} for a in status.avoid
        ],
        "groups": [_group_to_json(group) for group in status.groups],
    }


def _condition_to_json(condition: Condition) -> dict[str, str]:
    # metav1.Time has whole seconds.
    since = datetime.fromtimestamp(int(condition.since), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
        "lastTransitionTime": since,
    }


def _group_to_json(group: GroupStatus) -> dict[str, Any]:
    incidents = [incident_to_json(incident) for incident in group.incidents]
    optional = {
        "newest": str(group.newest) if group.newest is not None else None,
        "step": group.step,
        "fenced": group.fenced,
        "lastIncident": incidents[-1] if incidents else None,
        "pendingDelete": _pending_to_json(group.pending) if group.pending is not None else None,
    }
    return {
        "group": group.group,
        "phase": group.phase.value,
        "why": group.why,
        "generation": group.generation,
        "attempt": group.attempt,
        "leaderUID": group.leader_uid,
        "worldNumber": group.world_number,
        "world": [
            {"index": m.index, "uid": m.uid, "pod": m.pod, "node": m.node, "address": m.address} for m in group.world
        ],
        "refused": list(group.refused),
        "incidents": incidents,
        "recreations": list(group.recreations),
        **{name: value for name, value in optional.items() if value is not None},
    }


def _pending_to_json(pending: PendingDelete) -> dict[str, Any]:
    return {
        "kind": pending.kind.value,
        "uids": list(pending.uids),
        "force": list(pending.force),
        "why": pending.why,
    }


def incident_to_json(incident: Incident) -> dict[str, Any]:
    """An incident as Guard status shows it; what is not known yet is left out."""
    optional = {
        "resumed": str(incident.resumed) if incident.resumed is not None else None,
        "lostSteps": incident.lost_steps,
        "firstStepAt": rfc3339(incident.first_step_at) if incident.first_step_at is not None else None,
    }
    return {
        "id": incident.id,
        "fault": incident.fault,
        "detail": incident.detail,
        "detectedAt": rfc3339(incident.detected_at),
        "decidedAt": rfc3339(incident.decided_at),
        "decision": incident.decision.value,
        "why": incident.why,
        **{name: value for name, value in optional.items() if value is not None},
    }


def parse_status(value: Any) -> GuardStatus:
    """The status in a Guard's JSON; whatever is missing or makes no sense becomes its default."""
    value = value if isinstance(value, Mapping) else {}
    return GuardStatus(
        phase=_try(Phase, value.get("phase"), Phase.PENDING),
        job_uid=_text(value, "jobUID"),
        observed_generation=_whole(value, "observedGeneration"),
        conditions=_each(value, "conditions", _parse_condition),
        avoid=_each(value, "avoid", _parse_avoided),
        groups=_each(value, "groups", _parse_group),
    )


def _parse_condition(value: Mapping[str, Any]) -> Condition:
    return Condition(
        value["type"],
        value["status"],
        _text(value, "reason"),
        _text(value, "message"),
        _try(_seconds, value.get("lastTransitionTime"), 0.0),
    )


def _parse_avoided(value: Mapping[str, Any]) -> Avoided:
    until = _try(Until, value.get("until"), Until.REBOOT)
    return Avoided(value["node"], _text(value, "reason"), _text(value, "bootID"), until)


def _parse_group(value: Mapping[str, Any]) -> GroupStatus:
    step, fenced = value.get("step"), value.get("fenced")
    return GroupStatus(
        group=int(value["group"]),
        phase=_try(Phase, value.get("phase"), Phase.PENDING),
        why=_text(value, "why"),
        generation=_whole(value, "generation"),
        attempt=_whole(value, "attempt"),
        leader_uid=_text(value, "leaderUID"),
        world_number=_whole(value, "worldNumber"),
        world=_each(value, "world", _parse_member),
        newest=_try(CheckpointId.parse, value.get("newest"), None),
        step=step if isinstance(step, int) else None,
        fenced=fenced if isinstance(fenced, bool) else None,
        refused=_each_text(value, "refused"),
        incidents=_each(value, "incidents", _parse_incident),
        pending=_try(_parse_pending, value.get("pendingDelete"), None),
        recreations=_each_text(value, "recreations"),
    )


def _parse_member(value: Mapping[str, Any]) -> Member:
    return Member(int(value["index"]), value["uid"], _text(value, "pod"), _text(value, "node"), _text(value, "address"))


def _parse_pending(value: Mapping[str, Any]) -> PendingDelete:
    kind = DeleteKind(value["kind"])
    return PendingDelete(kind, _each_text(value, "uids"), _each_text(value, "force"), _text(value, "why"))


def _parse_incident(value: Mapping[str, Any]) -> Incident:
    lost = value.get("lostSteps")
    return Incident(
        id=value["id"],
        fault=_text(value, "fault"),
        detail=_text(value, "detail"),
        detected_at=_seconds(value["detectedAt"]),
        decision=Rung(value["decision"]),
        why=_text(value, "why"),
        decided_at=_seconds(value["decidedAt"]),
        resumed=_try(CheckpointId.parse, value.get("resumed"), None),
        lost_steps=lost if isinstance(lost, int) else None,
        first_step_at=_try(_seconds, value.get("firstStepAt"), None),
    )


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _try(parse: Callable[[Any], T], value: Any, default: T) -> T:
    try:
        return parse(value)
    except (ValueError, TypeError, KeyError, AttributeError):
        return default


def _each(value: Mapping[str, Any], name: str, parse: Callable[[Mapping[str, Any]], T]) -> tuple[T, ...]:
    items = value.get(name)
    parsed = [_try(parse, item, None) for item in items] if isinstance(items, list) else []
    return tuple(item for item in parsed if item is not None)


def _each_text(value: Mapping[str, Any], name: str) -> tuple[str, ...]:
    items = value.get(name)
    return tuple(item for item in items if isinstance(item, str)) if isinstance(items, list) else ()


def _text(value: Mapping[str, Any], name: str) -> str:
    text = value.get(name)
    return text if isinstance(text, str) else ""


def _whole(value: Mapping[str, Any], name: str) -> int:
    number = value.get(name)
    return number if isinstance(number, int) and not isinstance(number, bool) and number >= 0 else 0
