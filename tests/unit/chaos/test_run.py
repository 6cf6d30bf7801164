"""Waiting for a job to be worth breaking, in virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import cast

import pytest
from test_judge import BEFORE

from rlguard.errors import TransientError
from rlguard_chaos.judge import GroupSeen
from rlguard_chaos.run import GuardWatch, steady

pytestmark = pytest.mark.looptime


@dataclass
class Shown:
    """What a Guard shows, as a test sets it."""

    seen: GroupSeen | None = None


async def waited(shown: Shown, within: float = 180.0) -> GroupSeen:
    return await steady(cast("GuardWatch", shown), within)


async def test_a_job_that_runs_and_has_stepped_is_steady_at_once() -> None:
    """The usual case."""
    assert await waited(Shown(BEFORE)) is BEFORE


async def test_a_job_that_runs_without_ever_telling_a_step_is_named_long_before_the_wait_is_over() -> None:
    """What a person sees who forgot the hook."""
    started = asyncio.get_running_loop().time()
    with pytest.raises(TransientError, match="told no step in 40 s: is the training hook at work"):
        await waited(Shown(replace(BEFORE, step=None)))
    assert asyncio.get_running_loop().time() - started < 50


async def test_the_time_without_steps_counts_from_the_last_time_that_the_job_began_to_run() -> None:
    """A job that starts again may need its time again."""
    shown = Shown(replace(BEFORE, step=None))
    waiting = asyncio.create_task(waited(shown))
    await asyncio.sleep(30)
    shown.seen = replace(BEFORE, phase="Starting", step=None)
    await asyncio.sleep(5)
    shown.seen = replace(BEFORE, step=None)
    await asyncio.sleep(30)
    shown.seen = BEFORE
    assert await waiting is BEFORE


async def test_a_job_that_never_runs_is_named_with_its_phase() -> None:
    """And one that no Guard shows at all."""
    with pytest.raises(TransientError, match=r"not Running within 180 s .phase Pending"):
        await waited(Shown(replace(BEFORE, phase="Pending")))
    with pytest.raises(TransientError, match="phase not reported"):
        await waited(Shown())
