"""Kubernetes Events about the agent's own Node: one for each new fault, at most one every ten seconds."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from rlguard.errors import TransientError
from rlguard.health.events import EventQueue, NodeEvent, hear, written
from rlguard.io.clock import boottime, wall
from rlguard.io.kube import ConflictError, Kube
from rlguard.messages import AgentReport
from rlguard_agent.node import Api

NAMESPACE: Final = "default"
"""Where Events about what has no namespace must be."""
COMPONENT: Final = "rlguard-agent"
EVERY: Final = 10.0
PAUSE_MOST: Final = 120.0
_NAME_LENGTH: Final = 200


class EventWriter:
    """Writes what is new. An Event's name follows from the fault and the boot: a restarted agent says nothing twice."""

    def __init__(self, api: Api, log: structlog.stdlib.BoundLogger) -> None:
        self.queue = EventQueue()
        self._api = api
        self._log = log
        self._changed = asyncio.Event()

    def heard(self, report: AgentReport) -> None:
        """What the agent now says of its node."""
        dropped = self.queue.dropped
        self.queue = hear(self.queue, report, boottime())
        if self.queue.waiting:
            self._changed.set()
        if self.queue.dropped > dropped:
            self._log.warning("more faults at once than Events are written for", dropped=self.queue.dropped)

    async def run(self) -> None:
        """Write for ever; what cannot be written is tried again, more and more rarely."""
        pause = EVERY
        while True:
            if not self.queue.waiting:
                self._changed.clear()
                await self._changed.wait()
            event = self.queue.waiting[0]
            if await self._write(event):
                self.queue, pause = written(self.queue, event), EVERY
            else:
                pause = min(PAUSE_MOST, pause * 2)
            await asyncio.sleep(pause)

    async def _write(self, event: NodeEvent) -> bool:
        try:
            async with Kube(self._api.access()) as kube:
                await kube.create(f"/api/v1/namespaces/{NAMESPACE}/events", _body(self._api.node, event))
        except ConflictError:
            return True  # an earlier life of this agent wrote it
        except (OSError, ValueError, TransientError) as error:
            self._log.warning("an Event could not be written", error=repr(error)[:300])
            return False
        return True


def _body(node: str, event: NodeEvent) -> dict[str, Any]:
    stamp = datetime.fromtimestamp(wall(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{node[:_NAME_LENGTH]}.{event.key}", "namespace": NAMESPACE},
        # kubelet, too, names the Node by its name where others have a UID: kubectl describe finds both.
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node},
        "reason": event.reason,
        "message": event.message,
        "type": "Warning",
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
        "source": {"component": COMPONENT, "host": node},
        "reportingComponent": COMPONENT,
    }
