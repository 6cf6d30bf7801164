"""Running an experiment: wait for a steady job, inject, watch the Guard, judge."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

from rlguard.errors import TransientError
from rlguard_chaos.experiment import Experiment, Step
from rlguard_chaos.faults import Hands
from rlguard_chaos.judge import GroupSeen, Injected, Judgement, judge, read_group
from rlguard_chaos.kubectl import Kubectl
from rlguard_chaos.narrate import Narrator

STEADY_WITHIN: Final = 180.0
"""Seconds a job may take to become Running before an experiment begins."""
STEPLESS_WITHIN: Final = 40.0
"""Seconds a job may be Running before it has told a step; without the training hook it never tells one."""
HOOK_HINT: Final = "is the training hook at work? See 'kubectl describe guard'"
LOOK_EVERY: Final = 0.25


@dataclass(frozen=True, slots=True)
class Act:
    """An experiment's result: the figures of its measured step, and whether every step was as expected.

    `injected_at` is Unix seconds; the durations are seconds from there.
    """

    name: str
    title: str
    recovered: bool
    reason: str
    injected_at: float
    fault: str = ""
    decision: str = ""
    why: str = ""
    detected_after_s: float | None = None
    lost_steps: int | None = None
    time_to_first_step_s: float | None = None
    reached_after_s: float | None = None
    resumed: str | None = None


class GuardWatch:
    """The newest state of one group's Guard, kept up to date by a task."""

    def __init__(self, kubectl: Kubectl, job: str, group: int) -> None:
        self._kubectl = kubectl
        self._job = job
        self._group = group
        self.guard: dict[str, Any] = {}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[GuardWatch]:
        """Watch while the body runs."""
        task = asyncio.create_task(self._follow(), name="guard-watch")
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _follow(self) -> None:
        async for guard in self._kubectl.watch("guards.rlguard.io", self._job):
            self.guard = guard

    @property
    def seen(self) -> GroupSeen | None:
        """The group now."""
        return read_group(self.guard, self._group)


async def run_experiment(experiment: Experiment, hands: Hands, narrator: Narrator) -> Act:
    """Run every step; stop at the first that fails. Raises TransientError if the job never becomes steady."""
    narrator.title(experiment.title)
    watch = GuardWatch(hands.kubectl, hands.job.name, hands.job.group)
    async with watch.running():
        narrator.skip(await steady(watch))
        results: list[tuple[Injected, Judgement]] = []
        for step in experiment.steps:
            results.append(await _run_step(step, hands, watch, narrator))
            if not results[-1][1].recovered:
                break
    return _act(experiment, results)


async def steady(watch: GuardWatch, within: float = STEADY_WITHIN) -> GroupSeen:
    """Wait until the group is Running and has stepped. Raises TransientError with its phase when it does not."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    stepless_until: float | None = None
    while (now := loop.time()) < deadline:
        group = watch.seen
        if group is None or group.phase != "Running":
            stepless_until = None
        elif group.step is not None:
            return group
        elif now > (stepless_until := stepless_until or now + STEPLESS_WITHIN):
            raise TransientError(f"the ranks run, but told no step in {STEPLESS_WITHIN:.0f} s: {HOOK_HINT}")
        await asyncio.sleep(LOOK_EVERY)
    phase = watch.seen.phase if watch.seen else "not reported"
    raise TransientError(f"the job is not Running within {within:.0f} s (phase {phase}); see 'kubectl describe guard'")


async def _run_step(step: Step, hands: Hands, watch: GuardWatch, narrator: Narrator) -> tuple[Injected, Judgement]:
    before = watch.seen
    assert before is not None  # noqa: S101 - steady() returned it
    injected = Injected(time.time(), before, None)
    for injection in step.inject:
        injected = Injected(time.time(), before, None)
        narrator.say("broke", await hands.inject(injection, before))
    injected = Injected(injected.at, before, hands.deadline)
    if step.expect is None:
        return injected, Judgement(recovered=True, pending=False, reason="")
    judgement = Judgement(recovered=False, pending=True, reason="")
    while judgement.pending:
        await asyncio.sleep(LOOK_EVERY)
        if watch.seen is not None:
            narrator.group(watch.seen)
        judgement = judge(step.expect, injected, watch.seen, time.time())
    narrator.judged(judgement)
    return injected, judgement


def _act(experiment: Experiment, results: list[tuple[Injected, Judgement]]) -> Act:
    injected, measured = results[min(experiment.measured, len(results) - 1)]
    failed = next((judgement for _, judgement in results if not judgement.recovered), None)
    incident = measured.incident
    return Act(
        name=experiment.name,
        title=experiment.title,
        recovered=failed is None,
        reason=(failed or measured).reason,
        fault=", ".join(injection.fault for injection in experiment.steps[experiment.measured].inject),
        decision=incident.decision if incident else "",
        why=incident.why if incident else measured.reason,
        injected_at=injected.at,
        detected_after_s=measured.detected_after,
        lost_steps=incident.lost_steps if incident else None,
        time_to_first_step_s=measured.first_step_after,
        reached_after_s=measured.reached_after,
        resumed=incident.resumed if incident else None,
    )
