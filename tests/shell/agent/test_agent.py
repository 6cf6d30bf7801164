"""The real agent process between faked edges: what goes in at the kernel log comes out at a sidecar's link."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import aiohttp
import pytest
import structlog
from prometheus_client import CollectorRegistry
from waiting import until

from rlguard.io.link import Dialler, Outbox, Target
from rlguard.io.tls import client_context, node_identity
from rlguard.messages import Acknowledged, AgentReport, Figures, Message, Ranks
from rlguard.model import CheckpointId, GroupKey, Incarnation, Verdict
from rlguard_agent.server import LINKS_OF_POD, Server

XID = "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
APP_XID = "NVRM: Xid (PCI:0000:05:00): 31, pid=7, name=python3, Ch 00000008"
CHINA = timezone(timedelta(hours=8))


class Sidecar:
    """A sidecar's end of the link."""

    def __init__(self, world: Any) -> None:
        self.reports: list[AgentReport] = []
        self.outbox = Outbox()
        context = client_context(world.pod_credentials())
        target = Target(f"https://127.0.0.1:{world.port}/v1/node", node_identity("node-1"))
        self.dialler = Dialler(lambda: target, lambda: context, self.outbox, self._take)

    def _take(self, message: Message) -> None:
        assert isinstance(message, AgentReport)
        self.reports.append(message)

    def codes(self) -> list[str]:
        """The codes in the newest report."""
        return [notice.code for notice in self.reports[-1].notices] if self.reports else []

    def verdict(self) -> Verdict | None:
        """The newest verdict."""
        return self.reports[-1].verdict if self.reports else None


@asynccontextmanager
async def linked(world: Any) -> AsyncIterator[Sidecar]:
    """A sidecar that keeps dialling the agent."""
    sidecar = Sidecar(world)
    task = asyncio.create_task(sidecar.dialler.run())
    try:
        yield sidecar
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_kernel_line_reaches_the_sidecar_and_the_node_as_a_fault(world: Any) -> None:
    await world.start()
    async with linked(world) as sidecar:
        await until(lambda: sidecar.verdict() is Verdict.HEALTHY)
        world.kernel.write("something else")
        world.kernel.write(XID)
        await until(lambda: sidecar.verdict() is Verdict.LOST)
    (notice,) = sidecar.reports[-1].notices
    assert notice.id == "11111111/xid-79/0000:05:00"
    await until(lambda: [c["status"] for c in world.conditions()][-1:] == ["False"])
    assert world.conditions()[-1]["type"] == "rlguard.io/Healthy"
    assert world.conditions()[-1]["reason"] == "xid-79"
    assert set(world.tokens) == {"Bearer a-token"}


async def test_a_killed_agent_forgets_nothing_and_tells_nothing_twice(world: Any) -> None:
    world.kernel.write(XID)
    await world.start()
    async with linked(world) as sidecar:
        await until(lambda: sidecar.codes() == ["xid-79"])
        await until((world.folder / "state" / "state.json").exists)
        await world.kill()
        world.kernel.write("NVRM: Xid (PCI:0000:06:00): 119, pid=1, name=x, GSP")
        await world.start()
        await until(lambda: sidecar.codes() == ["xid-119", "xid-79"])
    seen = {notice.id for report in sidecar.reports for notice in report.notices}
    assert seen == {"11111111/xid-79/0000:05:00", "11111111/xid-119/0000:06:00"}
    assert all(report.verdict is not Verdict.HEALTHY for report in sidecar.reports if report.notices)


async def test_after_another_boot_the_old_faults_are_gone(world: Any) -> None:
    world.kernel.write(XID)
    await world.start()
    async with linked(world) as sidecar:
        await until(lambda: sidecar.verdict() is Verdict.LOST)
        await until((world.folder / "state" / "state.json").exists)
        await world.kill()
        world.boot("22222222-boot")
        world.kernel.packets.clear()
        sidecar.reports.clear()
        await world.start()
        await until(lambda: sidecar.verdict() is Verdict.HEALTHY)
    assert {report.boot_id for report in sidecar.reports} == {"22222222-boot"}
    assert not any(report.notices for report in sidecar.reports)


