"""The wall clock of the node, compared with the clock that never steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from rlguard.health.assess import Fact, Observed, Source
from rlguard.health.clock_jump import faults, look
from rlguard.io.clock import boottime, wall

EVERY: Final = 5.0
AT_ONCE: Final = 0.5
"""Seconds between the two readings; with more this process was held up between them, and they say nothing."""


async def watch_clocks(
    tell: Callable[[Fact], None], real: Callable[[], float] = wall, boot: Callable[[], float] = boottime
) -> None:
    """Compare for ever."""
    clocks = None
    while True:
        before, now = boot(), real()
        after = boot()
        if after - before <= AT_ONCE:
            clocks = look(clocks, now, before)
            tell(Observed(Source.HOST, after, faults(clocks, after)))
        await asyncio.sleep(EVERY)
