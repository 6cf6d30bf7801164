"""A metadata server that plays any cloud, and any misbehaviour."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

Answer = tuple[int, str]


@dataclass
class FakeCloud:
    """`answers`: path with query -> status and body; 404 for what is not there.

    `token`: (path, header, value) that every GET must carry. `mood`: None, or one of hang, drip, huge, cut, redirect,
    html, gzip, reset. `seen` are the requests: method, path, body.
    """

    answers: dict[str, Answer] = field(default_factory=dict)
    token: tuple[str, str, str] | None = None
    headers: dict[str, str] = field(default_factory=dict)
    mood: str | None = None
    moody: str = ""
    seen: list[tuple[str, str, str]] = field(default_factory=list)
    url: str = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Any request."""
        self.seen.append((request.method, request.path_qs, (await request.read()).decode()))
        if self.mood is not None and self.moody in request.path_qs:
            return await _MOODS[self.mood](request)
        if self.token is not None:
            path, header, value = self.token
            if request.method == "PUT" and request.path == path:
                return web.Response(text=value)
            if request.headers.get(header) != value:
                return web.Response(status=401)
        status, text = self.answers.get(request.path_qs, (404, "404 page not found\n"))
        return web.Response(status=status, text=text, headers=self.headers)


async def _hang(_: web.Request) -> web.StreamResponse:
    await asyncio.sleep(3600)
    raise AssertionError


async def _stream(request: web.Request, chunk: bytes, every: float, length: int | None = None) -> web.StreamResponse:
    response = web.StreamResponse()
    response.content_length = length
    await response.prepare(request)
    for _ in range(100_000):
        await response.write(chunk)
        await asyncio.sleep(every)
    return response


async def _cut(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    response.content_length = 1000
    await response.prepare(request)
    await response.write(b'[{"NotBefore": "21 J')
    if request.transport is not None:
        request.transport.abort()
    return response


async def _reset(request: web.Request) -> web.StreamResponse:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


async def _redirect(request: web.Request) -> web.StreamResponse:
    return web.Response(status=302, headers={"Location": f"{request.scheme}://{request.host}/portal"})


async def _html(_: web.Request) -> web.StreamResponse:
    return web.Response(text="<html>Please log in</html>", content_type="text/html")


BOMB = gzip.compress(b" " * 10_000_000)


async def _gzip(_: web.Request) -> web.StreamResponse:
    return web.Response(body=BOMB, headers={"Content-Encoding": "gzip"})


_MOODS: dict[str, Callable[[web.Request], object]] = {
    "hang": _hang,
    "drip": lambda request: _stream(request, b" ", 0.02),
    "huge": lambda request: _stream(request, b" " * 65_536, 0.0),
    "cut": _cut,
    "redirect": _redirect,
    "html": _html,
    "gzip": _gzip,
    "reset": _reset,
}
MOODS = tuple(_MOODS)


@asynccontextmanager
async def serving(cloud: FakeCloud) -> AsyncIterator[FakeCloud]:
    """The server, on a port of its own."""
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", cloud.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    cloud.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield cloud
    finally:
        await runner.cleanup()
