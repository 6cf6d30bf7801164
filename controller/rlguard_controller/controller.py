"""The whole controller: who is told what, in every replica and in the one that leads."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import AsyncExitStack
from typing import Any, Final

from aiohttp import web

from rlguard.cluster.context import Clock
from rlguard.cluster.decide import decide
from rlguard.cluster.facts import Fact, LeaseTaken
from rlguard.cluster.view import View, fold
from rlguard.drive import Driver
from rlguard.errors import BadConfigError
from rlguard.io.clock import boottime, wall
from rlguard.io.kube import Access, Kube, from_kubeconfig, in_cluster
from rlguard_controller.authority import Authority
from rlguard_controller.injector import Injector
from rlguard_controller.injector import Settings as InjectorSettings
from rlguard_controller.issuer import Issuer
from rlguard_controller.lease import Election
from rlguard_controller.links import Links
from rlguard_controller.objects import SOURCES
from rlguard_controller.perform import Performer
from rlguard_controller.settings import Settings
from rlguard_controller.trust import Serving, keep_trust, load_authority, lookups, review_token, service_address
from rlguard_controller.watch import keep_watching

CLOSE_WITHIN: Final = 2.0


class Controller:
    """Wires the parts of one replica."""

    def __init__(self, settings: Settings, log: Any, access: Access | None = None) -> None:
        """`access`: how to reach the API server, None: as the settings say."""
        self._access = access
        self._settings = settings
        self._log = log
        self._links: Links | None = None

    async def run(self) -> None:
        """Run all parts, for ever. Raises BadConfigError for what a person must correct."""
        settings, log = self._settings, self._log
        async with Kube(self._access or await _access(settings)) as kube, asyncio.TaskGroup() as tasks:
            authority = await load_authority(kube, settings.namespace, log)
            serving = Serving(authority, settings.namespace)
            trust = keep_trust(kube, settings.namespace, authority, serving, log)
            tasks.create_task(trust, name="trust")
            address = settings.address or await service_address(kube, settings.namespace, log)
            tasks.create_task(self._serve(self._app(kube, authority, address), serving.context), name="server")
            election = Election(kube, settings.namespace, settings.pod, boottime, log)
            tasks.create_task(election.run(lambda: self._lead(kube, election)), name="election")

    def _app(self, kube: Kube, authority: Authority, address: str) -> web.Application:
        settings = self._settings
        told = InjectorSettings(settings.image, settings.pull_policy, address, authority.pem.decode())
        injector = Injector(told, lookups(kube))
        issuer = Issuer(authority, lambda token: review_token(kube, token), settings.agent_account)
        app = web.Application()
        app.add_routes(
            [
                web.post("/v1/inject", injector.handle),
                web.post("/v1/certificate", issuer.handle),
                web.get("/v1/pod", self._pod),
                web.get("/v1/agent", self._agent),
                web.get("/healthz", _healthy),
            ]
        )
        return app

    async def _serve(self, app: web.Application, context: ssl.SSLContext) -> None:
        """One listener for all."""
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=CLOSE_WITHIN)
        await runner.setup()
        try:
            await web.TCPSite(runner, None, self._settings.port, ssl_context=context).start()
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    async def _pod(self, request: web.Request) -> web.StreamResponse:
        return await self._links.pod(request) if self._links is not None else _not_leading()

    async def _agent(self, request: web.Request) -> web.StreamResponse:
        return await self._links.agent(request) if self._links is not None else _not_leading()

    async def _lead(self, kube: Kube, election: Election) -> None:
        """One turn as the leader: a fresh view, so that every silence is counted from now (A4)."""
        links = Links(boottime)
        taints = self._settings.taints
        performer = Performer(kube, links, election.holding, boottime, self._log)
        driver: Driver[View, Fact] = Driver(
            View(), fold, lambda view, now: decide(view, Clock(now, wall()), taints), performer.perform, boottime
        )
        links.tell = performer.tell = driver.tell
        async with AsyncExitStack() as stack:
            stack.push_async_callback(performer.close)
            stack.callback(self._hang_up, links)
            self._links = links
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(driver.run(), name="driver")
                for source in SOURCES:
                    watch = keep_watching(kube, source, driver, boottime, self._log)
                    tasks.create_task(watch, name=f"watch {source.kind.value}")
                driver.tell(LeaseTaken(boottime()))

    def _hang_up(self, links: Links) -> None:
        links.close()
        self._links = None


async def _access(settings: Settings) -> Access:
    if settings.kubeconfig is not None:
        return await from_kubeconfig(settings.kubeconfig)
    access = in_cluster()
    if access is None:
        raise BadConfigError("no ServiceAccount here: run in a cluster, or set RLGUARD_KUBECONFIG")
    return access


def _not_leading() -> web.Response:
    return web.Response(status=503, text="another controller leads; call its Service\n")


async def _healthy(_: web.Request) -> web.Response:
    return web.Response(text="ok\n")
