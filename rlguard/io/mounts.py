"""The mount table, and probes of single mounts that no hanging file system can hold."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rlguard.health.storage import Hung, NotProbed, Probed, read_reply
from rlguard.io import patience
from rlguard.io.childprocess import ChildProcess

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
        self._child = ChildProcess((*command, point), _LINE_BYTES, _REAP_S)

    @property
    def stuck(self) -> bool:
        """Whether a killed child is still there."""
        return self._child.stuck > 0

    async def ask(self, seconds: float) -> Probed:
        """What statfs says, Hung if it says nothing for so long. Never raises."""
        if self.stuck:
            return Hung()
        try:
            line = await patience.within(seconds, self._line())
        except TimeoutError:
            await self._child.kill()
            return Hung()
        except (OSError, ValueError) as error:
            await self._child.kill()
            return NotProbed(f"its probe failed: {error!r:.120}")
        except asyncio.CancelledError:
            await self._child.kill()
            raise
        if not line.endswith(b"\n"):
            await self._child.kill()
            return NotProbed("its probe ended in the middle of a call")
        return read_reply(line)

    async def close(self) -> None:
        """End the child. One that the kernel holds is left to die later."""
        await self._child.kill()

    async def _line(self) -> bytes:
        if not self._child.is_running:
            await self._child.start()
        self._child.write(b"\n")
        return await self._child.read_line()
