"""The agent's watch of its Node, at an API server in every mood."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from conftest import free_port
from waiting import until

from rlguard.health.assess import CannotLook, Fact, Observed
from rlguard_agent import node
from rlguard_agent.node import Api, watch_node

NODE = {"metadata": {"name": "n", "resourceVersion": "1"}}
DEEP = "[" * 200_000
MANY = {
    **NODE,
    "spec": {"taints": [{"key": f"a/{n}", "effect": "NoSchedule"} for n in range(5_000)]},
    "status": {"conditions": [{"type": f"C{n}", "status": "True"} for n in range(5_000)]},
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def watching(get: Handler, watch: Handler, folder: Path) -> AsyncIterator[tuple[list[Fact], asyncio.Task[None]]]:
    """`watch_node` at such a server."""
    app = web.Application()
    app.router.add_get("/api/v1/nodes/n", get)
    app.router.add_get("/api/v1/nodes", watch)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    (folder / "token").write_text("t")
    told: list[Fact] = []
    task = asyncio.create_task(watch_node(Api(f"http://127.0.0.1:{port}", folder, "n"), told.append, lambda _: None))
    try:
        yield told, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await runner.cleanup()


def saying(text: str, status: int = 200) -> Handler:
    """The same answer to everything."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=text, status=status)

    return answer


async def shown(_: web.Request) -> web.Response:
    return web.json_response(NODE)


@pytest.mark.parametrize("text", ["<html>", "", "[]", "null", "{}", DEEP, '{"metadata": 7}', "\x00"])
@pytest.mark.parametrize("status", [200, 410, 429, 500])
async def test_an_answer_that_is_no_node_is_not_being_able_to_look(text: str, status: int, tmp_path: Path) -> None:
    async with watching(saying(text, status), shown, tmp_path) as (told, task):
        await until(lambda: told or task.done())
        assert not task.done()
        assert isinstance(told[0], CannotLook)


@pytest.mark.parametrize(
    "line",
    [DEEP, "<html>", '{"type": "ERROR", "object": {"code": 410}}', '{"type": "ERROR", "object": 7}', '{"type": []}'],
)
async def test_a_change_that_is_none_is_not_being_able_to_look(line: str, tmp_path: Path) -> None:
    async with watching(shown, saying(line + "\n"), tmp_path) as (told, task):
        await until(lambda: len(told) > 1 or task.done())
        assert not task.done()
        assert isinstance(told[1], CannotLook)


async def test_a_watch_that_fails_at_once_is_tried_more_and_more_rarely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "PAUSE_FIRST", 0.02)
    async with watching(shown, saying("forbidden", 403), tmp_path) as (told, _):
        await until(lambda: len(told) > 1)
        await asyncio.sleep(1.5)
        assert 2 < len([fact for fact in told if isinstance(fact, Observed)]) < 10


async def test_a_node_with_thousands_of_conditions_and_taints_is_a_node(tmp_path: Path) -> None:
    async def many(_: web.Request) -> web.Response:
        return web.json_response(MANY)

    async with watching(many, saying("", 500), tmp_path) as (told, _):
        await until(lambda: told)
        assert isinstance(told[0], Observed)
