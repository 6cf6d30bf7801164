"""The kernel log, opened and read record by record: /dev/kmsg, or a packet socket that behaves like it."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from typing import Final, Protocol

from rlguard.health.kmsg import OVERRUN, RECORD_LIMIT

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
        """One record; EPIPE means that records were overwritten before they were read. Raises OSError at an end."""
        try:
            record = os.read(self._descriptor, RECORD_LIMIT)
        except BrokenPipeError:
            return OVERRUN
        if not record:
            raise OSError(errno.ENODATA, "it has an end, so it is no kernel log")
        return record

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


async def readable(descriptor: int, seconds: float) -> None:
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
