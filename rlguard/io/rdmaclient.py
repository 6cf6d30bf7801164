"""Looks at the RDMA ports for asyncio: each runs in a child process that is killed when it does not return."""

from __future__ import annotations

import json
import sys
from subprocess import DEVNULL
from typing import TYPE_CHECKING, Any, Final

from rlguard.errors import TransientError
from rlguard.io import patience
from rlguard.io.childprocess import ChildProcess

if TYPE_CHECKING:
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
        index = () if gid_index is None else (str(gid_index),)
        self._child = ChildProcess((*command, str(sysfs), *index), _LINE_BYTES, _REAP_S, DEVNULL)
        self._device = ""

    async def look(self, counters: Sequence[str] = (), within_s: float = WITHIN_S) -> Mapping[str, str]:
        """Path -> text, see `Reader.read`. Raises HungError or CannotReadError."""
        await self._have_child()
        self._device = "the list of devices"
        try:
            request = json.dumps({"counters": list(counters)}).encode() + b"\n"
            answer = await patience.within(within_s, self._answer(request))
        except TimeoutError:
            await self._child.kill()
            raise HungError(self._device) from None
        except BaseException:  # also cancelled: the next look must not read this one's answer
            await self._child.kill()
            raise
        files = answer.get("files")
        if not isinstance(files, dict) or not all(isinstance(text, str) for text in files.values()):
            raise CannotReadError(f"{self._sysfs} cannot be read ({answer.get('error')}); {self._advice}")
        return files

    async def close(self) -> None:
        """End the child. One that the kernel holds is left to die later."""
        await self._child.kill()

    async def _have_child(self) -> None:
        if self._child.is_running:
            return
        if self._child.stuck >= MOST_STUCK:
            raise HungError(self._device)
        try:
            await self._child.start()
        except OSError as error:
            raise CannotReadError(f"no process to read {self._sysfs} can be started: {error}") from error

    async def _answer(self, request: bytes) -> dict[str, Any]:
        self._child.write(request)
        while True:
            try:
                answer = json.loads(await self._child.read_line())
            except (ValueError, RecursionError) as error:
                raise CannotReadError(f"the process that reads {self._sysfs} ended in the middle of a look") from error
            if not isinstance(answer, dict):
                raise CannotReadError(f"the process that reads {self._sysfs} answered {answer!r:.60}, no object")
            if "device" not in answer:
                return answer
            self._device = str(answer["device"])
