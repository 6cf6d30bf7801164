"""The API client: preconditions, watches, and what happens when the server is away."""

from __future__ import annotations

import asyncio

import pytest
from fakeapi import FakeApi
from waiting import until

from rlguard.cluster.facts import Gone, Kind, Listed, Node, Seen
from rlguard.io.kube import ConflictError, KubeError, NotFoundError
from rlguard.io.kube import Kube as Client
from rlguard_controller.objects import SOURCES, lease_of
from rlguard_controller.watch import keep_watching, parse

NODES = "/api/v1/nodes"
SOURCE = next(source for source in SOURCES if source.kind is Kind.NODES)


class Log:
    """Remembers warnings."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def warning(self, text: str, **_: object) -> None:
        """Take a line."""
        self.said.append(text)

    info = warning


class Listener:
    """Remembers facts and lets a test wait for one."""

    def __init__(self) -> None:
        self.dropped = 0
        self.facts: list[object] = []
        self.queue: asyncio.Queue[object] = asyncio.Queue()

    def tell(self, fact: object) -> None:
        """Take a fact."""
        self.queue.put_nowait(fact)

    async def next(self) -> object:
        """The next fact."""
        return await asyncio.wait_for(self.queue.get(), 5)


async def test_what_is_not_there_is_named(kube: Client) -> None:
    with pytest.raises(NotFoundError, match="/api/v1/nodes/a not found"):
        await kube.get(f"{NODES}/a")
    assert await kube.find(f"{NODES}/a") is None


async def test_a_failed_precondition_is_a_conflict(api: FakeApi, kube: Client) -> None:
    api.put(f"{NODES}/a", {})
    with pytest.raises(ConflictError):
        await kube.delete(f"{NODES}/a", {"preconditions": {"uid": "another"}})


async def test_a_server_out_of_reach_is_an_error_with_status_0(api: FakeApi, kube: Client) -> None:
    await api.stop()
    with pytest.raises(KubeError) as caught:
        await kube.get(NODES)
    assert caught.value.status == 0


async def test_a_watch_tells_the_list_and_then_every_change(api: FakeApi, kube: Client) -> None:
    api.put(f"{NODES}/a", {})
    listener = Listener()
    watching = asyncio.create_task(keep_watching(kube, SOURCE, listener, lambda: 7.0, Log()))
    try:
        assert await listener.next() == Listed(7.0, Kind.NODES, (Node("a", None, ""),))
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"bootID": "x"}}}
        api.put(f"{NODES}/b", ready)
        assert await listener.next() == Seen(7.0, Node("b", ready=True, boot_id="x"))
        api.remove(f"{NODES}/a")
        assert await listener.next() == Gone(7.0, Node("a", None, ""))
    finally:
        watching.cancel()


@pytest.mark.parametrize("loss", ["expire", "down", "flood"])
async def test_after_a_loss_everything_is_listed_again(api: FakeApi, kube: Client, loss: str) -> None:
    api.expire = loss == "expire"
    listener, log = Listener(), Log()
    watching = asyncio.create_task(keep_watching(kube, SOURCE, listener, lambda: 7.0, log))
    try:
        assert isinstance(await listener.next(), Listed)
        if loss == "flood":
            await until(lambda: api.watches == 1)
            listener.dropped += 1
        api.down = loss == "down"
        api.put(f"{NODES}/a", {})
        if loss == "down":
            await until(lambda: log.said)
            api.down = False
        told = await listener.next()
        while not isinstance(told, Listed) or not told.things:
            told = await listener.next()
        assert told.things == (Node("a", None, ""),)
        assert bool(log.said) is (loss == "down")
    finally:
        watching.cancel()


async def test_a_cluster_without_lws_is_told_so_and_watched_once_it_has_it(api: FakeApi, kube: Client) -> None:
    source = next(source for source in SOURCES if source.kind is Kind.JOBS)
    api.unknown.add(source.path)
    listener, log = Listener(), Log()
    watching = asyncio.create_task(keep_watching(kube, source, listener, lambda: 7.0, log))
    try:
        await until(lambda: log.said)
        assert "LeaderWorkerSet is not installed" in log.said[0]
        api.unknown.clear()
        assert await listener.next() == Listed(7.0, Kind.JOBS, ())
        assert len(log.said) == 1
    finally:
        watching.cancel()


def test_an_object_that_makes_no_sense_is_passed_over() -> None:
    assert parse(SOURCE, {"metadata": None}) is None
    assert lease_of({"metadata": {"name": "a"}, "spec": {"renewTime": "t"}}) is not None


async def test_a_bookmark_is_told_and_an_event_that_makes_no_sense_ends_the_watch(api: FakeApi, kube: Client) -> None:
    api.put(f"{NODES}/a", {})
    heard: list[None] = []
    listed = await kube.list(NODES)
    changes = kube.watch(NODES, listed.version, on_bookmark=lambda: heard.append(None))
    api.say("BOOKMARK", f"{NODES}/a", api.objects[f"{NODES}/a"])
    api.put(f"{NODES}/b", {})
    async with asyncio.timeout(5):
        assert (await anext(changes)).thing["metadata"]["name"] == "b"
        assert len(heard) == 1
        api.say("MODIFIED", f"{NODES}/a", {"metadata": None})
        with pytest.raises(KubeError, match="watch"):
            await anext(changes)
