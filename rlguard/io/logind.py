"""systemd-logind over D-Bus: to be told before the machine shuts down, and to have it wait a little."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from dbus_fast import DBusError, Message, MessageType
from dbus_fast.aio import MessageBus

ANSWER_WITHIN: Final = 5.0
_BUS: Final = "org.freedesktop.DBus"
_LOGIND: Final = "org.freedesktop.login1"
_PATH: Final = "/org/freedesktop/login1"
_MANAGER: Final = "org.freedesktop.login1.Manager"
_SIGNAL: Final = "PrepareForShutdown"
_RULE: Final = f"type='signal',sender='{_LOGIND}',interface='{_MANAGER}',member='{_SIGNAL}'"
_TROUBLE: Final = (DBusError, EOFError, ValueError, IndexError, KeyError, TypeError)


class Logind:
    """A connection, held open by `async with`. `said(True)`: the machine is about to go; `said(False)`: it is not.

    Every method raises OSError when logind is not there or does not answer.
    """

    def __init__(self, socket: Path, said: Callable[[bool], None]) -> None:
        self._socket = socket
        self._said = said
        self._bus: MessageBus | None = None
        self._inhibitor: int | None = None

    async def __aenter__(self) -> Self:
        bus = MessageBus(bus_address=f"unix:path={self._socket}", negotiate_unix_fd=True)
        self._bus = bus
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                await bus.connect()
            bus.add_message_handler(self._take)
            await self._call(_BUS, "/org/freedesktop/DBus", _BUS, "AddMatch", "s", [_RULE])
        except Exception as error:  # the library says that any may come
            self._close()
            raise OSError(f"{self._socket}: {error!r:.200}") from error
        except asyncio.CancelledError:
            self._close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._close()

    @property
    def inhibiting(self) -> bool:
        """Whether the next shutdown waits for us."""
        return self._inhibitor is not None

    async def delay(self) -> int:
        """The longest that logind waits, in microseconds."""
        value = await self._property("InhibitDelayMaxUSec")
        if not isinstance(value, int):
            raise OSError(f"logind does not say how long it waits: {value!r:.60}")
        return value

    async def preparing(self) -> bool:
        """Whether the machine is about to go now."""
        return await self._property("PreparingForShutdown") is True

    async def inhibit(self) -> None:
        """Have the next shutdown wait until `release`, or as long as logind waits."""
        words = ["shutdown", "rlguard", "the training jobs on this node save their state", "delay"]
        answer = await self._call(_LOGIND, _PATH, _MANAGER, "Inhibit", "ssss", words)
        if not answer.unix_fds:
            raise OSError("logind gave no inhibitor")
        self.release()
        self._inhibitor = answer.unix_fds[0]

    def release(self) -> None:
        """Give the inhibitor back, if there is one."""
        if self._inhibitor is not None:
            with suppress(OSError):
                os.close(self._inhibitor)
        self._inhibitor = None

    async def _property(self, name: str) -> Any:
        words = [_MANAGER, name]
        answer = await self._call(_LOGIND, _PATH, "org.freedesktop.DBus.Properties", "Get", "ss", words)
        return getattr(answer.body[0], "value", None) if answer.body else None

    def _close(self) -> None:
        self.release()
        if self._bus is not None:
            with suppress(Exception):  # of a connection that was never whole
                self._bus.disconnect()
        self._bus = None

    async def _call(
        self, destination: str, path: str, interface: str, member: str, signature: str, body: list[Any]
    ) -> Message:
        if self._bus is None or not self._bus.connected:
            raise OSError(f"{self._socket}: not connected")
        question = Message(
            destination=destination, path=path, interface=interface, member=member, signature=signature, body=body
        )
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                answer = await self._bus.call(question)
        except _TROUBLE as error:
            raise OSError(f"{member}: {error!r:.200}") from error
        if answer is None or answer.message_type is not MessageType.METHOD_RETURN:
            raise OSError(f"{member}: {getattr(answer, 'error_name', None)} {getattr(answer, 'body', None)!r:.200}")
        return answer

    def _take(self, message: Message) -> None:
        ours = message.message_type is MessageType.SIGNAL and message.member == _SIGNAL and message.path == _PATH
        if ours and message.body and isinstance(message.body[0], bool):
            self._said(message.body[0])
