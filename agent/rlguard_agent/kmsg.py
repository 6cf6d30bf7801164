"""The kernel log, read record by record on the event loop: /dev/kmsg, or a packet socket that behaves like it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Final, Protocol

from rlguard.health.assess import CannotLook, Fact, KernelRead, Source
from rlguard.health.catalogue import Catalogue
from rlguard.health.kmsg import OVERRUN, RECORD_LIMIT, Gathered, gather
from rlguard.health.lines.dispatch import worth_reading
from rlguard.io.clock import boottime

BATCH: Final = 256
"""Records read before the rest of the agent gets its turn."""
IDLE: Final = 3.0
"""Seconds without a record after which the source says that it looked and there is nothing new."""
REOPEN: Final = 1.0
CONNECT_WITHIN: Final = 5.0


class Log(Protocol):
    """An open kernel log."""

    def fileno(self) -> int:
        """For waiting."""

    def read(self) -> bytes:
        """One record, or OVERRUN. Raises BlockingIOError when there is none now, OSError when the log is gone."""

    def close(self) -> None:
        """Give it back."""


class DeviceLog:
    """/dev/kmsg. Opened, it starts with the oldest record that the kernel still holds."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        """The open file's descriptor."""
        return self._descriptor

    def read(self) -> bytes:
        """One record; EPIPE means that records were overwritten before they were read."""
        try:
            return os.read(self._descriptor, RECORD_LIMIT)
        except BrokenPipeError:
            return OVERRUN

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class SocketLog:
    """A SOCK_SEQPACKET unix socket: each packet is one record as /dev/kmsg gives it, or the word EPIPE."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._socket.fileno()

    def read(self) -> bytes:
        """One packet. Raises ConnectionResetError when the other side is gone."""
        packet = self._socket.recv(RECORD_LIMIT)
        if not packet:
            raise ConnectionResetError("the kernel log's socket was closed")
        return packet

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


async def open_log(place: str) -> Log:
    """Open `/dev/kmsg` or `unix:PATH`. Raises OSError or TimeoutError."""
    if not place.startswith("unix:"):
        return DeviceLog(place)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    try:
        async with asyncio.timeout(CONNECT_WITHIN):
            await asyncio.get_running_loop().sock_connect(connection, place.removeprefix("unix:"))
    except BaseException:
        connection.close()
        raise
    return SocketLog(connection)


class KernelSource:
    """Follows the kernel log from `position` on, for ever; what it finds it tells as KernelRead."""

    def __init__(
        self,
        place: str,
        catalogue: Catalogue,
        position: int | None,
        tell: Callable[[Fact], None],
        *,
        kernel_only: bool,
    ) -> None:
        self.records = 0
        self.lost = 0
        self.gaps = 0
        self.garbage = 0
        self._place = place
        self._catalogue = catalogue
        self._position = position
        self._tell = tell
        self._kernel_only = kernel_only
        self._newest: int | None = None

    async def run(self) -> None:
        """Open, follow, open again. A log that cannot be opened is told, with what to do, and tried again."""
        while True:
            try:
                log = await open_log(self._place)
            except OSError as error:
                self._tell(CannotLook(Source.KERNEL, self._advice(error)))
            else:
                await self._follow(log)
            await asyncio.sleep(REOPEN)

    def _advice(self, error: OSError) -> str:
        return f"{self._place} cannot be read ({error}); the agent's container must be privileged to read /dev/kmsg"

    async def _follow(self, log: Log) -> None:
        self._newest = None
        try:
            while True:
                more = self._read_batch(log)
                if not more and self._is_another_log():
                    self._start_over()
                    return
                await (asyncio.sleep(0) if more else _readable(log.fileno(), IDLE))
        except OSError as error:
            self._tell(CannotLook(Source.KERNEL, self._advice(error)))
        finally:
            log.close()

    def _is_another_log(self) -> bool:
        """True when the log ends before the position: that is none of this log."""
        return self._position is not None and self._newest is not None and self._newest < self._position

    def _start_over(self) -> None:
        self._position = None
        self.gaps += 1
        self._tell(KernelRead(boottime(), None, (), 1, caught_up=False, anew=True))

    def _read_batch(self, log: Log) -> bool:
        """Read what is there, at most BATCH records; true when more may be waiting."""
        packets: list[bytes] = []
        try:
            while len(packets) < BATCH:
                packets.append(log.read())
        except BlockingIOError:
            self._sum_up(packets, caught_up=True)
            return False
        except OSError:
            self._sum_up(packets, caught_up=False)
            raise
        self._sum_up(packets, caught_up=False)
        return True

    def _sum_up(self, packets: list[bytes], *, caught_up: bool) -> None:
        gathered = gather(self._position, packets, kernel_only=self._kernel_only, about=worth_reading)
        self._position = gathered.position
        self._newest = self._newest if gathered.newest is None else gathered.newest
        self._count(gathered)
        told = tuple(fact for text, count in gathered.texts.items() for fact in self._catalogue.read_line(text, count))
        self._tell(KernelRead(boottime(), gathered.position, told, gathered.overruns, caught_up))

    def _count(self, gathered: Gathered) -> None:
        self.records += gathered.records
        self.lost += gathered.lost
        self.gaps += gathered.overruns
        self.garbage += gathered.garbage


async def _readable(descriptor: int, seconds: float) -> None:
    """Return when there is something to read, or after `seconds`."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        async with asyncio.timeout(seconds):
            await ready.wait()
    except TimeoutError:
        return
    finally:
        loop.remove_reader(descriptor)