async def test_a_spot_notice_reaches_the_sidecar_with_its_deadline_and_is_acknowledged(world: Any) -> None:
    await world.start()
    async with linked(world) as sidecar:
        await until(lambda: sidecar.verdict() is Verdict.HEALTHY)
        end = datetime.now(UTC) + timedelta(seconds=120)
        world.spot = (200, end.astimezone(CHINA).strftime("%Y-%m-%d %H:%M:%S"))
        await until(lambda: sidecar.verdict() is Verdict.LEAVING)
        (notice,) = sidecar.reports[-1].notices
        assert notice.code == "spot-reclaim"
        assert notice.seconds_left is not None
        assert 0 < notice.seconds_left <= 121
        sidecar.outbox.publish(Acknowledged("uid-0", (notice.id,)))
        figures = await metrics(world)
        while b"rlguard_agent_acknowledging_pods 1.0" not in figures:
            await asyncio.sleep(0.02)
            figures = await metrics(world)
    assert b'rlguard_agent_verdict{verdict="leaving"} 1.0' in figures


async def metrics(world: Any) -> bytes:
    """What Prometheus would read."""
    context = client_context(world.pod_credentials())
    url = f"https://127.0.0.1:{world.port}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url, ssl=context) as response:
        return await response.read()


async def test_one_pod_cannot_take_the_links_of_all_others(world: Any) -> None:
    await world.start()
    async with linked(world) as sidecar:
        await until(lambda: sidecar.verdict() is not None)
        context = client_context(world.pod_credentials("rlguard://pod/ns/greedy/uid-1"))
        url = f"https://127.0.0.1:{world.port}/v1/node"
        async with aiohttp.ClientSession() as session:
            taken = [await session.ws_connect(url, ssl=context) for _ in range(LINKS_OF_POD)]
            with pytest.raises(aiohttp.WSServerHandshakeError, match="503"):
                await session.ws_connect(url, ssl=context)
            await taken[0].close()
            await again(session, url, context)


async def again(session: aiohttp.ClientSession, url: str, context: ssl.SSLContext) -> None:
    """A link, once the agent has noticed that another was closed."""
    async with asyncio.timeout(10):
        while True:
            with suppress(aiohttp.WSServerHandshakeError):
                await session.ws_connect(url, ssl=context)
                return
            await asyncio.sleep(0.05)


async def test_an_overrun_of_the_kernel_log_is_not_passed_over(world: Any) -> None:
    world.kernel.write("first")
    await world.start()
    async with linked(world) as sidecar:
        await until(lambda: sidecar.verdict() is Verdict.HEALTHY)
        world.kernel.send(b"EPIPE")
        world.kernel.write("later", sequence=1000)
        await until(lambda: sidecar.verdict() is Verdict.UNKNOWN)
        world.kernel.write(XID, sequence=1001)
        await until(lambda: sidecar.verdict() is Verdict.LOST)


async def test_what_others_write_onto_the_node_is_told(world: Any) -> None:
    await world.start()
    async with linked(world) as sidecar:
        await until(lambda: sidecar.verdict() is Verdict.HEALTHY and len(world.watchers) > 0)
        await world.show_node(status={"conditions": [{"type": "GPUDeviceLost", "status": "True"}]})
        await until(lambda: sidecar.verdict() is Verdict.LOST)
        await world.show_node(spec={"unschedulable": True})
        await until(lambda: sidecar.verdict() is Verdict.HEALTHY and sidecar.codes() == ["node-cordoned"])


async def test_without_cloud_and_api_server_a_fault_is_still_told(world: Any) -> None:
    await world.start(RLGUARD_AGENT_METADATA="http://127.0.0.1:1", RLGUARD_AGENT_API="http://127.0.0.1:1")
    async with linked(world) as sidecar:
        await until(lambda: sidecar.verdict() is Verdict.UNKNOWN)
        world.kernel.write(APP_XID)
        await until(lambda: sidecar.codes() == ["xid-31"])
        assert sidecar.verdict() is Verdict.UNKNOWN
        world.kernel.write(XID)
        await until(lambda: sidecar.verdict() is Verdict.LOST)


