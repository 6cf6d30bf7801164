"""A child process that answers lines with lines, for calls that may hang: it can be killed, or left to the kernel."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio.subprocess import PIPE
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Sequence


class ChildProcess:
    """At most one process of this command at a time; whoever did not take a whole answer must `kill` it.

    `line_bytes`: the longest line that it may answer. `reap_s`: seconds that a killed one is waited for; one that the
    kernel does not let die (state D) is `stuck` from then on. `stderr`: as for subprocess; None: this process's own.
    """

    def __init__(self, command: Sequence[str], line_bytes: int, reap_s: float = 1.0, stderr: int | None = None) -> None:
        self._command = tuple(command)
        self._line_bytes = line_bytes
        self._reap_s = reap_s
        self._stderr = stderr
        self._process: Process | None = None
        self._dying: set[asyncio.Task[int]] = set()

    @property
    def stuck(self) -> int:
        """Killed processes that have not died yet."""
        return len(self._dying)

    @property
    def pid(self) -> int | None:
        """The process id, None without one."""
        return None if self._process is None else self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether there is one that has not ended."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start one, in place of what there was. Raises OSError."""
        await self.kill()
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=self._stderr,
            limit=self._line_bytes,
            start_new_session=True,
        )

    def write(self, line: bytes) -> None:
        """Ask something. Raises OSError when there is no process."""
        if self._process is None or self._process.stdin is None:
            raise OSError("it has not been started")
        self._process.stdin.write(line)

    async def read_line(self) -> bytes:
        """The next line; without a newline at its end it is the process's last.

        Raises ValueError for one longer than `line_bytes`, OSError when there is no process.
        """
        if self._process is None or self._process.stdout is None:
            raise OSError("it has not been started")
        return await self._process.stdout.readline()

    async def end(self) -> int | None:
        """Let it end by itself, as it does when its stdin is closed; kill it if it does not. As `kill` returns."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._reap_s):
                    await self._process.wait()
        return await self.kill()

    async def kill(self) -> int | None:
        """Kill it, if there is one. Its exit status; None while the kernel holds it."""
        process, self._process = self._process, None
        if process is None:
            return None
        if process.returncode is None:
            process.kill()
        dying = asyncio.create_task(_exit_status(process))
        # Held from here on: whoever waits below may be cancelled.
        self._dying.add(dying)
        dying.add_done_callback(self._dying.discard)
        await asyncio.wait({dying}, timeout=self._reap_s)
        return process.returncode


async def _exit_status(process: Process) -> int:
    """Wait for the end of a killed one, and take what it left in its pipe, which else is never closed."""
    await process.communicate()
    return await process.wait()
