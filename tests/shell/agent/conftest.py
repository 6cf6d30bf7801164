"""A node's edges, faked at the lowest level: a kernel log, a metadata server, an API server, an authority."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rlguard.io.tls import Credentials, Key, node_identity, server_context
from rlguard_controller.authority import Authority, controller_credentials, create_authority, sign

NODE = "node-1"
TOKEN = "a-token"  # noqa: S105 - of a test

HURRY = """\
import importlib, runpy, sys
for change in sys.argv[1:]:
    name, _, value = change.partition("=")
    module, _, constant = name.rpartition(".")
    getattr(importlib.import_module(module), constant)
    setattr(importlib.import_module(module), constant, float(value))
runpy.run_module("rlguard_agent", run_name="__main__")
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class KernelLog:
    """A packet socket that gives each reader all records so far, then new ones, as /dev/kmsg does."""

    def __init__(self, path: Path) -> None:
        self.place = f"unix:{path}"
        self.packets: list[bytes] = []
        self._readers: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self._listener.bind(str(path))
        self._listener.listen()
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        reader = self._listener.accept()[0]
        self._readers.append(reader)
        for packet in self.packets:
            reader.send(packet)

    def write(self, text: str, sequence: int | None = None) -> None:
        """Add a line of the kernel's own."""
        number = len(self.packets) if sequence is None else sequence
        self.send(f"4,{number},{number},-;{text}\n".encode())

    def send(self, packet: bytes) -> None:
        """Add a packet as it is."""
        self.packets.append(packet)
        for reader in self._readers:
            with contextlib.suppress(OSError):
                reader.send(packet)

    def close(self) -> None:
        """Close everything."""
        asyncio.get_running_loop().remove_reader(self._listener)
        for one in (self._listener, *self._readers):
            one.close()


@dataclass
class World:
    """All the edges of one node, and the agent's process between them."""

    folder: Path
    kernel: KernelLog
    authority: Authority
    spot: tuple[int, str] = (404, "")
    node: dict[str, Any] = field(default_factory=dict)
    patches: list[dict[str, Any]] = field(default_factory=list)
    events: dict[str, dict[str, Any]] = field(default_factory=dict)
    watchers: list[web.StreamResponse] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    port: int = field(default_factory=free_port)
    health_port: int = field(default_factory=free_port)
    http: str = ""
    controller: str = ""
    process: asyncio.subprocess.Process | None = None

    def env(self) -> dict[str, str]:
        """What the agent is told."""
        return {
            "PATH": os.environ["PATH"],
            "RLGUARD_NODE": NODE,
            "RLGUARD_HOST_IP": "127.0.0.1",
            "RLGUARD_CONTROLLER": self.controller,
            "RLGUARD_CA": self.authority.pem.decode(),
            "RLGUARD_AGENT_PORT": str(self.port),
            "RLGUARD_AGENT_HEALTH_PORT": str(self.health_port),
            "RLGUARD_AGENT_KMSG": self.kernel.place,
            "RLGUARD_AGENT_METADATA": self.http,
            "RLGUARD_AGENT_SYSFS": str(self.folder / "node" / "sys"),
            "RLGUARD_AGENT_API": self.http,
            "RLGUARD_AGENT_API_ACCOUNT": str(self.folder),
            "RLGUARD_AGENT_GPUS": "off",
            "RLGUARD_AGENT_TOKEN": str(self.folder / "token"),
            "RLGUARD_AGENT_STATE": str(self.folder / "state"),
            "RLGUARD_AGENT_PODS": str(self.folder / "pods"),
            "RLGUARD_AGENT_DBUS": str(self.folder / "dbus.sock"),
            "RLGUARD_AGENT_BOOT_ID": str(self.folder / "boot_id"),
        }

    async def start(self, hurry: Mapping[str, float] | None = None, **changes: str) -> None:
        """Start the agent, as its container does. `hurry`: other paces, as {"rlguard_agent.metadata.EVERY": 0.2}."""
        command = (sys.executable, "-m", "rlguard_agent")
        if hurry:
            command = (sys.executable, "-c", HURRY, *(f"{name}={value}" for name, value in hurry.items()))
        self.process = await asyncio.create_subprocess_exec(*command, env={**self.env(), **changes})

    async def kill(self) -> None:
        """SIGKILL it."""
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()

    def boot(self, boot_id: str) -> None:
        """Give the node another boot."""
        (self.folder / "boot_id").write_text(boot_id + "\n")

    def pod_credentials(self, identity: str = "rlguard://pod/ns/pod-0/uid-0") -> Credentials:
        """What a sidecar on the node has."""
        key = Key.generate()
        return Credentials(sign(self.authority, key.request(), identity, datetime.now(UTC)), key, self.authority.pem)

    def conditions(self) -> list[dict[str, Any]]:
        """The conditions the agent wrote, oldest first."""
        return [patch["status"]["conditions"][0] for patch in self.patches]

    async def show_node(self, **node: Any) -> None:
        """Change the Node object and tell those who watch it."""
        self.node = {"metadata": {"name": NODE, "resourceVersion": "2"}, **node}
        event = json.dumps({"type": "MODIFIED", "object": self.node}).encode() + b"\n"
        for watcher in self.watchers:
            with contextlib.suppress(ConnectionError):
                await watcher.write(event)


