"""What the agent keeps on its node's disk: a restart on the same boot forgets nothing and sees nothing twice."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Final, TypeVar

import structlog

from rlguard.errors import BadWireError
from rlguard.health.assess import Memory
from rlguard.health.cloud import Announced
from rlguard.health.faults import Fault
from rlguard.wire import from_json, to_json

T = TypeVar("T")

FILE: Final = "state.json"
EVERY: Final = 5.0
"""A position in the kernel log that moved alone is written this often, in seconds; a fault at once."""
SIZE_LIMIT: Final = 1 << 20


def load(folder: Path) -> Memory | None:
    """What was kept, None if nothing usable was: then the kernel log is read again from its start."""
    return read_record(folder, FILE, Memory)


def read_record(folder: Path, name: str, kind: type[T]) -> T | None:
    """What a file of the folder holds, None if it is no `kind`."""
    try:
        with (folder / name).open("rb") as file:
            value = json.loads(file.read(SIZE_LIMIT))
        return from_json(kind, value)
    except (OSError, ValueError, RecursionError, BadWireError):
        return None


class Keeper:
    """Writes the newest memory, in a thread; a disk that is full or hung costs the memory and nothing else."""

    def __init__(self, folder: Path, log: structlog.stdlib.BoundLogger) -> None:
        self.problem: str | None = None
        self._folder = folder
        self._log = log
        self._newest: Memory | None = None
        self._kept: Memory | None = None
        self._urgent = asyncio.Event()

    def keep(self, memory: Memory) -> None:
        """Keep this instead of what was kept before."""
        if self._newest is None or _gist(memory) != _gist(self._newest):
            self._urgent.set()
        self._newest = memory

    async def run(self) -> None:
        """Write for ever, one write at a time."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EVERY):
                    await self._urgent.wait()
            self._urgent.clear()
            if self._newest is not None and self._newest != self._kept:
                await self._write(self._newest)

    async def _write(self, memory: Memory) -> None:
        text = json.dumps(to_json(memory))
        try:
            await asyncio.to_thread(replace, self._folder, FILE, text)
        except OSError as error:
            if self.problem is None:
                self._log.warning("state cannot be kept; after a restart the kernel log is read anew", error=str(error))
            self.problem = str(error)
            await asyncio.sleep(EVERY)
            return
        self._kept, self.problem = memory, None


def _gist(memory: Memory) -> tuple[tuple[Fault, ...], tuple[Announced, ...], int, tuple[tuple[str, str], ...]]:
    seen = tuple((one.fault.code, one.fault.device) for one in memory.seen)  # their words may change with each look
    return tuple(standing.fault for standing in memory.faults), memory.cloud, memory.gaps, seen


def replace(folder: Path, name: str, text: str) -> None:
    """Write a file of the folder that appears whole or not at all. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{name}.tmp"
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(folder / name)
