"""A node's edges for measuring the real agent process: a ring like the kernel's, a metadata server, an API server.

The ring runs in a process of its own, so that writing to it takes nothing from the agent or from the sidecar's end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import socket
import ssl
import sys
import time
import urllib.request
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from aiohttp import web

from rlguard.io.clock import boottime
from rlguard.io.link import Dialler, Outbox, Target
from rlguard.io.tls import Credentials, Key, client_context, node_identity, server_context
from rlguard.messages import Acknowledged, AgentReport, Message
from rlguard_chaos.lab import gpus, ports
from rlguard_chaos.lab.edge import KernelLog
from rlguard_chaos.lab.ring import Ring
from rlguard_controller.authority import Authority, controller_credentials, create_authority, sign

NODE = "node-1"
NOISE = "audit: type=1400 apparmor=DENIED operation=open name=/proc/1/environ pid=%d comm=cat"
FAULT = "NVRM: Xid (PCI:0000:%02x:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
KERNEL_WARNING = 4
GPUS = 8


def free_port() -> int:
    """A TCP port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Burst:
    """What the ring's process is told to write: so many lines, at a rate (0: as fast as it can), faults among them.

    `faults`: the bus numbers of the GPUs that fail, spread evenly over the lines.
    """

    lines: int
    rate: float
    faults: tuple[int, ...]


def _serve(folder: str, orders: Connection) -> None:
    """The ring's process: bursts come in, the moments at which each fault was written go out."""
    ring = Ring()
    log = KernelLog(ring, Path(folder) / "kmsg.sock", Path(folder) / "control.sock")
    orders.send(None)
    while True:
        log.serve(0.002)
        if orders.poll():
            burst = orders.recv()
            if burst is None:
                return
            orders.send(_write(ring, log, burst))


