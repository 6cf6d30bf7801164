"""The real agent process with the cloud found by its firmware, a mount that hangs, and Events about its Node."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
from fakecloud import FakeCloud, serving
from prometheus_client import CollectorRegistry
from waiting import until

from rlguard.health.assess import KernelRead, notice_id
from rlguard.io.link import Dialler, Outbox, Target
from rlguard.io.tls import client_context, node_identity
from rlguard.messages import Acknowledged, AgentReport, Message
from rlguard.model import Verdict
from rlguard_agent.metadata import QUIET_ROUNDS
from rlguard_agent.server import Server
from rlguard_agent.settings import read_settings
from rlguard_agent.sources import Sources

XID = "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


@asynccontextmanager
async def reports(world: Any) -> AsyncIterator[list[AgentReport]]:
    """What a sidecar on the node hears; it acknowledges all of it."""
    heard: list[AgentReport] = []
    outbox = Outbox()

    def take(message: Message) -> None:
        assert isinstance(message, AgentReport)
        heard.append(message)
        outbox.publish(Acknowledged("uid-0", tuple(notice.id for notice in message.notices)))

    context = client_context(world.pod_credentials())
    target = Target(f"https://127.0.0.1:{world.port}/v1/node", node_identity("node-1"))
    task = asyncio.create_task(Dialler(lambda: target, lambda: context, outbox, take).run())
    try:
        yield heard
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def codes(heard: list[AgentReport]) -> list[str]:
    return [notice.code for notice in heard[-1].notices] if heard else []


def firmware(folder: Path, vendor: str) -> str:
    (folder / "dmi").mkdir()
    (folder / "dmi" / "sys_vendor").write_text(vendor + "\n")
    return str(folder / "dmi")


async def test_the_cloud_is_known_by_its_firmware_and_its_notice_reaches_the_sidecar(world: Any) -> None:
    end = (datetime.now(UTC) + timedelta(seconds=120)).strftime('{"action": "terminate", "time": "%Y-%m-%dT%H:%M:%SZ"}')
    token = ("/latest/api/token", "X-aws-ec2-metadata-token", "t")
    async with serving(FakeCloud(token=token)) as cloud:
        dmi = firmware(world.folder, "Amazon EC2")
        await world.start(RLGUARD_AGENT_CLOUD="auto", RLGUARD_AGENT_DMI=dmi, RLGUARD_AGENT_METADATA=cloud.url)
        async with reports(world) as heard:
            await until(lambda: heard and heard[-1].verdict is Verdict.HEALTHY)
            cloud.answers["/latest/meta-data/spot/instance-action"] = (200, end)
            await until(lambda: heard[-1].verdict is Verdict.LEAVING)
            assert codes(heard) == ["spot-reclaim"]


async def test_on_no_known_cloud_none_is_asked(world: Any) -> None:
    async with serving(FakeCloud()) as cloud:
        dmi = firmware(world.folder, "QEMU")
        await world.start(RLGUARD_AGENT_CLOUD="auto", RLGUARD_AGENT_DMI=dmi, RLGUARD_AGENT_METADATA=cloud.url)
        async with reports(world) as heard:
            await until(lambda: heard and heard[-1].verdict is Verdict.HEALTHY)
    assert cloud.seen == []


@pytest.mark.parametrize("mood", ["hang", "html"])
async def test_a_cloud_in_a_mood_does_not_delay_a_kernel_line(world: Any, mood: str) -> None:
    async with serving(FakeCloud(mood=mood)) as cloud:
        await world.start(RLGUARD_AGENT_METADATA=cloud.url)
        async with reports(world) as heard:
            await until(lambda: heard and heard[-1].verdict is Verdict.UNKNOWN)
            began = asyncio.get_running_loop().time()
            world.kernel.write(XID)
            await until(lambda: codes(heard) == ["xid-79"])
            assert asyncio.get_running_loop().time() - began < 2


async def test_azure_may_go_ahead_once_the_pods_that_were_told_have_left_and_not_before(world: Any) -> None:
    begins = (datetime.now(UTC) + timedelta(seconds=600)).strftime("%a, %d %b %Y %H:%M:%S GMT")
    event = {"EventId": "e-1", "EventStatus": "Scheduled", "EventType": "Reboot", "Resources": ["vm_0"]}
    document = json.dumps({"DocumentIncarnation": 1, "Events": [{**event, "NotBefore": begins}]})
    answers = {
        "/metadata/instance/compute/name?api-version=2021-02-01&format=text": (200, "vm_0"),
        "/metadata/scheduledevents?api-version=2020-07-01": (200, document),
    }
    async with serving(FakeCloud(answers)) as cloud:
        await world.start(
            hurry={"rlguard_agent.metadata.EVERY": 0.3},
            RLGUARD_AGENT_CLOUD="azure",
            RLGUARD_AGENT_METADATA=cloud.url,
            RLGUARD_AGENT_AZURE_EXPEDITE="1",
        )
        async with reports(world) as heard:
            await until(lambda: codes(heard) == ["maintenance-reboot"])
            asked = len(cloud.seen)
            await until(lambda: len(cloud.seen) > asked + QUIET_ROUNDS + 1)
            assert not any(method == "POST" for method, _, _ in cloud.seen)
        await until(lambda: any(method == "POST" for method, _, _ in cloud.seen))


async def test_a_new_fault_is_an_event_about_the_node(world: Any) -> None:
    await world.start()
    async with reports(world) as heard:
        world.kernel.write(XID)
        await until(lambda: codes(heard) == ["xid-79"] and world.events)
        await world.kill()
        await world.start()
        heard.clear()
        await until(lambda: codes(heard) == ["xid-79"])
    (event,) = world.events.values()
    assert event["reason"] == "xid-79"
    assert "To do: reboot the node" in event["message"]


async def test_the_mounts_of_a_pod_with_a_sidecar_are_looked_at(world: Any) -> None:
    pods, table = world.folder / "pods", world.folder / "mountinfo"
    pods.mkdir()
    table.write_text(f"90 22 0:52 / {pods}/uid-0/volumes/nfs/d rw - nfs4 10.0.0.9:/cfs rw\n")
    await world.start(RLGUARD_AGENT_MOUNTS=str(table))
    async with reports(world) as heard:
        # The real probe: that place is not there, as if it had been unmounted a moment ago.
        await until(lambda: heard and heard[-1].verdict is Verdict.HEALTHY)
        assert codes(heard) == []


async def test_storage_that_cannot_be_looked_at_is_unknown_where_a_person_wants_it_watched(world: Any) -> None:
    await world.start(hurry={"rlguard_agent.node.DOUBT": 1.0}, RLGUARD_AGENT_STORAGE="on")
    async with reports(world) as heard:
        await until(lambda: heard and heard[-1].verdict is Verdict.UNKNOWN and world.conditions())
    assert "agent.hostPaths" in world.conditions()[-1]["message"]


async def test_who_else_acts_on_the_node_is_told_and_costs_nothing(world: Any) -> None:
    await world.start()
    async with reports(world) as heard:
        await until(lambda: heard and heard[-1].verdict is Verdict.HEALTHY and len(world.watchers) > 0)
        await world.show_node(spec={"taints": [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]})
        await until(lambda: codes(heard) == ["remediator-karpenter"])
        assert heard[-1].verdict is Verdict.HEALTHY


def made(world: Any) -> tuple[Sources, Server]:
    """The sources in this process, none of them running."""
    log = structlog.get_logger()
    server = Server(Outbox(), CollectorRegistry(), list, log)
    settings = read_settings({**world.env(), "RLGUARD_AGENT_GPUS": "on", "RLGUARD_AGENT_RDMA": "on"})
    return Sources(settings, server, lambda _: None, log), server


async def test_a_hole_in_the_kernel_log_has_the_devices_looked_at_and_no_other_record_does(world: Any) -> None:
    sources, _ = made(world)
    assert sources._gpus is not None
    assert sources._rdma is not None
    sources._kernel_said(KernelRead(1.0, 5, (), 0, caught_up=True))
    assert not sources._gpus._kicked.is_set()
    sources._kernel_said(KernelRead(2.0, 9, (), 1, caught_up=True))
    assert sources._gpus._kicked.is_set()
    assert sources._rdma._kicked.is_set()


async def test_a_machine_is_left_when_those_that_were_told_are_gone_and_not_when_nobody_was_told(world: Any) -> None:
    sources, server = made(world)
    assert not sources._left("spot-reclaim"), "nobody was told"
    server.acknowledged["uid-0"] = frozenset({notice_id(sources.view.boot_id, "spot-reclaim")})
    server.peers = 1
    assert not sources._left("spot-reclaim"), "one is still here"
    server.peers = 0
    assert sources._left("spot-reclaim")
    assert not sources._left("maintenance-reboot"), "of that nobody was told"
