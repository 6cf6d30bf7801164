"""The links inside a group: members call the leader pod, whose sidecar is the coordinator."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import Callable
from typing import Final

from aiohttp import web

from rlguard.io.identity import CredentialsHolder
from rlguard.io.link import Outbox, Target, accept
from rlguard.io.tls import pod_identity
from rlguard.messages import Grant, MemberReport, Message
from rlguard.model import GroupKey
from rlguard.policy import HEARTBEAT, SUSPECT

PATH: Final = "/v1/member"


def leader_target(grant: Grant | None) -> Target | None:
    """Where the coordinator is, pinned to the one life of the leader pod that the controller named."""
    if grant is None or not grant.leader_port:
        return None
    leader, port = grant.leader, grant.leader_port
    host = f"[{leader.address}]" if ":" in leader.address else leader.address
    return Target(f"https://{host}:{port}{PATH}", pod_identity(grant.key.namespace, leader.pod, leader.uid))


class Roster:
    """Who may speak to this coordinator, and what it has to say to each.

    A pod of this group by its name in the certificate (`<job>-<group>` or `<job>-<group>-<index>`, which the API server
    keeps unique), in any life: whether a life counts is for the core to decide.
    """

    def __init__(self, key: GroupKey) -> None:
        name = rf"{re.escape(key.job)}-{key.group}(-[0-9]+)?"
        self._identity = re.compile(rf"rlguard://pod/{re.escape(key.namespace)}/(?P<pod>{name})/(?P<uid>[^/]+)")
        self._boxes: dict[str, Outbox] = {}

    def box(self, uid: str) -> Outbox:
        """The outbox for one life of a pod, always the same one."""
        return self._boxes.setdefault(uid, Outbox())

    def outbox(self, identity: str) -> Outbox | None:
        """The outbox for a caller, None for one that is none of us."""
        match = self._identity.fullmatch(identity)
        return self.box(match["uid"]) if match else None

    def speaks_for(self, identity: str, report: MemberReport) -> bool:
        """A member speaks for itself alone."""
        match = self._identity.fullmatch(identity)
        return match is not None and (match["pod"], match["uid"]) == (report.member.pod, report.member.uid)


class PeerServer:
    """Answers on the inherited socket, from the moment there is a certificate. In other pods than the leader's nobody
    has business here; the socket is there all the same, so that this pod can be seen.
    """

    def __init__(
        self,
        descriptor: int,
        credentials: CredentialsHolder,
        roster: Roster | None,
        on_report: Callable[[MemberReport], None],
    ) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(False)  # noqa: FBT003 - the socket's own way
        self._credentials = credentials
        self._roster = roster
        self._on_report = on_report

    @property
    def port(self) -> int:
        """Where this pod listens."""
        return int(self._socket.getsockname()[1])

    async def run(self) -> None:
        """Serve for ever."""
        await self._credentials.there()
        app = web.Application()
        app.router.add_get("/healthz", _healthz)
        app.router.add_get(PATH, self._member)
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.SockSite(runner, self._socket, ssl_context=self._credentials.server_context()).start()
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    async def _member(self, request: web.Request) -> web.StreamResponse:
        roster = self._roster
        if roster is None:
            return web.Response(status=404, text="the coordinator is in the leader pod\n")

        def on_message(identity: str, message: Message) -> None:
            if isinstance(message, MemberReport) and roster.speaks_for(identity, message):
                self._on_report(message)

        return await accept(request, roster.outbox, on_message)


async def _healthz(_request: web.Request) -> web.Response:
    return web.Response(text="ok\n")


class Reach:
    """Is the leader pod within reach (A5): a live link, or a TCP handshake completed within `SUSPECT`.

    A handshake is completed by the kernel of the leader's pod while its process restarts, so it tells a restart from
    a cut. `tell` is told at changes.
    """

    def __init__(
        self, where: Callable[[], tuple[str, int] | None], tell: Callable[[bool], None], now: Callable[[], float]
    ) -> None:
        self.open = False
        self._where = where
        self._tell = tell
        self._now = now
        self._linked = False
        self._heard_at: float | None = None

    def link(self, open_: bool) -> None:
        """The link has opened or closed."""
        self._linked = open_
        self._heard_at = self._now()
        self._judge()

    async def run(self) -> None:
        """Knock once a heartbeat while there is no link, for ever."""
        while True:
            where = self._where()
            if not self._linked and where is not None and await _knock(where):
                self._heard_at = self._now()
            self._judge()
            await asyncio.sleep(HEARTBEAT)

    def _judge(self) -> None:
        recent = self._heard_at is not None and self._now() - self._heard_at < SUSPECT
        if (self._linked or recent) != self.open:
            self.open = not self.open
            self._tell(self.open)


async def _knock(where: tuple[str, int]) -> bool:
    try:
        async with asyncio.timeout(HEARTBEAT):
            _, writer = await asyncio.open_connection(*where)
    except (OSError, TimeoutError):
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True
