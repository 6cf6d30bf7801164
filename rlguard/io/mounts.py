"""The mount table, and probes of single mounts that no hanging file system can hold."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rlguard.health.storage import Hung, NotProbed, Probed, read_reply
from rlguard.io import patience

TABLE: Final = Path("/proc/self/mountinfo")
TABLE_LIMIT: Final = 4 << 20
"""Bytes read of the mount table; a line has about 200, and a node some thousand."""
COMMAND: Final = (sys.executable, "-I", "-S", str(Path(__file__).with_name("mountchild.py")))
_LINE_BYTES: Final = 4096
_REAP_S: Final = 0.2


def mount_table(path: Path = TABLE) -> str:
    """The text of the mount table. Raises OSError."""
    with path.open("rb") as file:
        return file.read(TABLE_LIMIT).decode("utf-8", "replace")


class MountProbe:
    """Asks one mount, by a child process that is killed when it does not answer. One call at a time.

    A child that survives even that (D state) is waited for: until the kernel lets go of it, the mount hangs, and no
    other is started.
    """

    def __init__(self, point: str, command: Sequence[str] = COMMAND) -> None:
        self.point = point
        self._command = (*command, point)
        self._child: Process | None = None
        self._dying: asyncio.Task[None] | None = None

    @property
    def stuck(self) -> bool:
        """Whether a killed child is still there."""
        return self._dying is not None and not self._dying.done()

    async def ask(self, seconds: float) -> Probed:
        """What statfs says, Hung if it says nothing for so long. Never raises."""
        if self.stuck:
            return Hung()
        try:
            line = await patience.within(seconds, self._line())
        except TimeoutError:
            await self._kill()
            return Hung()
        except (OSError, ValueError) as error:
            await self._kill()
            return NotProbed(f"its probe failed: {error!r:.120}")
        except asyncio.CancelledError:
            await self._kill()
            raise
        if not line.endswith(b"\n"):
            await self._kill()
            return NotProbed("its probe ended in the middle of a call")
        return read_reply(line)

    async def close(self) -> None:
        """End the child. One that the kernel holds is left to die later."""
        await self._kill()

    async def _line(self) -> bytes:
        if self._child is None:
            self._child = await asyncio.create_subprocess_exec(
                *self._command, stdin=PIPE, stdout=PIPE, limit=_LINE_BYTES, start_new_session=True
            )
        if self._child.stdin is None or self._child.stdout is None:
            raise OSError("the probe has no pipes")
        self._child.stdin.write(b"\n")
        return await self._child.stdout.readline()

    async def _kill(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        if child.returncode is None:
            child.kill()
        self._dying = asyncio.create_task(_end(child))
        await asyncio.wait({self._dying}, timeout=_REAP_S)


async def _end(child: Process) -> None:
    """Wait for a killed child, and take what it left in its pipe, which else is never closed."""
    await child.communicate()
