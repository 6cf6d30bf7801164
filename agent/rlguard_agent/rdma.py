"""The RDMA ports: looked at every two seconds, and at once when the kernel says that a link or an address changed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from rlguard.health.assess import CannotLook, Fact, Observed, Source
from rlguard.health.rdma.learned import Expectation, Memory
from rlguard.health.rdma.snapshot import read_snapshot
from rlguard.health.rdma.table import Code, builtin
from rlguard.health.rdma.watch import View, faults, fold, fold_hang, recall, remember, unknown_slopes
from rlguard.io.clock import boottime
from rlguard.io.netlink import drain, open_link_events
from rlguard.io.rdma import has_devices
from rlguard.io.rdmaclient import WITHIN_S, CannotReadError, HungError, RdmaClient
from rlguard.wire import to_json
from rlguard_agent import state

FILE: Final = "rdma.json"
EVERY: Final = 2.0
LEAST: Final = 0.5
"""Seconds between two looks at least: pods' own links come and go, and each time there is word of it."""
COUNTERS_EVERY: Final = 10.0
"""Counters are read more rarely: each of them may be a command to the card."""
APPEARED_EVERY: Final = 10.0
WRITE_AGAIN: Final = 30.0


@dataclass(frozen=True, slots=True)
class RdmaPlace:
    """What to watch: `mode` is `on`, or `auto`: only once there are RDMA devices. `boot_id` is this boot's."""

    mode: str
    sysfs: Path
    expected: Expectation
    boot_id: str
    state: Path


def is_there(place: RdmaPlace) -> bool:
    """True when the ports are to be watched: by order, or there are devices, or there were on this boot."""
    if place.mode == "on" or has_devices(place.sysfs):
        return True
    kept = state.read_record(place.state, FILE, Memory)
    return kept is not None and kept.boot_id == place.boot_id and bool(kept.ports)


class RdmaSource:
    """Tells what is wrong with the ports, all of it each time. `kick` asks for a look now."""

    def __init__(
        self,
        place: RdmaPlace,
        tell: Callable[[Fact], None],
        log: structlog.stdlib.BoundLogger,
        events: Callable[[], socket.socket] = open_link_events,
        within_s: float = WITHIN_S,
    ) -> None:
        self.looks = 0
        self._place = place
        self._tell = tell
        self._log = log
        self._open_events = events
        self._within_s = within_s
        self._kicked = asyncio.Event()
        self._client = RdmaClient(place.sysfs, place.expected.gid_index)
        self._table = builtin()
        self._counters = tuple(rule.name for rule in self._table.rules)
        self._counters_due = 0.0
        self._kept = state.read_record(place.state, FILE, Memory)
        self._view = recall(View(self._table, place.expected), self._kept, place.boot_id, boottime())
        self._unknown: tuple[tuple[str, str], ...] = ()
        self._writing: asyncio.Task[None] | None = None
        self._write_due = 0.0

    def kick(self) -> None:
        """Look as soon as may be."""
        self._kicked.set()

    async def run(self) -> None:
        """Watch for ever."""
        await self._appeared()
        try:
            with self._listening():
                while True:
                    self._kicked.clear()
                    await self._look()
                    await self._pause()
        finally:
            await self._client.close()

    async def _appeared(self) -> None:
        while True:
            if is_there(self._place):
                return
            await asyncio.sleep(APPEARED_EVERY)

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        try:
            events = self._open_events()
        except OSError as error:
            self._log.warning("no word of link changes; ports are looked at by the clock alone", error=str(error))
            yield
            return
        loop = asyncio.get_running_loop()
        loop.add_reader(events, self._heard, events)
        try:
            yield
        finally:
            loop.remove_reader(events)
            events.close()

    def _heard(self, events: socket.socket) -> None:
        try:
            if drain(events):
                self.kick()
        except OSError as error:
            asyncio.get_running_loop().remove_reader(events)
            self._log.warning("word of link changes has ended; ports are looked at by the clock", error=str(error))

    async def _pause(self) -> None:
        await asyncio.sleep(LEAST)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EVERY - LEAST):
                await self._kicked.wait()

    async def _look(self) -> None:
        self.looks += 1
        began = boottime()
        due = began >= self._counters_due
        try:
            files = await self._client.look(self._counters if due else (), self._within_s)
        except HungError as error:
            self._view = fold_hang(self._view, error.device, boottime())
            self._tell_hang(error)
        except CannotReadError as error:
            self._tell(CannotLook(Source.RDMA, str(error)))
        else:
            if due:
                self._counters_due = boottime() + COUNTERS_EVERY
            self._view = fold(self._view, read_snapshot(files), began)
            self._tell(Observed(Source.RDMA, began, faults(self._view)))
            self._log_unknown()
            self._keep()

    def _tell_hang(self, error: HungError) -> None:
        seen = faults(self._view)
        if any(fault.code == Code.HUNG.value for fault in seen):
            self._tell(Observed(Source.RDMA, boottime(), seen))
        else:
            self._tell(CannotLook(Source.RDMA, f"{error}; if it lasts, the card or its driver hangs: reboot the node"))

    def _log_unknown(self) -> None:
        unknown = unknown_slopes(self._view)
        if unknown != self._unknown:
            self._log.info("RDMA counters at their highest number: nobody knows whether they rise", counters=unknown)
        self._unknown = unknown

    def _keep(self) -> None:
        """Write what was learned, one write at a time; a disk that is full or hung costs the memory and no look."""
        memory = remember(self._view, self._place.boot_id)
        idle = self._writing is None or self._writing.done()
        if memory != self._kept and idle and boottime() >= self._write_due:
            self._writing = asyncio.create_task(self._write(memory), name="rdma-memory")

    async def _write(self, memory: Memory) -> None:
        try:
            await asyncio.to_thread(state.replace, self._place.state, FILE, json.dumps(to_json(memory)))
        except OSError as error:
            self._write_due = boottime() + WRITE_AGAIN
            self._log.warning("what was learned of the RDMA ports cannot be kept over a restart", error=str(error))
            return
        self._kept = memory
