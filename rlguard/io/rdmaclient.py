"""Looks at the RDMA ports for asyncio: each runs in a child process that is killed when it does not return."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE
from typing import TYPE_CHECKING, Any, Final

from rlguard.errors import TransientError
from rlguard.io import patience

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Mapping, Sequence
    from pathlib import Path

WITHIN_S: Final = 5.0
"""Seconds a look may take; a healthy one takes some milliseconds."""
MOST_STUCK: Final = 4
"""Killed children that the kernel does not let die (D state) before no more are started."""
ADVICE: Final = (
    "set RLGUARD_AGENT_SYSFS to where the node's /sys is, or RLGUARD_AGENT_RDMA to off on a node without RDMA"
)
_REAP_S: Final = 0.5
_LINE_BYTES: Final = 16 << 20


class CannotReadError(TransientError):
    """There is no such tree, or the child failed; the message says what to do."""


class HungError(TransientError):
    """A look did not return; `device` is where it waits."""

    def __init__(self, device: str) -> None:
        super().__init__(f"reading {device} in sysfs does not return")
        self.device = device


class RdmaClient:
    """One machine's tree. One look at a time; `close` it at the end. `advice`: what to do where there is none."""

    def __init__(
        self,
        sysfs: Path,
        gid_index: int | None = None,
        command: Sequence[str] = (sys.executable, "-m", "rlguard.io.rdmachild"),
        advice: str = ADVICE,
    ) -> None:
        self._advice = advice
        self._sysfs = sysfs
        self._command = (*command, str(sysfs), *([] if gid_index is None else [str(gid_index)]))
        self._child: Process | None = None
        self._stuck: set[asyncio.Task[int]] = set()
        self._device = ""

    async def look(self, counters: Sequence[str] = (), within_s: float = WITHIN_S) -> Mapping[str, str]:
        """Path -> text, see `Reader.read`. Raises HungError or CannotReadError."""
        child = await self._running()
        self._device = "the list of devices"
        try:
            request = json.dumps({"counters": list(counters)}).encode() + b"\n"
            answer = await patience.within(within_s, self._answer(child, request))
        except TimeoutError:
            await self._kill()
            raise HungError(self._device) from None
        except BaseException:  # also cancelled: the next look must not read this one's answer
            await self._kill()
            raise
        if "files" not in answer:
            raise CannotReadError(f"{self._sysfs} cannot be read ({answer.get('error')}); {self._advice}")
        files: dict[str, str] = answer["files"]
        return files

    async def close(self) -> None:
        """End the child. One that the kernel holds is left to die later."""
        await self._kill()

    async def _running(self) -> Process:
        if self._child is not None and self._child.returncode is None:
            return self._child
        if len(self._stuck) >= MOST_STUCK:
            raise HungError(self._device)
        try:
            self._child = await asyncio.create_subprocess_exec(
                *self._command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, limit=_LINE_BYTES, start_new_session=True
            )
        except OSError as error:
            raise CannotReadError(f"no process to read {self._sysfs} can be started: {error}") from error
        return self._child

    async def _answer(self, child: Process, request: bytes) -> dict[str, Any]:
        if child.stdin is None or child.stdout is None:
            raise CannotReadError("the process that reads sysfs has no pipes")
        child.stdin.write(request)
        while True:
            try:
                answer: dict[str, Any] = json.loads(await child.stdout.readline())
            except ValueError as error:
                raise CannotReadError(f"the process that reads {self._sysfs} ended in the middle of a look") from error
            if "device" not in answer:
                return answer
            self._device = str(answer["device"])

    async def _kill(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        if child.returncode is None:
            child.kill()
        reaped = asyncio.create_task(child.wait())
        done, _ = await asyncio.wait({reaped}, timeout=_REAP_S)
        if not done:
            self._stuck.add(reaped)
            reaped.add_done_callback(self._stuck.discard)
