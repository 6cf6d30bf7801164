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
from rlguard.health.clouds.providers import DMI_FILES, PROVIDERS, detect
from rlguard.health.clouds.request import Provider
from rlguard.io.clock import boottime
from rlguard.io.dmi import read_dmi
from rlguard.io.identity import CredentialsHolder, keep_credentials
from rlguard.io.link import Dialler, Outbox, Target
from rlguard.io.tls import CONTROLLER
from rlguard.messages import AgentReport, Figures, Message
from rlguard_agent import nvml, state
from rlguard_agent.events import EventWriter
from rlguard_agent.host import HostSource
from rlguard_agent.kmsg import KernelSource
from rlguard_agent.metadata import watch_cloud
from rlguard_agent.metrics import AgentCollector
from rlguard_agent.node import Api, ConditionWriter, watch_node
from rlguard_agent.nvml import GpuPlace, GpuSource
from rlguard_agent.rdma import Place, RdmaSource, is_there
from rlguard_agent.server import Server
from rlguard_agent.settings import Settings
from rlguard_agent.storage import Places, StorageSource

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
        self._cloud = _cloud(settings, log)
        view = _first_view(settings, self._cloud)
        self._heard = dict.fromkeys(sorted(view.sources), boottime())
        self._driver: Driver[assess.View, Fact] = Driver(view, assess.fold, assess.decide, self._perform, boottime)
        self._kernel = KernelSource(
            settings.kmsg, settings.catalogue, view.position, self._tell, kernel_only=settings.kernel_only
        )
        self._rdma = None if settings.rdma == "off" else RdmaSource(_rdma_place(settings), self._tell, log)
        self._gpus = GpuSource(_gpu_place(settings), settings.catalogue, self._tell)
        self._keeper = state.Keeper(settings.state, log)
        self._writer = None if settings.api == "none" else ConditionWriter(_api(settings), log)
        self._events = None if settings.api == "none" else EventWriter(_api(settings), log)
        registry = CollectorRegistry()
        self._server = Server(self._outbox, registry, self.stuck, log)
        registry.register(
            AgentCollector(
                lambda: self._report,
                self._ages,
                self._kernel,
                self._acknowledging,
                self._members,
                lambda: self._gpus.nvml.stuck,
            )
        )

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
            host = HostSource(settings.dbus, lambda: self._server.peers > 0, self._tell)
            tasks.create_task(host.run(), name="host")
            if self._cloud is not None:
                tasks.create_task(self._watch_cloud(self._cloud), name="metadata")
            if settings.storage:
                places = Places(settings.mounts, settings.pods)
                storage = StorageSource(places, self._server.acknowledged.keys, self._tell)
                tasks.create_task(storage.run(), name="storage")
            if self._rdma is not None:
                tasks.create_task(self._rdma.run(), name="rdma")
            if settings.gpus != "off":
                tasks.create_task(self._gpus.run(), name="nvml")
            if self._writer is not None:
                tasks.create_task(watch_node(_api(settings), self._tell, self._writer.seen), name="node")
                tasks.create_task(self._writer.run(), name="condition")
            if self._events is not None:
                tasks.create_task(self._events.run(), name="events")

    def stuck(self) -> list[str]:
        """The sources whose loop hangs. A source that cannot look is blind and says so; it is not stuck."""
        limits = {source: assess.PATIENCE[source] * STUCK_AFTER for source in self._heard}
        return [source.value for source, age in self._ages().items() if age > limits[source]]

    def _ages(self) -> dict[Source, float]:
        now = boottime()
        return {source: now - heard for source, heard in self._heard.items()}

    def _acknowledging(self) -> int:
        return len(self._server.acknowledged)

    def _members(self) -> list[Figures]:
        return self._server.members(boottime() - FIGURES_KEPT)

    async def _watch_cloud(self, provider: Provider) -> None:
        left = self._left if self._settings.expedite else None
        await watch_cloud(provider, self._settings.metadata or provider.bases, self._tell, left)

    def _left(self, code: str) -> bool:
        """Whether those that took over the notice of that code were here, and all are gone.

        A notice taken over is not yet a checkpoint saved; a pod that has gone needs the machine no more.
        """
        name = assess.notice_id(self._settings.boot_id, code)
        taken_over = any(name in notices for notices in self._server.acknowledged.values())
        return taken_over and self._server.peers == 0

    def _tell(self, fact: Fact) -> None:
        self._heard[assess.source_of(fact)] = boottime()
        self._driver.tell(fact)
        if self._rdma is not None and isinstance(fact, assess.KernelRead) and fact.gaps:
            self._rdma.kick()
        if isinstance(fact, assess.KernelRead) and fact.gaps:
            self._gpus.kick()  # what the missing lines told may still show

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


def _cloud(settings: Settings, log: structlog.stdlib.BoundLogger) -> Provider | None:
    name: str | None = settings.cloud
    if name == "auto":
        name = detect(read_dmi(DMI_FILES, settings.dmi))
        if name is None:
            log.warning(
                "this machine's firmware names no known cloud: no notice of one is heard; set RLGUARD_AGENT_CLOUD"
            )
    return PROVIDERS.get(name or "none")


def _first_view(settings: Settings, cloud: Provider | None) -> assess.View:
    sources = {Source.KERNEL, Source.HOST}
    if cloud is not None:
        sources.add(Source.METADATA)
    if settings.storage:
        sources.add(Source.STORAGE)
    if settings.api != "none":
        sources.add(Source.NODE)
    if settings.rdma != "off" and is_there(_rdma_place(settings)):
        sources.add(Source.RDMA)
    if settings.gpus != "off" and _has_gpus(settings):
        sources.add(Source.GPU)
    view = assess.View(settings.node, settings.boot_id, frozenset(sources))
    return assess.recall(view, state.load(settings.state))


def _rdma_place(settings: Settings) -> Place:
    return Place(settings.rdma, settings.sysfs, settings.expected, settings.boot_id, settings.state)


def _has_gpus(settings: Settings) -> bool:
    """Whether this process must not be healthy before it has seen the GPUs."""
    try:
        return nvml.is_there(_gpu_place(settings))
    except OSError:
        return True  # the source says what is wrong


def _gpu_place(settings: Settings) -> GpuPlace:
    return GpuPlace(
        settings.driver_root,
        settings.state,
        settings.boot_id,
        settings.expected_gpus,
        wait_for_driver=settings.gpus == "auto",
    )


def _api(settings: Settings) -> Api:
    return Api(settings.api, settings.api_account, settings.node)


def _ignore(_: Message) -> None:
    """The controller has nothing to say to an agent."""
