"""The agent's own Node object: watched for what others say about it, and told its verdict as a condition.

Plain HTTP calls: the only two requests needed here do not justify kubernetes_asyncio, whose import alone takes
54 MiB on every node.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import aiohttp
import structlog

from rlguard.errors import TransientError
from rlguard.health.assess import Answered, CannotLook, Condition, Fact, NodeSeen, Source
from rlguard.health.conditions import OURS, read_node
from rlguard.io.clock import boottime

OK: Final = 200
ANSWER_WITHIN: Final = 10.0
WATCH_SECONDS: Final = 240
SILENCE: Final = 75.0
"""A watch silent for so long is dead: the API server sends a bookmark every minute."""
LINE_LIMIT: Final = 4 << 20
"""Bytes of one watch event; a Node with thousands of images is far below."""
PAUSE_FIRST: Final = 1.0
PAUSE_MOST: Final = 30.0
WRITE_AGAIN: Final = 3600.0
"""Seconds after which an unchanged condition is written again."""
DOUBT: Final = 10.0
"""An Unknown condition is written only if it lasts so long: each start of the agent begins with it."""

_TROUBLE: Final = (aiohttp.ClientError, OSError, TimeoutError, ValueError, TransientError)


@dataclass(frozen=True, slots=True)
class Api:
    """The API server, seen from one node: its URL, the folder with token and ca.crt, and the node's name."""

    url: str
    account: Path
    node: str

    @property
    def path(self) -> str:
        """The URL of the Node object."""
        return f"{self.url}/api/v1/nodes/{self.node}"

    def headers(self) -> dict[str, str]:
        """With the token as it is now: kubelet renews the file. Raises OSError without one."""
        return {"Authorization": f"Bearer {(self.account / 'token').read_text(encoding='ascii').strip()}"}

    def session(self) -> aiohttp.ClientSession:
        """A session that trusts the cluster's authority. Raises OSError without its file."""
        trust = ssl.create_default_context(cafile=self.account / "ca.crt") if self.url.startswith("https") else False
        timeout = aiohttp.ClientTimeout(total=ANSWER_WITHIN)
        connector = aiohttp.TCPConnector(ssl=trust)
        return aiohttp.ClientSession(trust_env=False, timeout=timeout, connector=connector, read_bufsize=LINE_LIMIT)


async def watch_node(api: Api, tell: Callable[[Fact], None], seen: Callable[[Mapping[str, Any]], None]) -> None:
    """Follow the Node for ever: told as NodeSeen, and as it came to `seen`."""
    pause = PAUSE_FIRST
    while True:
        try:
            async with api.session() as session:
                node = await _get(api, session)
                pause = PAUSE_FIRST
                seen(node)
                version = _tell_node(node, tell)
                while True:
                    version = await _watch(api, session, version, tell)
        except _TROUBLE as error:
            tell(CannotLook(Source.NODE, f"the API server does not show this Node: {error!r:.200}"))
        await asyncio.sleep(pause)
        pause = min(PAUSE_MOST, pause * 2)


async def _get(api: Api, session: aiohttp.ClientSession) -> Mapping[str, Any]:
    async with session.get(api.path, headers=api.headers()) as response:
        return await _json(response)


async def _watch(api: Api, session: aiohttp.ClientSession, version: str, tell: Callable[[Fact], None]) -> str:
    """One watch, until the server ends it; returns the version to go on from. Raises one of _TROUBLE."""
    query = {
        "watch": "1",
        "fieldSelector": f"metadata.name={api.node}",
        "resourceVersion": version,
        "allowWatchBookmarks": "true",
        "timeoutSeconds": str(WATCH_SECONDS),
    }
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=ANSWER_WITHIN, sock_read=SILENCE)
    url = f"{api.url}/api/v1/nodes"
    async with session.get(url, params=query, headers=api.headers(), timeout=timeout) as response:
        if response.status != OK:
            raise TransientError(f"the watch was answered {response.status}")
        async for line in response.content:
            version = _take_event(json.loads(line), tell)
    return version


def _take_event(event: Any, tell: Callable[[Fact], None]) -> str:
    kind, node = (event.get("type"), event.get("object")) if isinstance(event, dict) else (None, None)
    if kind == "BOOKMARK":
        tell(Answered(Source.NODE, boottime()))
        return _version(node)
    if kind not in ("ADDED", "MODIFIED"):
        raise TransientError(f"the watch ended with {kind}: {node!r:.200}")
    return _tell_node(node, tell)


def _tell_node(node: Any, tell: Callable[[Fact], None]) -> str:
    faults = read_node(node)
    if faults is None:
        raise TransientError(f"not a Node object: {node!r:.200}")
    tell(NodeSeen(boottime(), faults))
    return _version(node)


def _version(node: Any) -> str:
    try:
        return str(node["metadata"]["resourceVersion"])
    except (KeyError, TypeError) as error:
        raise TransientError(f"an object without resourceVersion: {node!r:.200}") from error


async def _json(response: aiohttp.ClientResponse) -> Mapping[str, Any]:
    if response.status != OK:
        raise TransientError(f"{response.status}: {(await response.text())[:200]}")
    value = await response.json(content_type=None)
    if not isinstance(value, dict):
        raise TransientError(f"not an object: {value!r:.200}")
    return value


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
        headers = {"Content-Type": "application/strategic-merge-patch+json"}
        body = json.dumps({"status": {"conditions": [_as_json(condition, changed=changed)]}})
        url = f"{self._api.path}/status"
        try:
            async with (
                self._api.session() as session,
                session.patch(url, data=body, headers={**headers, **self._api.headers()}) as response,
            ):
                await _json(response)
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
