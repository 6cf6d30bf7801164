"""The agent's own Node object: watched for what others say about it, and told its verdict as a condition."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import structlog

from rlguard.errors import TransientError
from rlguard.health.assess import Answered, CannotLook, Condition, Fact, Observed, Source
from rlguard.health.conditions import OURS, read_node
from rlguard.io.clock import boottime
from rlguard.io.kube import STRATEGIC, Access, Kube, of_account

WATCH_SECONDS: Final = 240
"""A watch is opened anew this often: every node has one, so rarely."""
PAUSE_FIRST: Final = 1.0
PAUSE_MOST: Final = 30.0
WRITE_AGAIN: Final = 3600.0
"""Seconds after which an unchanged condition is written again."""
DOUBT: Final = 10.0
"""An Unknown condition is written only if it lasts so long: each start of the agent begins with it."""

_TROUBLE: Final = (OSError, ValueError, TransientError)
_ADVICE: Final = "RLGUARD_AGENT_API (chart value agent.env), and whether the chart's rights for the agent are there"


@dataclass(frozen=True, slots=True)
class Api:
    """The API server, seen from one node: its URL, the folder with token and ca.crt, and the node's name."""

    url: str
    account: Path
    node: str

    @property
    def path(self) -> str:
        """The path of the Node object."""
        return f"/api/v1/nodes/{self.node}"

    def access(self) -> Access:
        """How to reach it now. Raises OSError without the authority's file."""
        return of_account(self.url, self.account)


async def watch_node(api: Api, tell: Callable[[Fact], None], seen: Callable[[Mapping[str, Any]], None]) -> None:
    """Follow the Node for ever: told as Observed, and as it came to `seen`."""
    pause = PAUSE_FIRST
    while True:
        began = boottime()
        try:
            async with Kube(api.access()) as kube:
                node = await kube.get(api.path)
                seen(node)
                await _follow(kube, api, _tell_node(node, tell), tell)
        except _TROUBLE as error:
            tell(CannotLook(Source.NODE, f"the API server does not show this Node: {error!r:.200}; see {_ADVICE}"))
        if boottime() - began > PAUSE_MOST:  # it has worked for a while
            pause = PAUSE_FIRST
        await asyncio.sleep(pause * random.uniform(0.8, 1.0))  # noqa: S311 - jitter, no secret
        pause = min(PAUSE_MOST, pause * 2)


async def _follow(kube: Kube, api: Api, version: str, tell: Callable[[Fact], None]) -> None:
    """Every change since `version`. Ends only by raising one of _TROUBLE."""
    query = {"fieldSelector": f"metadata.name={api.node}"}
    changes = kube.watch(
        "/api/v1/nodes", version, query, lambda: tell(Answered(Source.NODE, boottime())), WATCH_SECONDS
    )
    async for change in changes:
        if change.kind == "DELETED":
            raise TransientError("this Node object was deleted")
        _tell_node(change.thing, tell)


def _tell_node(node: Any, tell: Callable[[Fact], None]) -> str:
    faults = read_node(node)
    if faults is None:
        raise TransientError(f"not a Node object: {node!r:.200}")
    tell(Observed(Source.NODE, boottime(), faults))
    return _version(node)


def _version(node: Any) -> str:
    try:
        return str(node["metadata"]["resourceVersion"])
    except (KeyError, TypeError) as error:
        raise TransientError(f"an object without resourceVersion: {node!r:.200}") from error


class ConditionWriter:
    """Keeps the Node's condition as it should be: one write when it changes, one an hour when it does not."""

    def __init__(self, api: Api, log: structlog.stdlib.BoundLogger) -> None:
        self.writes = 0
        self._api = api
        self._log = log
        self._wanted: Condition | None = None
        self._since = boottime()
        self._written: Condition | None = None
        self._written_at = boottime()
        self._changed = asyncio.Event()

    def want(self, condition: Condition) -> None:
        """The condition should be this."""
        if condition != self._wanted:
            if self._wanted is None or condition.status != self._wanted.status:
                self._since = boottime()
            self._wanted = condition
            self._changed.set()

    def seen(self, node: Mapping[str, Any]) -> None:
        """What stands on the Node already, from an earlier life of this agent."""
        if self._written is None:
            self._written = _ours(node)

    async def run(self) -> None:
        """Write for ever; what cannot be written is tried again, newest first."""
        pause = PAUSE_FIRST
        while True:
            self._changed.clear()
            condition = self._due()
            if condition is not None and not await self._write(condition):
                await asyncio.sleep(pause)
                pause = min(PAUSE_MOST, pause * 2)
                continue
            pause = PAUSE_FIRST
            await self._wait()

    def _due(self) -> Condition | None:
        now, wanted = boottime(), self._wanted
        if wanted is None or (wanted.status == "Unknown" and now - self._since < DOUBT):
            return None
        return wanted if wanted != self._written or now - self._written_at >= WRITE_AGAIN else None

    async def _wait(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DOUBT):
                await self._changed.wait()

    async def _write(self, condition: Condition) -> bool:
        changed = self._written is None or self._written.status != condition.status
        body = {"status": {"conditions": [_as_json(condition, changed=changed)]}}
        try:
            async with Kube(self._api.access()) as kube:
                await kube.patch(f"{self._api.path}/status", body, STRATEGIC)
        except _TROUBLE as error:
            self._log.warning("the Node condition could not be written", error=repr(error)[:300])
            return False
        self._written, self._written_at, self.writes = condition, boottime(), self.writes + 1
        return True


def _as_json(condition: Condition, *, changed: bool) -> dict[str, str]:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    fields = {
        "type": OURS,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
        "lastHeartbeatTime": now,
    }
    return {**fields, "lastTransitionTime": now} if changed else fields


def _ours(node: Mapping[str, Any]) -> Condition | None:
    status = node.get("status")
    conditions = status.get("conditions") if isinstance(status, dict) else None
    for raw in conditions if isinstance(conditions, list) else ():
        if isinstance(raw, dict) and raw.get("type") == OURS:
            return Condition(str(raw.get("status")), str(raw.get("reason")), str(raw.get("message")))
    return None
