"""The agent put together: sources tell facts, the core judges, and what it concludes goes out on every way there is.

No way depends on another: without a controller the sidecars are still told, without an API server everybody but the
Node object is.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import structlog
from prometheus_client import CollectorRegistry

from rlguard.decision import Decision
from rlguard.drive import Driver
from rlguard.health import assess
from rlguard.health.assess import Assessment, Fact, Source
from rlguard.io.clock import boottime
from rlguard.io.identity import CredentialsHolder, keep_credentials
from rlguard.io.link import Dialler, Outbox, Target
from rlguard.io.tls import CONTROLLER
from rlguard.messages import AgentReport, Message
from rlguard_agent import state
from rlguard_agent.kmsg import KernelSource
from rlguard_agent.metadata import watch_cloud
from rlguard_agent.metrics import AgentCollector
from rlguard_agent.node import Api, ConditionWriter, watch_node
from rlguard_agent.server import Server
from rlguard_agent.settings import Settings

AUTHORITY_EVERY: Final = 1.0
STUCK_AFTER: Final = 2.0
"""A source is stuck when its loop has not turned for so many times its patience."""


class Agent:
    """One agent for one node; `run` never returns."""

    def __init__(self, settings: Settings, log: structlog.stdlib.BoundLogger) -> None:
        self._settings = settings
        self._log = log
        self._holder = CredentialsHolder()
        self._outbox = Outbox()
        self._report: AgentReport | None = None
        view = _first_view(settings)
        self._heard = dict.fromkeys(sorted(view.sources), boottime())
        self._driver: Driver[assess.View, Fact] = Driver(view, assess.fold, assess.decide, self._perform, boottime)
        self._kernel = KernelSource(
            settings.kmsg, settings.catalogue, view.position, self._tell, kernel_only=settings.kernel_only
        )
        self._keeper = state.Keeper(settings.state, log)
        self._writer = None if settings.api == "none" else ConditionWriter(_api(settings), log)
        registry = CollectorRegistry()
        self._server = Server(self._outbox, registry, self.stuck, log)
        registry.register(AgentCollector(lambda: self._report, self._ages, self._kernel, self._acknowledging))

    async def run(self) -> None:
        """Run every part; the first that fails ends the process, and the next one starts afresh."""
        settings = self._settings
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._driver.run(), name="driver")
            tasks.create_task(self._kernel.run(), name="kernel-log")
            tasks.create_task(self._keeper.run(), name="state")
            tasks.create_task(self._get_identity(), name="identity")
            tasks.create_task(self._server.serve_peers(settings.host, settings.port, self._holder), name="peers")
            tasks.create_task(self._server.serve_health(settings.health_port), name="health")
            tasks.create_task(self._dialler().run(), name="controller")
            if settings.cloud != "none":
                tasks.create_task(watch_cloud(settings.metadata, self._tell), name="metadata")
            if self._writer is not None:
                tasks.create_task(watch_node(_api(settings), self._tell, self._writer.seen), name="node")
                tasks.create_task(self._writer.run(), name="condition")

    def stuck(self) -> list[str]:
        """The sources whose loop hangs. A source that cannot look is blind and says so; it is not stuck."""
        limits = {source: assess.PATIENCE[source] * STUCK_AFTER for source in self._heard}
        return [source.value for source, age in self._ages().items() if age > limits[source]]

    def _ages(self) -> dict[Source, float]:
        now = boottime()
        return {source: now - heard for source, heard in self._heard.items()}

    def _acknowledging(self) -> int:
        return len(self._server.acknowledged)

    def _tell(self, fact: Fact) -> None:
        self._heard[assess.source_of(fact)] = boottime()
        self._driver.tell(fact)

    async def _perform(self, decision: Decision) -> None:
        for assessment in decision.actions:
            self._publish(assessment)

    def _publish(self, assessment: Assessment) -> None:
        self._log_change(assessment)
        self._report = assessment.report
        self._keeper.keep(assessment.memory)
        self._outbox.publish(assessment.report)
        if self._writer is not None:
            self._writer.want(assessment.condition)

    def _log_change(self, assessment: Assessment) -> None:
        report, last = assessment.report, self._report
        names = [notice.id for notice in report.notices]
        if last is None or (last.verdict, [notice.id for notice in last.notices]) != (report.verdict, names):
            condition = assessment.condition
            self._log.info("verdict", verdict=report.verdict.value, notices=names, why=condition.message)

    def _dialler(self) -> Dialler:
        controller = self._settings.controller
        target = Target(f"https://{controller}/v1/agent", CONTROLLER) if controller else None
        return Dialler(lambda: target, self._holder.client_context, self._outbox, _ignore)

    async def _get_identity(self) -> None:
        settings = self._settings
        if not settings.controller:
            self._log.warning("no controller is known: RLGUARD_CONTROLLER is not set, nor is there its Service")
        authority = settings.authority.encode() or await self._wait_for_authority()
        await keep_credentials(lambda: settings.controller, settings.token_file, authority, self._holder)

    async def _wait_for_authority(self) -> bytes:
        """The file's content once it is there: the controller makes the authority, maybe after this agent started."""
        file, told = self._settings.authority_file or Path(), False
        while True:
            try:
                authority = file.read_bytes()
            except OSError:
                authority = b""
            if b"-----BEGIN CERTIFICATE-----" in authority:
                return authority
            if not told:
                self._log.warning("waiting for the controller's authority", file=str(file))
                told = True
            await asyncio.sleep(AUTHORITY_EVERY)


def _first_view(settings: Settings) -> assess.View:
    sources = {Source.KERNEL}
    if settings.cloud != "none":
        sources.add(Source.METADATA)
    if settings.api != "none":
        sources.add(Source.NODE)
    view = assess.View(settings.node, settings.boot_id, frozenset(sources))
    return assess.recall(view, state.load(settings.state))


def _api(settings: Settings) -> Api:
    return Api(settings.api, settings.api_account, settings.node)


def _ignore(_: Message) -> None:
    """The controller has nothing to say to an agent."""
