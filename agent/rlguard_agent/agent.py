"""The agent put together: sources tell facts, the core judges, and what it concludes goes out on every way there is.

No way depends on another: without a controller the sidecars are still told, without an API server everybody but the
Node object is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

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
from rlguard.messages import AgentReport, Figures, Message
from rlguard_agent import state
from rlguard_agent.events import EventWriter
from rlguard_agent.metrics import AgentCollector
from rlguard_agent.node import Api, ConditionWriter, watch_node
from rlguard_agent.server import Server
from rlguard_agent.settings import Settings
from rlguard_agent.sources import Sources

AUTHORITY_EVERY: Final = 1.0
STUCK_AFTER: Final = 2.0
"""A source is stuck when its loop has not turned for so many times its patience."""
FIGURES_KEPT: Final = 30.0
"""Seconds that a member's figures are shown for; its sidecar tells them anew every few heartbeats."""


class Agent:
    """One agent for one node; `run` never returns."""

    def __init__(self, settings: Settings, log: structlog.stdlib.BoundLogger) -> None:
        self._settings = settings
        self._log = log
        self._holder = CredentialsHolder()
        self._outbox = Outbox()
        self._report: AgentReport | None = None
        registry = CollectorRegistry()
        self._server = Server(self._outbox, registry, self.stuck, log)
        self._sources = Sources(settings, self._server, self._tell, log)
        view = self._sources.view
        self._heard = dict.fromkeys(sorted(view.sources), boottime())
        self._driver: Driver[assess.View, Fact] = Driver(view, assess.fold, assess.decide, self._perform, boottime)
        self._keeper = state.Keeper(settings.state, log)
        self._writer = None if settings.api == "none" else ConditionWriter(_api(settings), log)
        self._events = None if settings.api == "none" else EventWriter(_api(settings), log)
        registry.register(self._collector())

    def _collector(self) -> AgentCollector:
        return AgentCollector(
            lambda: self._report,
            self._ages,
            self._sources.kernel,
            lambda: len(self._server.acknowledged),
            self._members,
            lambda: self._sources.stuck_processes,
        )

    async def run(self) -> None:
        """Run every part; the first that fails ends the process, and the next one starts afresh."""
        async with asyncio.TaskGroup() as tasks:
            for name, part in {**self._sources.parts(), **self._parts()}.items():
                tasks.create_task(part, name=name)

    def _parts(self) -> dict[str, Coroutine[Any, Any, None]]:
        settings = self._settings
        parts = {
            "driver": self._driver.run(),
            "state": self._keeper.run(),
            "identity": self._get_identity(),
            "peers": self._server.serve_peers(settings.host, settings.port, self._holder),
            "health": self._server.serve_health(settings.health_port),
            "controller": self._dialler().run(),
        }
        if self._writer is not None:
            parts["node"] = watch_node(_api(settings), self._tell, self._writer.seen)
            parts["condition"] = self._writer.run()
        if self._events is not None:
            parts["events"] = self._events.run()
        return parts

    def stuck(self) -> list[str]:
        """The sources whose loop hangs. A source that cannot look is blind and says so; it is not stuck."""
        limits = {source: assess.PATIENCE[source] * STUCK_AFTER for source in self._heard}
        return [source.value for source, age in self._ages().items() if age > limits[source]]

    def _ages(self) -> dict[Source, float]:
        now = boottime()
        return {source: now - heard for source, heard in self._heard.items()}

    def _members(self) -> list[Figures]:
        return self._server.members(boottime() - FIGURES_KEPT)

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
        if self._events is not None:
            self._events.heard(assessment.report)

    def _log_change(self, assessment: Assessment) -> None:
        report, last = assessment.report, self._report
        names = {notice.id for notice in report.notices}
        before = {notice.id for notice in last.notices} if last is not None else set()
        if last is None or last.verdict is not report.verdict or names != before:
            changes = {"new": sorted(names - before), "gone": sorted(before - names)}
            why = assessment.condition.message[:300]
            self._log.info("verdict", verdict=report.verdict.value, standing=len(names), why=why, **changes)

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


def _api(settings: Settings) -> Api:
    return Api(settings.api, settings.api_account, settings.node)


def _ignore(_: Message) -> None:
    """The controller has nothing to say to an agent."""
