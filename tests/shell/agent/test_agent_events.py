"""Events about the Node, written to an API server that is sometimes there."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from waiting import until

from rlguard.messages import AgentReport
from rlguard.model import Notice, Repair, Scope, Severity, Verdict
from rlguard_agent import events
from rlguard_agent.events import EventWriter
from rlguard_agent.node import Api


def report(*codes: str) -> AgentReport:
    notices = (Notice(f"11111111/{code}/node", code, Severity.WARNING, Scope.NODE, Repair.NONE, "d") for code in codes)
    return AgentReport("node-1", "11111111-boot", Verdict.DEGRADED, tuple(notices))


async def test_each_fault_is_one_event_also_for_an_agent_that_was_restarted(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "EVERY", 0.01)
    monkeypatch.setattr(events, "PAUSE_MOST", 0.05)
    for _ in range(2):
        writer = EventWriter(Api("http://127.0.0.1:1", world.folder, "node-1"), structlog.get_logger())
        task = asyncio.create_task(writer.run())
        try:
            writer.heard(report("a"))
            writer.heard(report("a", "b"))
            await asyncio.sleep(0.1)
            assert len(writer.queue.waiting) == 2  # the API server is not there
            writer._api = Api(world.http, world.folder, "node-1")
            await until(lambda writer=writer: not writer.queue.waiting)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    assert sorted(event["reason"] for event in world.events.values()) == ["a", "b"]
    (event, *_) = world.events.values()
    assert event["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "node-1"}
    assert event["metadata"]["namespace"] == "default"


async def test_what_cannot_be_written_is_tried_more_and_more_rarely(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await real(0)

    writer = EventWriter(Api("http://127.0.0.1:1", world.folder, "node-1"), structlog.get_logger())
    writer.heard(report("a"))
    monkeypatch.setattr(events, "asyncio", SimpleNamespace(sleep=sleep, Event=asyncio.Event))
    task = asyncio.create_task(writer.run())
    await until(lambda: len(pauses) > 5)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert pauses[:5] == [20.0, 40.0, 80.0, 120.0, 120.0]
