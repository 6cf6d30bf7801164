"""The loop that drives a core, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from rlguard.decision import Decision
from rlguard.drive import IDLE_WAIT, LEAST_WAIT, QUEUE_LIMIT, Driver

pytestmark = pytest.mark.looptime

View = tuple[int, ...]


def fold(view: View, fact: int) -> View:
    return (*view, fact)


class Rig:
    """A core that remembers its facts, and what it was asked and told to do."""

    def __init__(self, wake_at: Callable[[float], float | None] = lambda _: None) -> None:
        self.decided: list[tuple[View, float]] = []
        self.performed: list[Decision] = []
        self.failure: Exception | None = None
        self._wake_at = wake_at
        self.driver: Driver[View, int] = Driver((), fold, self.decide, self.perform, now)

    def decide(self, view: View, moment: float) -> Decision:
        """Remember the question."""
        self.decided.append((view, moment))
        return Decision((len(view),), None, self._wake_at(moment))

    async def perform(self, decision: Decision) -> None:
        """Remember the order."""
        self.performed.append(decision)
        if self.failure is not None:
            raise self.failure

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Drive."""
        task = asyncio.create_task(self.driver.run())
        try:
            await asyncio.sleep(0)
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_it_decides_before_any_fact_and_then_once_a_second() -> None:
    rig = Rig()
    async with rig.running():
        await asyncio.sleep(3 * IDLE_WAIT + 0.5)
    assert [moment for _, moment in rig.decided] == pytest.approx([0.0, 1.0, 2.0, 3.0])


async def test_a_fact_is_decided_on_at_once() -> None:
    rig = Rig()
    async with rig.running():
        await asyncio.sleep(0.3)
        rig.driver.tell(7)
        await asyncio.sleep(0.1)
    view, moment = rig.decided[1]
    assert view == (7,)
    assert moment == pytest.approx(0.3)
    assert [decision.actions for decision in rig.performed] == [(0,), (1,)]


async def test_facts_that_came_together_are_one_decision_in_their_order() -> None:
    rig = Rig()
    async with rig.running():
        for fact in range(5):
            rig.driver.tell(fact)
        await asyncio.sleep(0.1)
    assert [view for view, _ in rig.decided] == [(), (0, 1, 2, 3, 4)]


async def test_it_wakes_when_the_decision_asked_for_it() -> None:
    rig = Rig(wake_at=lambda moment: moment + 0.25)
    async with rig.running():
        await asyncio.sleep(0.6)
    assert [moment for _, moment in rig.decided] == pytest.approx([0.0, 0.25, 0.5])


async def test_a_wake_up_further_away_than_a_second_is_not_waited_for() -> None:
    rig = Rig(wake_at=lambda moment: moment + 1000)
    async with rig.running():
        await asyncio.sleep(1.5)
    assert len(rig.decided) == 2


async def test_a_moment_gone_by_does_not_starve_the_shell() -> None:
    rig = Rig(wake_at=lambda moment: moment - 1000)
    async with rig.running():
        await asyncio.sleep(100 * LEAST_WAIT)
    assert 2 <= len(rig.decided) <= 102


async def test_a_flood_costs_the_oldest_facts_and_is_counted() -> None:
    rig = Rig()
    for fact in range(QUEUE_LIMIT + 3):
        rig.driver.tell(fact)
    async with rig.running():
        await asyncio.sleep(0.1)
    assert rig.driver.dropped == 3
    assert rig.driver.view == tuple(range(3, QUEUE_LIMIT + 3))


async def test_an_error_of_the_core_or_of_an_action_ends_it() -> None:
    rig = Rig()
    rig.failure = ValueError("broken")
    with pytest.raises(ValueError, match="broken"):
        await rig.driver.run()


async def test_a_cancellation_that_comes_together_with_a_fact_ends_the_loop() -> None:
    """On Python 3.11 `asyncio.wait_for` would swallow it, and a SIGTERM would hang."""
    rig = Rig()
    task = asyncio.create_task(rig.driver.run())
    await asyncio.sleep(0.1)
    rig.driver.tell(1)
    task.cancel()
    await asyncio.sleep(0.1)
    assert task.cancelled()
