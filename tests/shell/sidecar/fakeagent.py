"""An agent for tests: one node, one list of notices, over real TLS on loopback."""

from __future__ import annotations

from aiohttp import web
from authority import Authority

from rlguard.io.link import Outbox, accept
from rlguard.io.tls import node_identity, server_context
from rlguard.messages import Acknowledged, AgentReport, Message
from rlguard.model import Notice, Verdict


class FakeAgent:
    """Tells every caller the same."""

    def __init__(self, authority: Authority, node: str) -> None:
        self.acknowledged: tuple[str, ...] = ()
        self._authority = authority
        self._node = node
        self._outbox = Outbox()
        self._runner: web.AppRunner | None = None

    async def start(self, address: str) -> int:
        """Listen; returns the port."""
        app = web.Application()
        app.router.add_get("/v1/node", self._link)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        context = server_context(self._authority.credentials(node_identity(self._node)))
        await web.TCPSite(self._runner, address, 0, ssl_context=context).start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Be gone."""
        if self._runner is not None:
            await self._runner.cleanup()

    def say(self, *notices: Notice) -> None:
        """Tell what stands now."""
        self._outbox.publish(AgentReport(self._node, "boot", Verdict.LOST if notices else Verdict.HEALTHY, notices))

    async def _link(self, request: web.Request) -> web.StreamResponse:
        return await accept(request, lambda _identity: self._outbox, self._heard)

    def _heard(self, _identity: str, message: Message) -> None:
        if isinstance(message, Acknowledged):
            self.acknowledged = message.notices
