"""The machine itself: jumps of its wall clock, and its shutdown where systemd can be asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rlguard.health import clock_jump
from rlguard.health.assess import CannotLook, Fact, Observed, Source
from rlguard.health.faults import Fault
from rlguard.health.shutdown import announced
from rlguard.io.clock import boottime, wall

if TYPE_CHECKING:
    from rlguard.io.logind import Logind

EVERY: Final = 5.0
AGAIN: Final = 10.0
"""Seconds until logind is tried again."""
LOOK_WHO: Final = 0.2
AT_ONCE: Final = 0.5
"""Seconds between the two readings; with more this process was held up between them, and they say nothing."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """The two clocks: Unix seconds, and seconds since boot."""

    wall: Callable[[], float] = wall
    boot: Callable[[], float] = boottime


class HostSource:
    """`bus`: D-Bus' socket, None where there is none; `needed()`: somebody on the node still has state to save."""

    def __init__(
        self, bus: Path | None, needed: Callable[[], bool], tell: Callable[[Fact], None], clocks: Clocks = Clocks()
    ) -> None:
        self._bus = bus
        self._needed = needed
        self._tell = tell
        self._clocks = clocks
        self._seen: clock_jump.Clocks | None = None
        self._shutdown: Fault | None = None
        self._delay = 0
        self._problem = "systemd has not been asked yet" if bus is not None else ""
        self._said = asyncio.Event()

    async def run(self) -> None:
        """Look for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_clocks(), name="clocks")
            if self._bus is not None:
                tasks.create_task(self._watch_logind(self._bus), name="logind")

    async def _watch_clocks(self) -> None:
        while True:
            before, now = self._clocks.boot(), self._clocks.wall()
            if self._clocks.boot() - before <= AT_ONCE:
                self._seen = clock_jump.look(self._seen, now, before)
                self._conclude()
            await asyncio.sleep(EVERY)

    async def _watch_logind(self, socket: Path) -> None:
        # Loaded only where there is a D-Bus: the library costs 4 MiB.
        from rlguard.io.logind import Logind  # noqa: PLC0415 - see above

        while True:
            try:
                async with Logind(socket, self._take) as logind:
                    await self._follow(logind)
            except OSError as error:
                self._problem = f"systemd cannot be asked about a shutdown: {error!s:.200}; see RLGUARD_AGENT_DBUS"
                self._conclude()
            await asyncio.sleep(AGAIN)

    async def _follow(self, logind: Logind) -> None:
        """Until logind is gone, which raises OSError. Between two signals it is asked for a sign of life."""
        self._delay = await logind.delay()
        self._take(await logind.preparing())
        while True:
            self._delay, self._problem = await logind.delay(), ""
            self._conclude()
            if self._shutdown is None and not logind.inhibiting:
                await logind.inhibit()
            if self._shutdown is not None and not self._needed():
                logind.release()
            await self._pause(EVERY if self._shutdown is None else LOOK_WHO)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._said.wait()
        self._said.clear()

    def _take(self, about_to_go: bool) -> None:
        if about_to_go != (self._shutdown is not None):
            self._shutdown = announced(self._clocks.boot(), self._delay) if about_to_go else None
            self._said.set()
            self._conclude()

    def _conclude(self) -> None:
        now = self._clocks.boot()
        jumps = clock_jump.faults(self._seen, now) if self._seen is not None else ()
        if self._problem and self._shutdown is None:
            self._tell(CannotLook(Source.HOST, self._problem))
            return
        self._tell(Observed(Source.HOST, now, jumps if self._shutdown is None else (*jumps, self._shutdown)))
