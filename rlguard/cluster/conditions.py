"""Conditions and Events: what a person reads first. Each says what is wrong and what to do. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rlguard.cluster.actions import Event
from rlguard.cluster.facts import Job
from rlguard.cluster.identity import NO_ROOT
from rlguard.cluster.status import STEPPED_BACK, Condition, DeleteKind, GroupStatus, GuardStatus, Until
from rlguard.cluster.view import View
from rlguard.model import GroupKey, Phase

ORDER = (
    Phase.GAVE_UP,
    Phase.BLOCKED,
    Phase.UNGUARDED,
    Phase.RECREATING,
    Phase.PENDING,
    Phase.WAITING,
    Phase.STOPPING,
    Phase.SAVING,
    Phase.STARTING,
    Phase.RUNNING,
    Phase.COMPLETED,
)
"""The phase of a job is that of its worst group, in this order."""
TOLD = ("NoCheckpointRoot", "Held", STEPPED_BACK)
"""Conditions that are told by an Event, too, when they become true."""


def phase_of(groups: Iterable[GroupStatus], before: Phase) -> Phase:
    """The phase of the job; that of before while it has no groups."""
    phases = {group.phase for group in groups}
    return next((phase for phase in ORDER if phase in phases), before)


@dataclass(frozen=True, slots=True)
class Findings:
    """What is known of a job beside its groups: a spec that cannot be read, and why actions are held.

    `stepped_back`: a sentence about the nodes it avoids that are left to another remediator, empty for none; None:
    nodes are not tainted at all.
    """

    bad_spec: str | None
    held: str | None
    stepped_back: str | None = None


def conditions_of(
    view: View, job: Job, groups: tuple[GroupStatus, ...], findings: Findings, wall: float, before: GuardStatus
) -> tuple[Condition, ...]:
    """All conditions, in a fixed order; one that has not changed keeps its time."""
    held = findings.held
    found = (
        _guarded(view, job, groups, findings),
        _root(view, job),
        _fenced(groups),
        _flag("Held", held is not None, "TooManyNodesBad", held or "no disruptive action is held back"),
        _degraded(job, groups),
        _gave_up(groups),
        *_stepped_back(findings.stepped_back),
    )
    old = {condition.type: condition for condition in before.conditions}
    return tuple(replace(c, since=_since(c, old.get(c.type), wall)) for c in found)


def _since(condition: Condition, old: Condition | None, wall: float) -> float:
    return old.since if old is not None and old.status == condition.status else wall


def _flag(kind: str, on: bool, reason: str, message: str) -> Condition:
    return Condition(kind, "True" if on else "False", reason if on else "AsExpected", message)


def _guarded(view: View, job: Job, groups: tuple[GroupStatus, ...], findings: Findings) -> Condition:
    if findings.bad_spec is not None:
        message = f"{findings.bad_spec}; defaults are used until it is corrected"
        return Condition("Guarded", "False", "BadSpec", message)
    bare = [seen.pod.name for seen in view.pods.values() if _belongs(seen.pod.key, job) and not seen.pod.injected]
    if bare:
        message = f"pods without sidecar: {', '.join(sorted(bare)[:5])}; they were created before the label or while "
        return Condition("Guarded", "False", "NotInjected", message + "the injector was away: delete them once")
    if any(group.phase is Phase.UNGUARDED for group in groups):
        message = "started without a controller, so untouched; guarded again after the next recreation of the group"
        return Condition("Guarded", "False", "FailedOpen", message)
    waiting = [group.why for group in groups if not group.generation]
    if waiting:
        return Condition("Guarded", "False", "Waiting", waiting[0])
    return Condition("Guarded", "True", "Guarded", "every group has its generation")


def _belongs(key: GroupKey, job: Job) -> bool:
    return (key.namespace, key.job) == job.key


def _root(view: View, job: Job) -> Condition:
    told = [
        heard.report
        for uid, seen in view.pods.items()
        if _belongs(seen.pod.key, job) and (heard := view.heard.get(uid)) is not None
    ]
    if not told:
        return Condition("NoCheckpointRoot", "Unknown", "NotReported", "no pod has said yet")
    if any(report.root_state == NO_ROOT for report in told):
        message = "no ReadWriteMany volume, or several: recovery is from memory only; set spec.checkpoint.path"
        return Condition("NoCheckpointRoot", "True", "NoVolume", message)
    bad = next((r for r in told if r.root_state != "ok" and r.disk_generation is None), None)
    if bad is not None:
        message = f"{bad.member.pod} on {bad.member.node}: {bad.root_state}"
        return Condition("NoCheckpointRoot", "True", "Unreadable", message)
    return Condition("NoCheckpointRoot", "False", "AsExpected", "checkpoints are kept on a shared volume")


def _fenced(groups: tuple[GroupStatus, ...]) -> Condition:
    known = [group.fenced for group in groups]
    if any(fenced is False for fenced in known):
        message = "the job saves into its own folder, where an old incarnation could still write; use the training hook"
        return Condition("Fenced", "False", "OwnCheckpoints", message)
    if not known or any(fenced is None for fenced in known):
        return Condition("Fenced", "Unknown", "NotReported", "no coordinator has said yet")
    return Condition("Fenced", "True", "Lineage", "only checkpoints on the lineage are resumed from")


def _degraded(job: Job, groups: tuple[GroupStatus, ...]) -> Condition:
    small = [group for group in groups if group.world and len(group.world) < job.size]
    message = ", ".join(f"group {group.group} trains with {len(group.world)} of {job.size} members" for group in small)
    return _flag("Degraded", bool(small), "SmallerWorld", message or "every group has all its members")


def _gave_up(groups: tuple[GroupStatus, ...]) -> Condition:
    over = next((group for group in groups if group.phase is Phase.GAVE_UP), None)
    message = f"group {over.group}: {over.why}; mend it, then edit the Guard's spec to try again" if over else ""
    return _flag("GaveUp", over is not None, "BudgetSpent", message or "still trying")


def _stepped_back(left: str | None) -> tuple[Condition, ...]:
    if left is None:
        return ()
    nobody = "no other remediator acts on a node that this job avoids"
    return (_flag(STEPPED_BACK, bool(left), "AnotherRemediator", left or nobody),)


def events_between(old: GuardStatus, new: GuardStatus) -> tuple[Event, ...]:
    """What is worth an Event in this change of status."""
    events = [event for group in new.groups for event in _group_events(old.group(group.group), group)]
    before, after = {entry.node: entry for entry in old.avoid}, {entry.node: entry for entry in new.avoid}
    events += [_avoided(entry.node, entry.reason, entry.until) for node, entry in after.items() if node not in before]
    events += [Event("NodeTrusted", f"node {node} may be used again") for node in before if node not in after]
    if new.phase is not old.phase and new.phase is Phase.COMPLETED:
        events.append(Event("Completed", "all groups have finished"))
    return (*events, *_condition_events(old, new))


def _avoided(node: str, reason: str, until: Until) -> Event:
    return Event("NodeAvoided", f"this job stays away from node {node} ({reason}) until: {until.value}", warning=True)


def _group_events(old: GroupStatus, new: GroupStatus) -> list[Event]:
    name = f"group {new.group}"
    events = []
    if new.generation != old.generation:
        events.append(Event("GenerationGiven", f"{name}: generation {new.generation}"))
    if new.world and (new.generation, new.world_number) != (old.generation, old.world_number):
        pods = ", ".join(f"{member.pod} on {member.node}" for member in new.world)
        events.append(Event("WorldGranted", f"{name}: {new.why}; world {new.world_number}: {pods}"))
    if new.pending is not None and (old.pending is None or old.pending.uids != new.pending.uids):
        reason = "Recreating" if new.pending.kind is DeleteKind.RECREATE else "Replacing"
        events.append(Event(reason, f"{name}: {new.pending.why}", warning=True))
    if new.phase is not old.phase and new.phase in (Phase.GAVE_UP, Phase.BLOCKED, Phase.UNGUARDED):
        events.append(Event(new.phase.value, f"{name}: {new.why}", warning=True))
    return events


def _condition_events(old: GuardStatus, new: GuardStatus) -> list[Event]:
    before = {condition.type: condition.status for condition in old.conditions}
    return [
        Event(condition.type, condition.message, warning=True)
        for condition in new.conditions
        if condition.type in TOLD and condition.status == "True" != before.get(condition.type)
    ]
