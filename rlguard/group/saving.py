"""When to stage, flush and commit; and whether all that could be saved has been."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from rlguard.checkpoint.lineage import on_chain
from rlguard.group.coordinator_facts import Operation
from rlguard.group.view import (
    Attempt,
    FlushPlan,
    Mode,
    Save,
    StagePlan,
    View,
    failed,
    in_memory,
    reports,
    running,
)
from rlguard.messages import FlushResult, FlushState, MemberReport, StageResult
from rlguard.model import CheckpointId, World

ARRIVE: Final = 0.3
"""A stage order reaches every rank within so many seconds; the step is chosen that far ahead."""
STAGE_LIMIT: Final = 60.0
"""A stage that is not done after so many seconds is given up (its order number is never used again)."""
STAGE_AGAIN: Final = 2.0
STAGE_AGAIN_SAVING: Final = 0.5
"""Seconds until the next try after a stage was skipped or failed."""
FLUSH_LIMIT: Final = 900.0
"""A flush that is not done after so many seconds is given up."""
RESCUE_LIMIT: Final = 60.0
"""How long a stopped group waits, in seconds, for a flush that only its memory can still give."""


def unsaved(view: View, now: float) -> bool:
    """True when a staged checkpoint is newer than all committed ones and can still be flushed."""
    target = view.confirmed
    return target is not None and view.has_root and _newer(target, view.newest) and can_flush(view, target, now)


def rescue_pending(view: View, now: float) -> bool:
    """Stopped, and worth waiting for the flush of what is only in memory. Bounded."""
    return now - view.since <= RESCUE_LIMIT and unsaved(view, now)


def world_of(view: View, checkpoint: CheckpointId) -> World | None:
    """The world that staged `checkpoint`."""
    record = view.records.get(checkpoint.incarnation)
    return record.world if record else None


def can_flush(view: View, checkpoint: CheckpointId, now: float) -> bool:
    """True when all members that staged `checkpoint` are in reach, each still holding it."""
    world = world_of(view, checkpoint)
    if world is None or not all(view.fresh(uid, now) for uid in world.uids):
        return False
    return checkpoint in in_memory(view, world)


def save_done(view: View, save: Save, now: float) -> bool:
    """True when there is nothing more to save, or no more time for it."""
    attempt = view.attempt
    if attempt is None or now >= save.deadline or not view.hook_seen or not view.has_root:
        return True
    if not all(view.fresh(uid, now) for uid in attempt.world.uids):
        return True
    if save.target is not None:
        return not _newer(save.target, view.newest)
    return not attempt.stepped and attempt.surveyed and not unsaved(view, now)


def schedule(view: View, now: float) -> View:
    """One round of staging (while ranks run) and flushing (also when they are down)."""
    if view.mode is Mode.RUNNING and view.attempt is not None:
        view = _stage(view, view.attempt, now)
    return _flush(view, now)


def survey(view: View) -> CheckpointId | None:
    """The newest checkpoint on the chain that all members of the attempt hold in memory."""
    if view.attempt is None:
        return None
    held = in_memory(view, view.attempt.world)
    return max((checkpoint for checkpoint in held if on_chain(view.records, checkpoint)), default=None)


def _stage(view: View, attempt: Attempt, now: float) -> View:
    if view.stage is not None:
        return _watch_stage(view, attempt, view.stage, now)
    told = running(view, attempt.world)
    if len(told) < len(attempt.world.members) or not all(view.fresh(uid, now) for uid in told):
        return view
    if attempt.adopted and not attempt.surveyed:
        return _survey_adopted(view, attempt, told)
    if not attempt.stepped:
        return _target_what_is(view, now)
    if now < view.stage_due and (view.save is None or view.save.target is not None):
        return view
    return _order_stage(view, attempt, now, 1)


def _target_what_is(view: View, now: float) -> View:
    """No new step yet: what was resumed is all there is to save."""
    if view.save is None or view.save.target is not None or not unsaved(view, now):
        return view
    return replace(view, save=replace(view.save, target=view.confirmed))


def _survey_adopted(view: View, attempt: Attempt, told: dict[str, MemberReport]) -> View:
    """M1 after a restart of this process: while an order of the former one is open, nobody knows what is confirmed."""
    if any(report.stage is not None and report.stage.result is StageResult.PENDING for report in told.values()):
        return view
    return replace(view, confirmed=survey(view), attempt=replace(attempt, surveyed=True))


def _order_stage(view: View, attempt: Attempt, now: float, times: int) -> View:
    margin = max(1, math.ceil(attempt.rate * ARRIVE)) * times
    step = (attempt.furthest or 0) + 1 + margin
    order = view.stage_order + 1
    return replace(view, stage=StagePlan(order, step, now, times), stage_order=order)


def _watch_stage(view: View, attempt: Attempt, plan: StagePlan, now: float) -> View:
    told = reports(view, attempt.world).values()
    answers = [report.stage.result for report in told if report.stage is not None and report.stage.order == plan.order]
    if StageResult.PAST in answers:
        return _order_stage(view, attempt, now, plan.times * 2)
    if StageResult.SKIPPED in answers or StageResult.FAILED in answers or now - plan.asked_at > STAGE_LIMIT:
        return replace(view, stage=None, stage_due=now + (STAGE_AGAIN_SAVING if view.save else STAGE_AGAIN))
    if answers.count(StageResult.STAGED) < len(attempt.world.members):
        return view
    return _confirm(view, attempt, plan)


def _confirm(view: View, attempt: Attempt, plan: StagePlan) -> View:
    interval = view.grant.timing.stage_interval if view.grant else 0.0
    done = CheckpointId(attempt.incarnation, plan.step)
    view = replace(view, stage=None, stage_due=plan.asked_at + interval, confirmed=done)
    if view.save is not None and view.save.target is None and plan.asked_at >= view.save.started_at:
        view = replace(view, save=replace(view.save, target=done))
    return view


def _flush(view: View, now: float) -> View:
    if view.flush is not None:
        return _watch_flush(view, view.flush, now)
    if not view.ready(Operation.BEGIN_FLUSH, now) or not unsaved(view, now) or view.confirmed is None:
        return view
    if now < view.flush_due and not _urgent(view):
        return view
    interval = view.grant.timing.flush_interval if view.grant else 0.0
    return replace(view, flush=FlushPlan(view.confirmed, now), flush_due=now + interval)


def _urgent(view: View) -> bool:
    if view.save is not None:
        return view.save.target is not None
    grant, attempt = view.grant, view.attempt
    changed = grant is not None and attempt is not None and grant.world_number != attempt.world_number
    stopped = view.mode in (Mode.STOPPING, Mode.GATHERING, Mode.HELD, Mode.GAVE_UP, Mode.IDLE)
    going = view.leaving or view.recreate or changed or view.mode is Mode.GAVE_UP
    return bool(stopped and (going or (grant is not None and grant.save_within is not None)))


def _watch_flush(view: View, plan: FlushPlan, now: float) -> View:
    states = flush_states(view, plan)
    broken = [state.detail for state in states.values() if state.result is FlushResult.FAILED]
    if broken:
        return failed(replace(view, flush=None), Operation.BEGIN_FLUSH, now, f"flush of {plan.checkpoint}: {broken[0]}")
    world = world_of(view, plan.checkpoint)
    done = flushed(view, plan)
    lost = world is None or not all(view.fresh(uid, now - STAGE_LIMIT / 2) for uid in world.uids)
    if (lost and not done) or now - plan.asked_at > FLUSH_LIMIT:
        detail = f"flush of {plan.checkpoint}: a member did not finish its part"
        return failed(replace(view, flush=None), Operation.BEGIN_FLUSH, now, detail)
    return view


def flush_states(view: View, plan: FlushPlan) -> dict[str, FlushState]:
    """What the members say of this flush, by UID; who says nothing of it is missing."""
    world = world_of(view, plan.checkpoint)
    told = reports(view, world) if world else {}
    return {
        uid: report.flush
        for uid, report in told.items()
        if report.flush is not None and report.flush.nonce == plan.nonce
    }


def flushed(view: View, plan: FlushPlan) -> bool:
    """True when every member that holds a part of it has written it."""
    world = world_of(view, plan.checkpoint)
    states = flush_states(view, plan)
    done = [state for state in states.values() if state.result is FlushResult.DONE]
    return world is not None and plan.nonce != "" and len(done) == len(world.members)


def _newer(checkpoint: CheckpointId, than: CheckpointId | None) -> bool:
    return than is None or checkpoint > than