def _write(ring: Ring, log: KernelLog, burst: Burst) -> dict[int, float]:
    at = {}
    every = max(1, burst.lines // max(1, len(burst.faults)))
    faults = list(burst.faults)
    began = time.monotonic()
    for number in range(burst.lines):
        if faults and number % every == every - 1:
            bus = faults.pop(0)
            at[bus] = boottime()
            ring.append(FAULT % bus, KERNEL_WARNING, time.monotonic_ns() // 1000)
            log.wake()
        else:
            ring.append(NOISE % number, KERNEL_WARNING, time.monotonic_ns() // 1000)
        if burst.rate:
            log.wake()
            log.serve(0)
            while (left := began + (number + 1) / burst.rate - time.monotonic()) > 0:
                log.serve(left)  # asleep, as nothing here may take the agent's processor
        elif number % 64 == 0:
            log.wake()
            log.serve(0)
    return at


@dataclass
class Rig:
    """The agent's process between its edges, and a sidecar's end of the link."""

    folder: Path
    authority: Authority = field(default_factory=lambda: create_authority(datetime.now(UTC)))
    port: int = field(default_factory=free_port)
    health_port: int = field(default_factory=free_port)
    patches: int = 0
    seen: dict[str, float] = field(default_factory=dict)
    verdicts: list[tuple[float, str]] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def running(self, **environment: str) -> AsyncIterator[asyncio.subprocess.Process]:
        """The agent, started and linked to; its edges go with it."""
        (self.folder / "boot_id").write_text("11111111-boot\n")
        (self.folder / "token").write_text("a-token")
        here, there = multiprocessing.Pipe()
        ring = multiprocessing.get_context("spawn").Process(target=_serve, args=(str(self.folder), there), daemon=True)
        ring.start()
        there.close()  # so that a ring that died is the end of what it tells, not a wait for ever
        self._orders = here
        await asyncio.to_thread(here.recv)
        async with self._servers() as (plain, controller):
            command = (sys.executable, "-m", "rlguard_agent")
            agent = await asyncio.create_subprocess_exec(
                *command, env=self._environment(plain, controller, environment), stdout=DEVNULL, stderr=DEVNULL
            )
            link = asyncio.create_task(self._link())
            try:
                yield agent
            finally:
                link.cancel()
                await asyncio.gather(link, return_exceptions=True)
                agent.kill()
                await agent.wait()
                here.send(None)
                await asyncio.to_thread(ring.join)

    def machine(self) -> dict[str, str]:
        """The agent's settings for a machine with GPUS GPUs, as many RDMA ports, and one shared file system."""
        driver, tree, pods = self.folder / "driver", self.folder / "node" / "sys", self.folder / "pods"
        gpus.install(driver, GPUS)
        ports.lay_out(tree, GPUS)
        place = pods / "uid-0" / "volumes" / "nfs" / "data"
        place.mkdir(parents=True)
        table = self.folder / "mountinfo"
        table.write_text(f"90 22 0:52 / {place} rw - nfs4 10.0.0.9:/cfs rw\n")
        return {
            "RLGUARD_AGENT_GPUS": str(GPUS),
            "RLGUARD_AGENT_DRIVER_ROOT": str(driver),
            "RLGUARD_NVML_STATE": str(driver / gpus.STATE),
            "RLGUARD_AGENT_RDMA": "on",
            "RLGUARD_AGENT_SYSFS": str(tree),
            "RLGUARD_AGENT_STORAGE": "on",
            "RLGUARD_AGENT_PODS": str(pods),
            "RLGUARD_AGENT_MOUNTS": str(table),
        }

    def lose_gpu(self) -> str:
        """GPU 0 of the `machine` is gone from now on; returns its notice's id."""
        gpus.change(self.folder / "driver" / gpus.STATE, {"device.0.lost": 1})
        return "11111111/gpu-lost/0000:1b:00"

    async def write(self, burst: Burst) -> dict[int, float]:
        """Write lines; returns when each fault was written (CLOCK_BOOTTIME, seconds), by bus number."""
        self._orders.send(burst)
        answer: dict[int, float] = await asyncio.to_thread(self._orders.recv)
        return answer

    def _environment(self, plain: str, controller: str, more: dict[str, str]) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "RLGUARD_NODE": NODE,
            "RLGUARD_HOST_IP": "127.0.0.1",
            "RLGUARD_CONTROLLER": controller,
            "RLGUARD_CA": self.authority.pem.decode(),
            "RLGUARD_AGENT_PORT": str(self.port),
            "RLGUARD_AGENT_HEALTH_PORT": str(self.health_port),
            "RLGUARD_AGENT_KMSG": f"unix:{self.folder}/kmsg.sock",
            "RLGUARD_AGENT_METADATA": plain,
            "RLGUARD_AGENT_API": plain,
            "RLGUARD_AGENT_API_ACCOUNT": str(self.folder),
            "RLGUARD_AGENT_GPUS": "off",
            "RLGUARD_AGENT_RDMA": "off",
            "RLGUARD_AGENT_STORAGE": "off",
            "RLGUARD_AGENT_DBUS": str(self.folder / "no-dbus"),
            "RLGUARD_AGENT_TOKEN": str(self.folder / "token"),
            "RLGUARD_AGENT_STATE": str(self.folder / "state"),
            "RLGUARD_AGENT_BOOT_ID": str(self.folder / "boot_id"),
            **more,
        }

    def scrape(self) -> str:
        """The agent's metrics, as Prometheus gets them."""
        url = f"https://127.0.0.1:{self.port}/metrics"
        with urllib.request.urlopen(url, timeout=5, context=self._context()) as answer:
            text: str = answer.read().decode()
        return text

    def _context(self) -> ssl.SSLContext:
        key = Key.generate()
        signed = sign(self.authority, key.request(), "rlguard://pod/ns/pod-0/uid-0", datetime.now(UTC))
        return client_context(Credentials(signed, key, self.authority.pem))

    async def _link(self) -> None:
        context = self._context()
        target = Target(f"https://127.0.0.1:{self.port}/v1/node", node_identity(NODE))
        outbox = Outbox()
        outbox.publish(Acknowledged("uid-0", ()))
        await Dialler(lambda: target, lambda: context, outbox, self._take).run()

    def _take(self, message: Message) -> None:
        assert isinstance(message, AgentReport)  # noqa: S101 - an agent says nothing else
        now = boottime()
        if not self.verdicts or self.verdicts[-1][1] != message.verdict.value:
            self.verdicts.append((now, message.verdict.value))
        for notice in message.notices:
            self.seen.setdefault(notice.id, now)

    @contextlib.asynccontextmanager
    async def _servers(self) -> AsyncIterator[tuple[str, str]]:
        credentials = controller_credentials(self.authority, Key.generate(), (), datetime.now(UTC))
        places = []
        async with contextlib.AsyncExitStack() as stack:
            for app, context in (
                (self._plain(), None),
                (self._controller(), server_context(credentials, client_required=False)),
            ):
                runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
                await runner.setup()
                stack.push_async_callback(runner.cleanup)
                port = free_port()
                await web.TCPSite(runner, "127.0.0.1", port, ssl_context=context).start()
                places.append(f"127.0.0.1:{port}")
            yield f"http://{places[0]}", places[1]

    def _plain(self) -> web.Application:
        node = {"metadata": {"name": NODE, "resourceVersion": "1"}}

        async def spot(_: web.Request) -> web.Response:
            return web.Response(status=404)

        async def get(_: web.Request) -> web.Response:
            return web.json_response(node)

        async def watch(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            await asyncio.Event().wait()
            return response

        async def event(_: web.Request) -> web.Response:
            return web.json_response({}, status=201)

        async def patch(_: web.Request) -> web.Response:
            self.patches += 1
            return web.json_response(node)

        app = web.Application()
        app.router.add_post("/api/v1/namespaces/default/events", event)
        app.router.add_get("/latest/meta-data/spot/termination-time", spot)
        app.router.add_get(f"/api/v1/nodes/{NODE}", get)
        app.router.add_get("/api/v1/nodes", watch)
        app.router.add_patch(f"/api/v1/nodes/{NODE}/status", patch)
        return app

    def _controller(self) -> web.Application:
        async def certificate(request: web.Request) -> web.Response:
            body: dict[str, Any] = await request.json()
            signed = sign(self.authority, body["request"].encode(), node_identity(NODE), datetime.now(UTC))
            return web.Response(text=json.dumps({"certificate": signed.decode()}), content_type="application/json")

        app = web.Application()
        app.router.add_post("/v1/certificate", certificate)
        return app


async def until(look: Any, within: float) -> bool:
    """Whether `look()` became true in time."""
    end = boottime() + within
    while boottime() < end:
        if look():
            return True
        await asyncio.sleep(0.005)
    return bool(look())
