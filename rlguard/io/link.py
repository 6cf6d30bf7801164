"""Level-triggered links: each side repeats its newest snapshot, so there is nothing to queue and nothing to replay.

A link is a WebSocket over mutual TLS. The sender holds one outgoing message, its newest; it is sent on connect, when
it changes, and once a heartbeat (an empty frame while there is nothing to say yet). The receiver gets each message
decoded; garbage is counted and dropped. A link that hears nothing for `SUSPECT` seconds is closed and dialled again.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import aiohttp
import structlog
from aiohttp import web

from rlguard.errors import BadWireError
from rlguard.io.tls import identity_of
from rlguard.messages import Message
from rlguard.policy import HEARTBEAT, SUSPECT
from rlguard.wire import MAX_BYTES, decode, encode

_LOG: Final = structlog.get_logger(__name__)
RETRY_FIRST: Final = 0.1
RETRY_MOST: Final = 2.0
NOTHING: Final = ""
"""Sent once a heartbeat by a side that has no message yet: it is alive, which is all that this says."""


class Outbox:
    """The newest message for one peer (or for all peers alike). Publishing replaces it and wakes the senders."""

    def __init__(self) -> None:
        self._text: str | None = None
        self._changed = asyncio.Event()

    def publish(self, message: Message) -> None:
        """Replace the message; senders send it at once if it differs from the last one."""
        text = encode(message)
        if text != self._text:
            self._text = text
            self._changed.set()
            self._changed = asyncio.Event()

    async def wait(self, seen: str | None, seconds: float) -> None:
        """Return when the message is another than `seen` (what the sender sent last), or after `seconds`."""
        if self._text != seen:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    @property
    def text(self) -> str | None:
        """The encoded message, None before the first."""
        return self._text


@dataclass(frozen=True, slots=True)
class Target:
    """Whom to call: an https URL, and what the identity on the other side must be."""

    url: str
    identity: str


@dataclass(slots=True)
class LinkState:
    """What one dialler knows of its link, for reports: open now, and counts since the start."""

    open: bool = False
    opened: int = 0
    refused: int = 0
    garbage: int = 0


class _Garbage:
    """Says what cannot be read, once per kind: messages repeat themselves each second."""

    def __init__(self, sender: str) -> None:
        self._sender = sender
        self._said = ""

    def note(self, problem: str) -> None:
        """Log it unless it was the last thing said."""
        if problem != self._said:
            self._said = problem
            _LOG.warning(
                "a message cannot be read: is the other side of another version?", sender=self._sender, problem=problem
            )


Socket = aiohttp.ClientWebSocketResponse | web.WebSocketResponse


def _unheeded(_open: bool) -> None:
    pass


class Dialler:
    """Keeps one link to whatever `target()` names open, for ever. `target` may change or be None (not known yet).

    `on_change` is told when the link opens and when it has closed.
    """

    def __init__(
        self,
        target: Callable[[], Target | None],
        context: Callable[[], ssl.SSLContext | None],
        outbox: Outbox,
        on_message: Callable[[Message], None],
        on_change: Callable[[bool], None] = _unheeded,
    ) -> None:
        self.state = LinkState()
        self._on_change = on_change
        self._target = target
        self._context = context
        self._outbox = outbox
        self._on_message = on_message
        self._garbage = _Garbage("dialled")

    async def run(self) -> None:
        """Dial, speak, dial again; the pause between tries grows to `RETRY_MOST` and starts small after a success."""
        pause = RETRY_FIRST
        # A connection that was refused must not be kept for the next try: behind a Service it would lead to the same
        # process again, for ever, after another one has become the leader.
        afresh = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(trust_env=False, connector=afresh) as session:
            while True:
                opened, refused = self.state.opened, self.state.refused
                await self._once(session)
                failed = self.state.refused > refused and self.state.opened == opened
                pause = min(RETRY_MOST, pause * 2) if failed else RETRY_FIRST
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, no secret

    async def _once(self, session: aiohttp.ClientSession) -> None:
        target, context = self._target(), self._context()
        if target is None or context is None:
            return
        try:
            async with asyncio.timeout(SUSPECT):
                socket = await session.ws_connect(target.url, ssl=context, max_msg_size=MAX_BYTES)
        except (aiohttp.ClientError, OSError, TimeoutError, ssl.SSLError):
            self.state.refused += 1
            return
        async with socket:
            if identity_of(socket) != target.identity:
                self.state.refused += 1
                return
            await self._speak(socket, target)

    async def _speak(self, socket: aiohttp.ClientWebSocketResponse, target: Target) -> None:
        self.state.open, self.state.opened = True, self.state.opened + 1
        self._on_change(True)  # noqa: FBT003 - open
        try:
            await converse(socket, self._outbox, self._receive, lambda: self._target() == target)
        finally:
            self.state.open = False
            self._on_change(False)  # noqa: FBT003 - closed

    def _receive(self, text: str | bytes) -> None:
        try:
            message = decode(text)
        except BadWireError as error:
            self.state.garbage += 1
            self._garbage.note(str(error))
            return
        self._on_message(message)


async def converse(
    socket: Socket, outbox: Outbox, receive: Callable[[str | bytes], None], still_wanted: Callable[[], bool]
) -> None:
    """Send the outbox and hand over what comes, until the other side is silent, gone, or no longer wanted."""
    sender = asyncio.create_task(_send(socket, outbox), name="link-sender")
    try:
        while still_wanted():
            async with asyncio.timeout(SUSPECT):
                frame = await socket.receive()
            if frame.type is not aiohttp.WSMsgType.TEXT:
                return
            if frame.data != NOTHING:
                receive(frame.data)
    except (TimeoutError, aiohttp.ClientError, OSError):
        return
    finally:
        sender.cancel()
        await asyncio.gather(sender, return_exceptions=True)
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(1.0):
                await socket.close()


async def _send(socket: Socket, outbox: Outbox) -> None:
    while not socket.closed:
        text = outbox.text
        async with asyncio.timeout(SUSPECT):
            await socket.send_str(text or NOTHING)
        await outbox.wait(text, HEARTBEAT)


async def accept(
    request: web.Request, outbox: Callable[[str], Outbox | None], on_message: Callable[[str, Message], None]
) -> web.StreamResponse:
    """Serve one incoming link. `outbox(identity)` chooses what to say to this peer, None refuses it (403)."""
    identity = identity_of(request.transport)
    box = outbox(identity) if identity is not None else None
    if identity is None or box is None:
        return web.Response(status=403, text="this identity has no business here\n")
    socket = web.WebSocketResponse(max_msg_size=MAX_BYTES)
    await socket.prepare(request)

    garbage = _Garbage(identity)

    def receive(text: str | bytes) -> None:
        try:
            message = decode(text)
        except BadWireError as error:
            garbage.note(str(error))
            return
        on_message(identity, message)

    await converse(socket, box, receive, lambda: outbox(identity) is box)
    return socket
