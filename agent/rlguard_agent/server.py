"""The agent's one port: sidecars of this node on `/v1/node`, `/metrics`, `/healthz`, all by mutual TLS.

`/healthz` is also on 127.0.0.1, plain, for kubelet, which has no certificate of ours and must be answered before this
agent has one.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Final

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

from rlguard.io.clock import boottime
from rlguard.io.identity import CredentialsHolder
from rlguard.io.link import Outbox, accept
from rlguard.io.tls import identity_of, namespace_of, uid_of
from rlguard.messages import Acknowledged, Figures, Message

PEERS: Final = 512
"""Links at once; a node runs a few hundred pods at most."""
LINKS_OF_POD: Final = 4
"""Links of one pod at once: its own, and those of sidecars before it that the network has not given up yet."""
BIND_AGAIN: Final = 5.0
CLOSE_WITHIN: Final = 2.0


class Server:
    """Serves until cancelled. `stuck()` names the sources that hang, for /healthz.

    By UID of a pod: `acknowledged`, the notices it took over; `figures`, its newest ones and when they were heard.
    """

    def __init__(
        self,
        outbox: Outbox,
        registry: CollectorRegistry,
        stuck: Callable[[], list[str]],
        log: structlog.stdlib.BoundLogger,
    ) -> None:
        self.acknowledged: dict[str, frozenset[str]] = {}
        self.figures: dict[str, tuple[float, Figures]] = {}
        self._outbox = outbox
        self._registry = registry
        self._stuck = stuck
        self._log = log
        self.peers = 0
        self._of_pod: Counter[str | None] = Counter()

    async def serve_peers(self, host: str, port: int, holder: CredentialsHolder) -> None:
        """Listen by mutual TLS once there is a certificate. Never returns."""
        await holder.there()
        app = self._health()
        app.router.add_get("/v1/node", self._link)
        app.router.add_get("/metrics", self._metrics)
        await self._listen(app, host, port, holder.server_context())

    async def serve_health(self, port: int) -> None:
        """Listen on the loopback address for kubelet's probe. Never returns."""
        await self._listen(self._health(), "127.0.0.1", port, None)

    def _health(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        return app

    async def _listen(self, app: web.Application, host: str, port: int, context: ssl.SSLContext | None) -> None:
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=CLOSE_WITHIN)
        await runner.setup()
        try:
            while True:
                try:
                    await web.TCPSite(runner, host, port, ssl_context=context).start()
                    await asyncio.Event().wait()
                except OSError as error:
                    self._log.warning("cannot listen yet", address=host, port=port, error=str(error))
                    await asyncio.sleep(BIND_AGAIN)
        finally:
            await runner.cleanup()

    async def _link(self, request: web.Request) -> web.StreamResponse:
        identity = identity_of(request.transport)
        if self.peers >= PEERS or self._of_pod[identity] >= LINKS_OF_POD:
            return web.Response(status=503, text="too many links to this agent\n")
        self.peers += 1
        self._of_pod[identity] += 1
        try:
            return await accept(request, self._outbox_for, self._take)
        finally:
            self.peers -= 1
            self._of_pod -= Counter([identity])
            self._prune()

    def _outbox_for(self, identity: str) -> Outbox | None:
        """Every pod is told the same: what is wrong with the node is no secret to those on it."""
        return self._outbox if uid_of(identity) is not None else None

    def _take(self, identity: str, message: Message) -> None:
        uid = uid_of(identity)
        if not isinstance(message, Acknowledged) or uid is None:
            return
        self.acknowledged[uid] = frozenset(message.notices)
        figures = message.figures
        # Its certificate says in which namespace the pod is; what it says of itself must not stand for another's job.
        if figures is not None and figures.key.namespace == namespace_of(identity):
            self.figures[uid] = (boottime(), figures)

    def members(self, oldest: float) -> list[Figures]:
        """The figures of each member heard at `oldest` or later; where two pods tell the same member's, the newest."""
        heard = sorted((one for one in self.figures.values() if one[0] >= oldest), key=lambda one: one[0])
        return list({(figures.key, figures.index): figures for _, figures in heard}.values())

    def _prune(self) -> None:
        for kept in (self.acknowledged, self.figures):
            while len(kept) > PEERS:
                del kept[next(iter(kept))]

    async def _healthz(self, _: web.Request) -> web.Response:
        stuck = self._stuck()
        return web.Response(status=503 if stuck else 200, text=f"stuck: {', '.join(stuck)}\n" if stuck else "ok\n")

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": "text/plain; version=0.0.4"})