async def test_a_state_folder_that_cannot_be_written_costs_nothing_else(world: Any) -> None:
    (world.folder / "file").write_text("")
    await world.start(RLGUARD_AGENT_STATE=str(world.folder / "file" / "state"))
    async with linked(world) as sidecar:
        world.kernel.write(XID)
        await until(lambda: sidecar.verdict() is Verdict.LOST)


async def test_who_has_no_pod_s_certificate_is_told_nothing(world: Any) -> None:
    await world.start()
    async with linked(world) as sidecar:
        await until(lambda: sidecar.verdict() is Verdict.HEALTHY)
    url = f"https://127.0.0.1:{world.port}/v1/node"
    anonymous = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anonymous.check_hostname, anonymous.verify_mode = False, ssl.CERT_NONE
    async with aiohttp.ClientSession() as session:
        with pytest.raises((aiohttp.ClientError, OSError)):
            await session.get(url, ssl=anonymous)
        agent = client_context(world.pod_credentials(node_identity("node-2")))
        async with session.get(url, ssl=agent) as response:
            assert response.status == 403


async def test_kubelet_is_answered_although_there_is_no_controller(world: Any) -> None:
    await world.start(RLGUARD_CONTROLLER="127.0.0.1:1")
    url = f"http://127.0.0.1:{world.health_port}/healthz"
    async with aiohttp.ClientSession() as session, asyncio.timeout(30):
        while True:
            try:
                async with session.get(url) as response:
                    assert (response.status, await response.text()) == (200, "ok\n")
                    return
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.05)


async def test_a_wrong_setting_is_named_and_ends_the_agent(world: Any) -> None:
    await world.start(RLGUARD_AGENT_CLOUD="tencnt")
    assert await world.process.wait() == 2


def figures(namespace: str, step: int) -> Figures:
    """What a sidecar tells of its member."""
    return Figures(
        GroupKey(namespace, "ppo", 0),
        1,
        Incarnation(2, 3),
        Ranks.RUNNING,
        step,
        0.5,
        CheckpointId(Incarnation(2, 3), 90),
    )


async def test_what_a_sidecar_tells_of_its_member_is_shown_with_job_group_and_member(world: Any) -> None:
    await world.start()
    async with linked(world) as sidecar:
        await until(lambda: sidecar.verdict() is not None)
        sidecar.outbox.publish(Acknowledged("uid-0", (), figures("ns", 97)))
        line = 'rlguard_member_step{group="0",job="ppo",member="1",namespace="ns"} 97.0'
        await until_shown(world, line)
        text = await scraped(world)
    assert 'rlguard_member_staged_step{group="0",job="ppo",member="1",namespace="ns"} 90.0' in text
    assert 'rlguard_member_attempt{group="0",job="ppo",member="1",namespace="ns"} 3.0' in text
    assert 'rlguard_member_ranks_running{group="0",job="ppo",member="1",namespace="ns"} 1.0' in text


async def test_a_sidecar_cannot_tell_figures_of_another_namespaces_job(world: Any) -> None:
    await world.start()
    async with linked(world) as sidecar:
        await until(lambda: sidecar.verdict() is not None)
        sidecar.outbox.publish(Acknowledged("uid-0", ("seen",), figures("other", 97)))
        await until_shown(world, "rlguard_agent_acknowledging_pods 1.0")
        assert 'namespace="other"' not in await scraped(world)


async def scraped(world: Any) -> str:
    """The agent's metrics."""
    context = client_context(world.pod_credentials())
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"https://127.0.0.1:{world.port}/metrics", ssl=context) as response,
    ):
        return await response.text()


async def until_shown(world: Any, line: str) -> None:
    """Wait for a line of the metrics."""
    async with asyncio.timeout(10):
        while line not in await scraped(world):  # noqa: ASYNC110 - what is waited for is another process
            await asyncio.sleep(0.05)


async def test_of_two_pods_of_one_member_the_newest_figures_are_shown_once() -> None:
    """Prometheus refuses the same series twice, and while a pod replaces another both may be here."""
    server = Server(Outbox(), CollectorRegistry(), list, structlog.get_logger())
    for uid, step in (("uid-1", 7), ("uid-0", 5), ("uid-1", 9)):
        server._take(f"rlguard://pod/ns/pod-0/{uid}", Acknowledged(uid, (), figures("ns", step)))
    assert [member.step for member in server.members(0.0)] == [9]
