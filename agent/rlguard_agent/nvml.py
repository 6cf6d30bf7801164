"""The GPUs, looked at through NVML every ten seconds, and at once after a kick or an Xid that NVML tells."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rlguard.health.assess import CannotLook, Fact, Happened, Observed, Source
from rlguard.health.catalogue import Catalogue
from rlguard.health.gpu.snapshot import Hung, Look
from rlguard.health.gpu.table import builtin_signs
from rlguard.health.gpu.watch import GpuView, Learned, faults, fold, wants_reset, xid_fault
from rlguard.io.clock import boottime
from rlguard.io.driver import SIGNS, has_driver
from rlguard.io.nvml import Events, Nvml, Patience
from rlguard.wire import to_json
from rlguard_agent import state

EVERY: Final = 10.0
AT_LEAST: Final = 1.0
"""Seconds from one look to the next, however often it is kicked."""
EVENTS_FOR: Final = 1.0
"""Seconds of one wait for Xids: a kick is heard this late at most, since there is one call at a time."""
LOOK_FOR_DRIVER: Final = 10.0
FILE: Final = "gpus.json"


@dataclass(frozen=True, slots=True)
class GpuPlace:
    """Where the GPUs are looked at: the driver's root, the folder for what must outlive the process, and the boot.

    `expected`: how many GPUs there must be; None: as many as were seen on this boot. With `wait_for_driver` nothing is
    told before one of `signs`, or the library under the root, says that there is a driver.
    """

    root: Path
    state: Path
    boot_id: str
    expected: int | None = None
    wait_for_driver: bool = False
    signs: tuple[Path, ...] = SIGNS


def is_there(place: GpuPlace) -> bool:
    """True when the GPUs are to be watched: by order, or there is a driver, or there were GPUs on this boot.

    Raises OSError when that cannot be found out.
    """
    return not place.wait_for_driver or bool(_load(place).devices) or has_driver(place.root, place.signs)


class GpuSource:
    """Tells what is wrong with the GPUs, for ever. A driver that hangs is a fault, and never holds up anything else."""

    def __init__(
        self, place: GpuPlace, catalogue: Catalogue, tell: Callable[[Fact], None], patience: Patience | None = None
    ) -> None:
        self.nvml = Nvml(place.root, patience or Patience())
        self._place = place
        self._catalogue = catalogue
        self._tell = tell
        self._view = GpuView(builtin_signs(), _load(place), place.expected)
        self._kicked = asyncio.Event()
        self._kept = self._view.learned
        self._keeping: asyncio.Task[None] | None = None

    def kick(self) -> None:
        """Look again soon: something may have been missed."""
        self._kicked.set()

    async def run(self) -> None:
        """Look for ever."""
        await self._driver()
        try:
            while True:
                last = boottime()
                await self._look()
                await self._rest(last + EVERY)
                await asyncio.sleep(max(0.0, last + AT_LEAST - boottime()))
        finally:
            await self.nvml.close()

    async def _driver(self) -> None:
        """Return once GPUs are to be watched."""
        while True:
            try:
                if await asyncio.to_thread(is_there, self._place):
                    return
            except OSError as error:
                self._tell(CannotLook(Source.GPU, f"whether there is a GPU driver cannot be seen: {error}"))
            await asyncio.sleep(LOOK_FOR_DRIVER)

    async def _look(self) -> None:
        self._kicked.clear()
        began = boottime()
        self._take(await self.nvml.look(fresh=self._view.is_incomplete), began)

    def _take(self, look: Look, at: float) -> None:
        was_hung = self._view.hung is not None
        self._view = fold(self._view, look, at)
        # A driver that hangs is seen to hang once; from then on nothing is seen.
        if not self._view.problem or (isinstance(look, Hung) and not was_hung):
            self._tell(Observed(Source.GPU, at, faults(self._view)))
        if self._view.problem:
            self._tell(CannotLook(Source.GPU, self._view.problem))
        self._keep()

    async def _rest(self, until: float) -> None:
        """Take what NVML tells by itself, until it is time to look again."""
        if wants_reset(self._view):
            await self.nvml.close()  # no GPU is reset while a process has it open
        if self._view.problem or wants_reset(self._view):
            await self._wait(until - boottime())
            return
        while not self._kicked.is_set() and (left := until - boottime()) > 0:
            told = await self.nvml.events(min(left, EVENTS_FOR))
            if not isinstance(told, Events):
                self._take(told, boottime())
                return
            if told.events:
                found = tuple(xid_fault(self._catalogue, event) for event in told.events)
                self._tell(Happened(Source.GPU, boottime(), found))
                self.kick()
            elif not told.waited:
                await self._wait(min(left, EVENTS_FOR))

    async def _wait(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._kicked.wait()

    def _keep(self) -> None:
        """Write what was learned, one write at a time: a disk that hangs costs the memory and nothing else."""
        if self._view.learned != self._kept and (self._keeping is None or self._keeping.done()):
            self._keeping = asyncio.create_task(self._save(self._view.learned))

    async def _save(self, learned: Learned) -> None:
        try:
            await asyncio.to_thread(state.replace, self._place.state, FILE, json.dumps(to_json(learned)))
        except OSError:
            return  # the next look tries again; that the folder cannot be written the agent's state says
        self._kept = learned


def _load(place: GpuPlace) -> Learned:
    """What was learned on this boot, by an earlier life of this agent."""
    learned = state.read_record(place.state, FILE, Learned)
    return learned if learned is not None and learned.boot_id == place.boot_id else Learned(place.boot_id)
