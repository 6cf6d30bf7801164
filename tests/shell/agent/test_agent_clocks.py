"""The agent's look at the clocks, with clocks of our own."""

from __future__ import annotations

import asyncio

import pytest
from waiting import until

from rlguard.health.assess import Fact, Observed
from rlguard_agent import clocks
from rlguard_agent.clocks import watch_clocks


async def test_a_stepped_wall_clock_is_told_and_a_pause_between_the_readings_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clocks, "EVERY", 0.001)
    told: list[list[str]] = []
    now, step, pause = 1000.0, 0.0, 0.0

    def boot() -> float:
        nonlocal now
        now += 0.01 + pause
        return now

    def take(fact: Fact) -> None:
        assert isinstance(fact, Observed)
        told.append([fault.code for fault in fact.faults])

    task = asyncio.create_task(watch_clocks(take, lambda: 1.7e9 + now + step, boot))
    try:
        await until(lambda: len(told) > 3)
        pause = 60.0
        count = len(told)
        await asyncio.sleep(0.05)
        assert len(told) <= count + 1
        pause = 0.0
        await until(lambda: len(told) > count + 3)
        assert not any(told)
        step = 100.0
        await until(lambda: told[-1] == ["clock-jump"])
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
