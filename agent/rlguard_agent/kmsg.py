"""The kernel log, followed on the event loop, record by record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from rlguard.health.assess import CannotLook, Fact, KernelRead, Source
from rlguard.health.catalogue import Catalogue
from rlguard.health.kmsg import Gathered, gather
from rlguard.health.lines.dispatch import worth_reading
from rlguard.io.clock import boottime
from rlguard.io.kmsg import Log, open_log, readable

BATCH: Final = 256
"""Records read before the rest of the agent gets its turn."""
IDLE: Final = 3.0
"""Seconds without a record after which the source says that it looked and there is nothing new."""
REOPEN: Final = 1.0


class KernelSource:
    """Follows the kernel log from `position` on, for ever; what it finds it tells as KernelRead."""

    def __init__(
        self,
        place: str,
        catalogue: Catalogue,
        position: int | None,
        tell: Callable[[Fact], None],
        *,
        kernel_only: bool,
    ) -> None:
        self.records = 0
        self.lost = 0
        self.gaps = 0
        self.garbage = 0
        self._place = place
        self._catalogue = catalogue
        self._position = position
        self._tell = tell
        self._kernel_only = kernel_only
        self._newest: int | None = None

    async def run(self) -> None:
        """Open, follow, open again. A log that cannot be opened is told, with what to do, and tried again."""
        while True:
            try:
                log = await open_log(self._place)
            except OSError as error:
                self._tell(CannotLook(Source.KERNEL, self._advice(error)))
            else:
                await self._follow(log)
            await asyncio.sleep(REOPEN)

    def _advice(self, error: OSError) -> str:
        return f"{self._place} cannot be read ({error}); the agent's container must be privileged to read /dev/kmsg"

    async def _follow(self, log: Log) -> None:
        self._newest = None
        try:
            while True:
                more = self._read_batch(log)
                if not more and self._is_another_log():
                    self._start_over()
                    return
                await (asyncio.sleep(0) if more else readable(log.fileno(), IDLE))
        except OSError as error:
            self._tell(CannotLook(Source.KERNEL, self._advice(error)))
        finally:
            log.close()

    def _is_another_log(self) -> bool:
        """True when the log ends before the position: that is none of this log."""
        return self._position is not None and self._newest is not None and self._newest < self._position

    def _start_over(self) -> None:
        self._position = None
        self.gaps += 1
        self._tell(KernelRead(boottime(), None, (), 1, caught_up=False, anew=True))

    def _read_batch(self, log: Log) -> bool:
        """Read what is there, at most BATCH records; true when more may be waiting."""
        packets: list[bytes] = []
        try:
            while len(packets) < BATCH:
                packets.append(log.read())
        except BlockingIOError:
            self._sum_up(packets, caught_up=True)
            return False
        except OSError:
            self._sum_up(packets, caught_up=False)
            raise
        self._sum_up(packets, caught_up=False)
        return True

    def _sum_up(self, packets: list[bytes], *, caught_up: bool) -> None:
        gathered = gather(self._position, packets, kernel_only=self._kernel_only, about=worth_reading)
        self._position = gathered.position
        self._newest = self._newest if gathered.newest is None else gathered.newest
        self._count(gathered)
        told = tuple(fact for text, count in gathered.texts.items() for fact in self._catalogue.read_line(text, count))
        self._tell(KernelRead(boottime(), gathered.position, told, gathered.overruns, caught_up))

    def _count(self, gathered: Gathered) -> None:
        self.records += gathered.records
        self.lost += gathered.lost
        self.gaps += gathered.overruns
        self.garbage += gathered.garbage
