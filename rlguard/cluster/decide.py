"""The controller's decision: for each guarded job, the status it should have and what its written status asks for.

Level-triggered: the stored status of a Guard plus what is seen now give the next status; grants and deletions come
from the stored status alone, so nothing is told or done that a controller killed now would not know afterwards (A3).
Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from typing import Final

from rlguard.cluster.actions import Action, EnsureGuard, WriteStatus
from rlguard.cluster.avoidance import newly_avoided, still_avoided
from rlguard.cluster.conditions import Findings, conditions_of, events_between, phase_of
from rlguard.cluster.context import Clock, Context
from rlguard.cluster.effects import group_effects, reset, scaling
from rlguard.cluster.facts import Job, JobKey
from rlguard.cluster.group import next_group
from rlguard.cluster.silence import breaker
from rlguard.cluster.status import Avoided, GroupStatus, GuardStatus, status_to_json
from rlguard.cluster.taints import TaintPolicy, stepped_back, taint_actions
from rlguard.cluster.view import SAVING, SeenGuard, View
from rlguard.decision import Decision
from rlguard.errors import BadConfigError
from rlguard.model import GroupKey
from rlguard.policy import GuardSpec, parse_spec

STEP_PERIOD: Final = 5.0
"""A status in which only the step moved is written this often, in seconds."""
GROUPS_LIMIT: Final = 1000
"""Groups of one job that are guarded; one Guard object could not hold more."""


NODES: Final = "nodes"
"""Stands in `why` for what is decided about nodes."""


class Idle(StrEnum):
    """Why nothing at all is decided."""

    NOT_LEADING = "not-leading"
    NOT_LISTED = "not-listed"


def decide(view: View, clock: Clock, taints: TaintPolicy | None = None) -> Decision:
    """What to do now. `taints` None: no Node is touched. `why` maps each job to the reasons of its groups."""
    if not view.ready:
        return Decision((), Idle.NOT_LEADING if view.taken_at is None else Idle.NOT_LISTED, None)
    held = breaker(view, clock.now)
    actions: list[Action] = []
    why: dict[JobKey | str, str] = {}
    for job in view.jobs.values():
        if job.guarded:
            plan = tuple(_decide_job(view, job, clock, held, taints))
            actions += plan
            why[job.key] = _reason(view, job, plan)
    if taints is not None:
        wanted, why[NODES] = taint_actions(view, clock.now, taints, held)
        actions += wanted
    return Decision(tuple(actions), why, None)


def _reason(view: View, job: Job, plan: tuple[Action, ...]) -> str:
    meant = next((action.status for action in plan if isinstance(action, WriteStatus)), None)
    status = meant or (view.guards[job.key].guard.status if job.key in view.guards else GuardStatus())
    return "; ".join(f"{group.group}: {group.phase.value}: {group.why}" for group in status.groups[:10])


def _decide_job(view: View, job: Job, clock: Clock, held: str | None, taints: TaintPolicy | None) -> Iterator[Action]:
    seen = view.guards.get(job.key)
    if seen is None:
        yield EnsureGuard(job.key, job.uid)
        return
    spec, bad_spec = _spec(seen)
    contexts = {index: _context(view, job, spec, clock, seen, held, index) for index in range(_groups(job))}
    left = stepped_back(view, seen.guard.status) if taints is not None else None
    desired = _desired(view, job, seen, contexts, Findings(bad_spec, held, left), clock)
    if _worth_writing(seen, desired, clock):
        stored = seen.guard.status
        events = events_between(stored, desired)
        yield WriteStatus(job.key, seen.guard.uid, job.uid, seen.guard.resource_version, desired, events)
    if seen.guard.status.job_uid == job.uid:
        yield from _effects(job, spec, seen, contexts)


def _groups(job: Job) -> int:
    return min(job.replicas, GROUPS_LIMIT)


def _spec(seen: SeenGuard) -> tuple[GuardSpec, str | None]:
    try:
        return parse_spec(seen.guard.spec), None
    except BadConfigError as error:
        return GuardSpec(), str(error)


def _context(
    view: View, job: Job, spec: GuardSpec, clock: Clock, seen: SeenGuard, held: str | None, index: int
) -> Context:
    stored = seen.guard.status.group(index)
    window = spec.restart.window_seconds
    recent = [name for name in stored.recreations if clock.now - seen.since.get((index, name), clock.now) <= window]
    return Context(
        view=view,
        spec=spec,
        job=job,
        key=GroupKey(job.key.namespace, job.key.name, index),
        clock=clock,
        avoided=frozenset(entry.node for entry in seen.guard.status.avoid),
        held=held,
        recreations=len(recent),
        saving_since=seen.since.get((index, SAVING)),
    )


def _desired(
    view: View, job: Job, seen: SeenGuard, contexts: dict[int, Context], findings: Findings, clock: Clock
) -> GuardStatus:
    base = reset(seen.guard.status, job, seen.guard.generation)
    groups = [next_group(context, base.group(index)) for index, context in contexts.items()]
    # Groups that are scaled away keep their generation: a later pod of that index must get a higher one.
    rest = [group for group in base.groups if group.group not in contexts]
    everything = tuple(sorted([*groups, *rest], key=lambda group: group.group))
    return GuardStatus(
        phase=phase_of(groups, base.phase),
        job_uid=job.uid,
        observed_generation=seen.guard.generation,
        conditions=conditions_of(view, job, tuple(groups), findings, clock.wall, base),
        avoid=_avoid(view, base, contexts, groups, clock),
        groups=everything,
    )


def _avoid(
    view: View, base: GuardStatus, contexts: dict[int, Context], groups: list[GroupStatus], clock: Clock
) -> tuple[Avoided, ...]:
    kept = {entry.node: entry for entry in still_avoided(view, base.avoid, clock)}
    for context, group in zip(contexts.values(), groups, strict=True):
        kept.update({entry.node: entry for entry in newly_avoided(context, group)})
    return tuple(kept[node] for node in sorted(kept))


def _worth_writing(seen: SeenGuard, desired: GuardStatus, clock: Clock) -> bool:
    stored = seen.guard.status
    if status_to_json(stored) == status_to_json(desired):
        return False
    if seen.written_at is None or clock.now - seen.written_at >= STEP_PERIOD:
        return True
    return status_to_json(_without_steps(stored)) != status_to_json(_without_steps(desired))


def _without_steps(status: GuardStatus) -> GuardStatus:
    return replace(status, groups=tuple(replace(group, step=None) for group in status.groups))


def _effects(job: Job, spec: GuardSpec, seen: SeenGuard, contexts: dict[int, Context]) -> Iterator[Action]:
    for index, context in contexts.items():
        yield from group_effects(context, seen.guard.status.group(index))
    scale = scaling(job, spec, seen.guard.status)
    if scale is not None:
        yield scale
