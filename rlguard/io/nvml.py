"""NVML for asyncio: asked in a child process with one call in flight, which is killed when it does not answer."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rlguard.errors import BadWireError
from rlguard.health.gpu.snapshot import Hung, Look, Snapshot, Unreadable, XidEvent
from rlguard.io import patience
from rlguard.io.childprocess import ChildProcess
from rlguard.io.clock import boottime
from rlguard.wire import from_json

MOST_STUCK: Final = 2
"""Killed children that the kernel does not let die (state D): after the first one more is started, then none."""
LINE_LIMIT: Final = 1 << 22
COMMAND: Final = (sys.executable, "-m", "rlguard.io.nvmlchild")


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds to wait: for an answer, for the first one of a new child (which initialises the driver: without
    persistence mode that takes seconds for each GPU), for a killed child to die, and between two children.
    """

    answer: float = 10.0
    first: float = 40.0
    reap: float = 1.0
    pause: float = 1.0
    longest_pause: float = 15.0


@dataclass(frozen=True, slots=True)
class Events:
    """Xids that NVML told. `waited` is false where there was nothing to wait for: ask again later."""

    events: tuple[XidEvent, ...]
    waited: bool


class Nvml:
    """The driver whose files are under `root`; `close` it at the end. No method raises for what a driver does."""

    def __init__(self, root: Path, bounds: Patience = Patience(), command: Sequence[str] = COMMAND) -> None:
        self._patience = bounds
        self._lock = asyncio.Lock()
        self._child = ChildProcess((*command, str(root)), LINE_LIMIT, bounds.reap)
        self._fresh_child = False
        self._failures = 0
        self._failed_at = boottime()

    @property
    def stuck(self) -> int:
        """Killed children that have not died yet."""
        return self._child.stuck

    @property
    def pid(self) -> int | None:
        """The child's process id, None without one."""
        return self._child.pid

    async def look(self, *, fresh: bool = False) -> Look:
        """What NVML shows now; `fresh`: initialised anew, as devices that left or came are seen in no other way."""
        answer = await self._ask({"op": "look", "fresh": fresh}, self._patience.answer)
        if not isinstance(answer, dict):
            return answer
        try:
            snapshot = from_json(Snapshot, answer.get("snapshot"))
        except BadWireError as error:
            return Unreadable(f"the NVML process answered what is no snapshot: {error}")
        self._failures = 0
        return snapshot

    async def events(self, seconds: float) -> Events | Hung | Unreadable:
        """The Xids that NVML tells within so many seconds; the first ends the waiting."""
        request = {"op": "events", "milliseconds": int(seconds * 1000)}
        answer = await self._ask(request, seconds + self._patience.answer)
        if not isinstance(answer, dict):
            return answer
        try:
            return from_json(Events, answer)
        except BadWireError as error:
            return Unreadable(f"the NVML process answered what are no events: {error}")

    async def close(self) -> None:
        """End the child, which gives the driver back; one that hangs is killed, one that the kernel holds left to die.

        The next look starts another one.
        """
        async with self._lock:
            await self._child.end()

    async def _ask(self, request: dict[str, Any], within: float) -> dict[str, Any] | Hung | Unreadable:
        async with self._lock:
            try:
                return await self._answered(request, within)
            except BaseException:  # also cancelled: the next call must not read this one's answer
                await self._child.kill()
                raise

    async def _answered(self, request: dict[str, Any], within: float) -> dict[str, Any] | Hung | Unreadable:
        limit = within
        try:
            if not await self._started():
                return Hung(within)
            limit = max(within, self._patience.first) if self._fresh_child else within
            self._fresh_child = False
            line = await patience.within(limit, self._exchange(json.dumps(request).encode() + b"\n"))
        except TimeoutError:
            await self._fail()
            return Hung(limit)
        except (OSError, ValueError) as error:
            await self._fail()
            return Unreadable(f"the NVML process cannot be started or talked to: {error!r:.200}")
        return await self._read(line)

    async def _read(self, line: bytes) -> dict[str, Any] | Unreadable:
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            answer = None
        if isinstance(answer, dict) and not answer.get("over"):
            return Unreadable(str(answer["unreadable"])) if "unreadable" in answer else answer
        # One that has nothing more to say ends by itself: a signal now could take its exit status away.
        status = await self._child.end() if not line else None
        await self._fail()
        if isinstance(answer, dict):
            return Unreadable(str(answer.get("unreadable")))
        if line:
            return Unreadable(f"the NVML process answered no JSON: {line[:100]!r}")
        return Unreadable(
            f"the NVML process died (exit status {status}), maybe inside the driver's library; its last "
            "words are in this process's error output"
        )

    async def _exchange(self, request: bytes) -> bytes:
        self._child.write(request)
        return await self._child.read_line()

    async def _started(self) -> bool:
        """Have a child, a new one if need be; false while too many of them cannot die."""
        if self._child.is_running:
            return True
        await self._pause()
        if self.stuck >= MOST_STUCK:
            return False
        await self._child.start()
        self._fresh_child = True
        return True

    async def _pause(self) -> None:
        if self._failures:
            pause = min(self._patience.longest_pause, self._patience.pause * 2 ** min(self._failures - 1, 16))
            await asyncio.sleep(max(0.0, self._failed_at + pause - boottime()))

    async def _fail(self) -> None:
        await self._child.kill()
        self._failures, self._failed_at = self._failures + 1, boottime()
