"""The one loop that joins a pure core to the world: wait, fold, decide, perform.

A core is two functions: `fold(view, fact)` and `decide(view, now)`. The shell tells facts; the loop asks for
a decision after each fact and at the moment the last decision asked for. What an action led to comes back as a fact.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from rlguard.decision import Decision

V = TypeVar("V")
F = TypeVar("F")

QUEUE_LIMIT: Final = 1024
"""Facts that may wait. Facts are snapshots, so when a shell is flooded the oldest can go: a newer one follows."""
IDLE_WAIT: Final = 1.0
"""Decide at least this often, in seconds, even if no fact came and no wake-up was asked for."""
LEAST_WAIT: Final = 0.01
"""And no more often than this without a fact: a core that asks for a moment gone by must not starve the shell."""


class Driver(Generic[V, F]):
    """Runs one core. `now` is the shell's clock (CLOCK_BOOTTIME seconds), `perform` starts the actions."""

    def __init__(
        self,
        view: V,
        fold: Callable[[V, F], V],
        decide: Callable[[V, float], Decision],
        perform: Callable[[Decision], Awaitable[None]],
        now: Callable[[], float],
    ) -> None:
        self.view = view
        self.dropped = 0
        self._fold = fold
        self._decide = decide
        self._perform = perform
        self._now = now
        self._facts: asyncio.Queue[F] = asyncio.Queue(QUEUE_LIMIT)

    def tell(self, fact: F) -> None:
        """Hand over a fact, from any task of the same loop. Never waits; counts in `dropped` what a flood costs."""
        if self._facts.full():
            self._facts.get_nowait()
            self.dropped += 1
        self._facts.put_nowait(fact)

    async def run(self) -> None:
        """Drive for ever. An error of the core or of `perform` ends it: the process restarts and starts afresh."""
        while True:
            decision = self._decide(self.view, self._now())
            await self._perform(decision)
            await self._wait(decision.wake_at)

    async def _wait(self, wake_at: float | None) -> None:
        patience = IDLE_WAIT if wake_at is None else min(IDLE_WAIT, max(LEAST_WAIT, wake_at - self._now()))
        try:
            async with asyncio.timeout(patience):
                fact = await self._facts.get()
        except TimeoutError:
            return
        self.view = self._fold(self.view, fact)
        while not self._facts.empty():
            self.view = self._fold(self.view, self._facts.get_nowait())