def plain_app(world: World) -> web.Application:
    """The metadata server and the API server, without TLS."""

    async def spot(_: web.Request) -> web.Response:
        status, text = world.spot
        return web.Response(status=status, text=text)

    async def get(_: web.Request) -> web.Response:
        return web.json_response(world.node)

    async def watch(request: web.Request) -> web.StreamResponse:
        assert request.query["fieldSelector"] == f"metadata.name={NODE}"
        response = web.StreamResponse()
        await response.prepare(request)
        world.watchers.append(response)
        await asyncio.Event().wait()
        return response

    async def patch(request: web.Request) -> web.Response:
        assert request.headers["Content-Type"] == "application/strategic-merge-patch+json"
        world.patches.append(await request.json())
        return web.json_response(world.node)

    async def event(request: web.Request) -> web.Response:
        body = await request.json()
        if body["metadata"]["name"] in world.events:
            return web.json_response({"message": "exists"}, status=409)
        world.events[body["metadata"]["name"]] = body
        return web.json_response(body, status=201)

    app = web.Application()
    app.router.add_post("/api/v1/namespaces/default/events", event)
    app.router.add_get("/latest/meta-data/spot/termination-time", spot)
    app.router.add_get(f"/api/v1/nodes/{NODE}", get)
    app.router.add_get("/api/v1/nodes", watch)
    app.router.add_patch(f"/api/v1/nodes/{NODE}/status", patch)
    return app


def controller_app(world: World) -> web.Application:
    """The controller's part that gives out certificates."""

    async def certificate(request: web.Request) -> web.Response:
        world.tokens.append(request.headers["Authorization"])
        body = await request.json()
        signed = sign(world.authority, body["request"].encode(), node_identity(NODE), datetime.now(UTC))
        return web.json_response({"certificate": signed.decode()})

    app = web.Application()
    app.router.add_post("/v1/certificate", certificate)
    return app


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A node with an API server, a metadata server and a controller; the agent is not started."""
    made = World(tmp_path, KernelLog(tmp_path / "kmsg.sock"), create_authority(datetime.now(UTC)))
    made.boot("11111111-boot")
    made.node = {"metadata": {"name": NODE, "resourceVersion": "1"}}
    (tmp_path / "token").write_text(TOKEN)
    runners = []
    credentials = controller_credentials(made.authority, Key.generate(), (), datetime.now(UTC))
    for app, context in (
        (plain_app(made), None),
        (controller_app(made), server_context(credentials, client_required=False)),
    ):
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        port = free_port()
        await web.TCPSite(runner, "127.0.0.1", port, ssl_context=context).start()
        runners.append(runner)
        if context is None:
            made.http = f"http://127.0.0.1:{port}"
        else:
            made.controller = f"127.0.0.1:{port}"
    yield made
    await made.kill()
    for runner in runners:
        await runner.cleanup()
    made.kernel.close()
