"""The links of sidecars and agents: who may speak, what is taken from them, what they are told.

A peer speaks for itself alone: the identity in its certificate must be that of the pod or node in its report.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aiohttp import web

from rlguard.cluster.facts import AgentHeard, Fact, PodHeard
from rlguard.io.link import Outbox, accept
from rlguard.io.tls import node_identity, pod_identity, uid_of
from rlguard.messages import AgentReport, Grant, Message, PodReport

OUTBOXES_LIMIT: Final = 100_000
"""Pods remembered with what they are told; beyond it the oldest are forgotten and told anew."""


class Links:
    """Serves `/v1/pod` and `/v1/agent` while this controller leads; refuses everybody else's calls."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.refused = 0
        self.tell: Callable[[Fact], None] = _nobody
        self._now = now
        self._pods: dict[str, Outbox] | None = {}
        self._agents: Outbox | None = Outbox()

    def close(self) -> None:
        """Hang up on everybody, within one heartbeat: another controller leads."""
        self._pods = self._agents = None

    def grant(self, uid: str, grant: Grant) -> None:
        """Say this to a pod's sidecar, now and on each new link."""
        box = self._box(uid)
        if box is not None:
            box.publish(grant)

    async def pod(self, request: web.Request) -> web.StreamResponse:
        """`GET /v1/pod`: a sidecar's link."""
        return await accept(request, self._box_of, self._heard_pod)

    async def agent(self, request: web.Request) -> web.StreamResponse:
        """`GET /v1/agent`: an agent's link."""
        return await accept(request, lambda name: self._agents if _is_node(name) else None, self._heard_agent)

    def _box_of(self, identity: str) -> Outbox | None:
        uid = uid_of(identity)
        return self._box(uid) if uid is not None else None

    def _box(self, uid: str) -> Outbox | None:
        if self._pods is None:
            return None
        if uid not in self._pods and len(self._pods) >= OUTBOXES_LIMIT:
            del self._pods[next(iter(self._pods))]
        return self._pods.setdefault(uid, Outbox())

    def _heard_pod(self, identity: str, message: Message) -> None:
        if not isinstance(message, PodReport):
            return
        member = message.member
        if identity != pod_identity(message.key.namespace, member.pod, member.uid):
            self.refused += 1
            return
        self.tell(PodHeard(self._now(), message))

    def _heard_agent(self, identity: str, message: Message) -> None:
        if not isinstance(message, AgentReport):
            return
        if identity != node_identity(message.node):
            self.refused += 1
            return
        self.tell(AgentHeard(self._now(), message))


def _nobody(_: Fact) -> None:
    """Before the driver is there, nobody listens; every report is repeated."""


def _is_node(identity: str) -> bool:
    return identity.startswith("rlguard://node/")
