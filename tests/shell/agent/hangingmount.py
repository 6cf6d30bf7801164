"""`unshare --mount python hangingmount.py FOLDER`: a real file system that answers statfs only when it likes.

Mounts a FUSE on FOLDER in a mount namespace of its own, so that nobody else can hang in it, and probes it. Prints one
JSON object: what the probe said while it answered, hung, hung again, and answered again; and the state of the child
that was killed while the kernel held it.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import struct
import sys
from pathlib import Path
from threading import Thread
from typing import Any

from rlguard.io.mounts import MountProbe

INIT, STATFS = 26, 17
NO_REPLY = (2, 36, 42)  # forget, interrupt, forget many
ENOSYS = -38
MS_NOSUID = 2
DETACH = 2


class SilentFuse:
    """Serves one mount; while `silent`, statfs is read and not answered, so that who asks cannot even be killed."""

    def __init__(self, folder: str) -> None:
        self.silent = False
        self._folder = folder.encode()
        self._waiting: list[int] = []
        self._device = os.open("/dev/fuse", os.O_RDWR)
        self._libc = ctypes.CDLL(None, use_errno=True)
        options = f"fd={self._device},rootmode=40000,user_id=0,group_id=0".encode()
        if self._libc.mount(b"hanging", self._folder, b"fuse.hanging", MS_NOSUID, options) != 0:
            raise OSError(ctypes.get_errno(), "mount")
        Thread(target=self._serve, daemon=True).start()

    def speak(self) -> None:
        """Answer what waits, and from now on."""
        self.silent = False
        for unique in self._waiting:
            self._reply(unique, self._space())
        self._waiting.clear()

    def close(self) -> None:
        """Unmount."""
        self._libc.umount2(self._folder, DETACH)

    def _serve(self) -> None:
        while True:
            try:
                request = os.read(self._device, 1 << 17)
            except OSError:
                return
            operation, unique = struct.unpack_from("<IQ", request, 4)
            self._answer(operation, unique)

    def _answer(self, operation: int, unique: int) -> None:
        if operation == INIT:
            self._reply(unique, struct.pack("<IIIIHHIIHHI7I", 7, 31, 65536, 0, 12, 10, 65536, 1, 0, 0, 0, *[0] * 7))
        elif operation == STATFS and self.silent:
            self._waiting.append(unique)
        elif operation == STATFS:
            self._reply(unique, self._space())
        elif operation not in NO_REPLY:
            self._reply(unique, b"", ENOSYS)

    def _space(self) -> bytes:
        return struct.pack("<QQQQQIIII6I", 1000, 500, 400, 100, 50, 4096, 255, 4096, 0, *[0] * 6)

    def _reply(self, unique: int, body: bytes, error: int = 0) -> None:
        os.write(self._device, struct.pack("<IiQ", 16 + len(body), error, unique) + body)


def state(pid: int) -> str:
    """The state of a process: D is one that the kernel holds."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def observe(folder: str) -> dict[str, Any]:
    """The whole story."""
    fuse, probe = SilentFuse(folder), MountProbe(folder)
    story: dict[str, Any] = {"first": repr(await probe.ask(20.0))}
    pid = probe._child.pid
    assert pid is not None
    fuse.silent = True
    story["hung"] = repr(await probe.ask(0.5))
    story["stuck"] = probe.stuck
    story["state"] = state(pid)
    story["again"] = repr(await probe.ask(20.0))
    fuse.speak()
    await asyncio.gather(*probe._child._dying)
    story["last"] = repr(await probe.ask(20.0))
    await probe.close()
    fuse.close()
    return story


if __name__ == "__main__":
    print(json.dumps(asyncio.run(observe(sys.argv[1]))))  # noqa: T201 - this is its answer
