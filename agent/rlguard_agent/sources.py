"""All that looks at the node, made as the settings say; who looks at what is told nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from rlguard.health import assess
from rlguard.health.assess import Fact, Source
from rlguard.health.clouds.providers import DMI_FILES, PROVIDERS, detect
from rlguard.health.clouds.request import Provider
from rlguard.io.dmi import read_dmi
from rlguard_agent import nvml, state
from rlguard_agent.host import HostSource
from rlguard_agent.kmsg import KernelSource
from rlguard_agent.metadata import watch_cloud
from rlguard_agent.nvml import GpuPlace, GpuSource
from rlguard_agent.rdma import RdmaPlace, RdmaSource, is_there
from rlguard_agent.server import Server
from rlguard_agent.settings import Settings
from rlguard_agent.storage import Places, StorageSource


class Sources:
    """The sources of one node but its own Node object. `view` is what is known before any of them has looked."""

    def __init__(
        self, settings: Settings, server: Server, tell: Callable[[Fact], None], log: structlog.stdlib.BoundLogger
    ) -> None:
        self._settings = settings
        self._server = server
        self._tell = tell
        self._cloud = _cloud(settings, log)
        self.view = _first_view(settings, self._cloud)
        self.kernel = KernelSource(
            settings.kmsg, settings.catalogue, self.view.position, self._kernel_said, kernel_only=settings.kernel_only
        )
        self._rdma = None if settings.rdma == "off" else RdmaSource(_rdma_place(settings), tell, log)
        self._gpus = None if settings.gpus == "off" else GpuSource(_gpu_place(settings), settings.catalogue, tell)

    @property
    def stuck_processes(self) -> int:
        """Children that the GPUs' driver does not let die."""
        return self._gpus.nvml.stuck if self._gpus is not None else 0

    def parts(self) -> dict[str, Coroutine[Any, Any, None]]:
        """What has to run, by name; each for ever."""
        settings = self._settings
        host = HostSource(settings.dbus, lambda: self._server.peers > 0, self._tell)
        parts = {"kernel-log": self.kernel.run(), "host": host.run()}
        if self._cloud is not None:
            parts["metadata"] = self._watch_cloud(self._cloud)
        if settings.storage:
            places = Places(settings.mounts, settings.pods)
            parts["storage"] = StorageSource(places, self._server.acknowledged.keys, self._tell).run()
        if self._rdma is not None:
            parts["rdma"] = self._rdma.run()
        if self._gpus is not None:
            parts["nvml"] = self._gpus.run()
        return parts

    def _kernel_said(self, fact: Fact) -> None:
        self._tell(fact)
        if isinstance(fact, assess.KernelRead) and fact.gaps:
            for source in (self._rdma, self._gpus):
                if source is not None:
                    source.kick()  # what the missing records told may still show on the devices

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
    there = {
        Source.METADATA: cloud is not None,
        Source.STORAGE: settings.storage,
        Source.NODE: settings.api != "none",
        Source.RDMA: settings.rdma != "off" and is_there(_rdma_place(settings)),
        Source.GPU: settings.gpus != "off" and _has_gpus(settings),
    }
    sources = {Source.KERNEL, Source.HOST, *(source for source, is_so in there.items() if is_so)}
    view = assess.View(settings.node, settings.boot_id, frozenset(sources))
    return assess.recall(view, state.load(settings.state))


def _has_gpus(settings: Settings) -> bool:
    """Whether this process must not be healthy before it has seen the GPUs."""
    try:
        return nvml.is_there(_gpu_place(settings))
    except OSError:
        return True  # the source says what is wrong


def _rdma_place(settings: Settings) -> RdmaPlace:
    return RdmaPlace(settings.rdma, settings.sysfs, settings.expected, settings.boot_id, settings.state)


def _gpu_place(settings: Settings) -> GpuPlace:
    return GpuPlace(
        settings.driver_root,
        settings.state,
        settings.boot_id,
        settings.expected_gpus,
        wait_for_driver=settings.gpus == "auto",
    )
