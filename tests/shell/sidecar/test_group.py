"""A group of two real sidecars, two real launchers and a program that counts: broken in every way, it counts on."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from authority import Authority
from fakeagent import FakeAgent
from fakecontroller import FakeController
from pod import Pod
from waiting import until

from rlguard.messages import GroupReport
from rlguard.model import CheckpointId, Notice, Phase, Repair, Scope, Severity


@dataclass
class Group:
    """Everything in one place."""

    controller: FakeController
    agent: FakeAgent
    pods: list[Pod]
    root: Path

    def report(self) -> GroupReport | None:
        """What the coordinator says."""
        leader = self.controller.leader()
        return leader.group if leader else None

    def phase(self) -> Phase | None:
        """Where the group is."""
        report = self.report()
        return report.phase if report else None

    def newest(self) -> CheckpointId | None:
        """The newest committed checkpoint, as the controller hears it."""
        report = self.report()
        return report.newest if report else None

    def at(self, incarnation: str) -> bool:
        """Whether the last step of every member was done in this incarnation."""
        lasts = [pod.last() for pod in self.pods]
        return all(last is not None and last.incarnation == incarnation for last in lasts)

    def pids(self) -> list[int]:
        """The process that did each pod's last step."""
        return [last.pid for pod in self.pods if (last := pod.last())]

    def advanced(self) -> object:
        """A condition: every pod has done ten more steps than now."""
        marks = [last.step for pod in self.pods if (last := pod.last())]

        def further() -> bool:
            lasts = [pod.last() for pod in self.pods]
            return all(last is not None and last.step >= mark + 10 for last, mark in zip(lasts, marks, strict=True))

        return further


@pytest.fixture
async def group(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Group]:
    extra: dict[str, str] = dict(getattr(request, "param", {}))
    authority = Authority()
    controller = FakeController(authority, 2)
    await controller.start()
    root = tmp_path / "volume" / ".rlguard" / "team" / "ppo" / "0"
    (tmp_path / "volume").mkdir()
    address = f"127.0.0.1:{controller.port}"
    where = "" if extra.pop("NO_ROOT", None) else str(root)
    pods = [Pod(tmp_path / f"pod-{index}", index, address, authority.pem, where, extra=extra) for index in (0, 1)]
    agent = FakeAgent(authority, "node-1")
    pods[1].agent_port = await agent.start(pods[1].address)
    try:
        for pod in pods:
            pod.start()
        yield Group(controller, agent, pods, root)
    finally:
        for pod in pods:
            pod.stop()
        await agent.stop()
        await controller.stop()


async def test_a_killed_rank_comes_back_in_the_next_attempt_from_memory(group: Group) -> None:
    await until(lambda: group.at("1.1") and group.newest() is not None)
    os.kill(group.pids()[1], signal.SIGKILL)
    await until(lambda: group.at("1.2"))
    firsts = {last.first for pod in group.pods if (last := pod.last())}
    assert len(firsts) == 1
    assert firsts.pop() > 0
    assert group.phase() in (Phase.STARTING, Phase.RUNNING)
    assert sorted(path.name for path in (group.root / "lineage").glob("*.json")) == ["1.1.json", "1.2.json"]
    await until(lambda: list((group.root / "incidents").glob("*/incident.json")))


async def test_a_killed_worker_sidecar_pauses_nobody(group: Group) -> None:
    await until(lambda: group.at("1.1"))
    pids = group.pids()
    group.pods[1].kill_sidecar_process()
    await until(group.advanced())
    await until(lambda: group.pods[1].sidecar_pid() is not None)
    await until(lambda: group.newest() is not None)
    assert group.pids() == pids
    assert group.at("1.1")


async def test_a_killed_coordinator_adopts_what_runs_and_recovers_it(group: Group) -> None:
    await until(lambda: group.at("1.1") and group.newest() is not None)
    pids, newest = group.pids(), group.newest()
    group.pods[0].kill_sidecar_process()
    await until(group.advanced())
    assert group.pids() == pids
    await until(lambda: group.newest() != newest)
    assert group.at("1.1")
    os.kill(pids[0], signal.SIGKILL)
    await until(lambda: group.at("1.2"))
    assert all(last.first > 0 for pod in group.pods if (last := pod.last()))


async def test_without_a_controller_a_restarted_coordinator_still_recovers_the_group(group: Group) -> None:
    await until(lambda: group.at("1.1") and group.newest() is not None)
    await group.controller.stop()
    before = group.pods[0].kill_sidecar_process()
    await until(lambda: group.pods[0].sidecar_pid() not in (None, before))
    os.kill(group.pids()[1], signal.SIGKILL)
    await until(lambda: group.at("1.2"))
    assert all(last.first > 0 for pod in group.pods if (last := pod.last()))


async def test_garbage_on_the_launchers_socket_pauses_nobody(group: Group) -> None:
    await until(lambda: group.at("1.1"))
    pids = group.pids()
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as rogue, contextlib.suppress(OSError):
        rogue.connect(str(group.pods[0].folder / "run" / "sidecar.sock"))
        rogue.sendall(b"\xff\x00garbage\n" * 1000)
        rogue.sendall(b'{"type": "state", "ranks": "gone"}\n')
    await until(group.advanced())
    assert group.pids() == pids
    assert group.at("1.1")


@pytest.mark.parametrize("group", [{"LAST_STEP": "60"}], indirect=True)
async def test_ranks_that_all_end_well_complete_the_job(group: Group) -> None:
    await until(lambda: group.phase() is Phase.COMPLETED)
    assert (group.root / "completed.json").exists()
    launchers = [pod.launcher for pod in group.pods if pod.launcher is not None]
    assert all(launcher.poll() is None for launcher in launchers)


async def test_a_pod_that_is_told_to_end_saves_first(group: Group) -> None:
    await until(lambda: group.at("1.1") and group.newest() is not None)
    launcher = group.pods[1].launcher
    last = group.pods[1].last()
    assert launcher is not None
    assert last is not None
    launcher.terminate()
    await until(lambda: group.controller.reports["uid-1"].terminating)
    notices = group.controller.reports["uid-1"].notices
    assert [notice.code for notice in notices] == ["pod-terminating"]
    await until(lambda: (newest := group.newest()) is not None and newest.step > last.step)
    await until(lambda: launcher.poll() is not None)
    assert launcher.returncode == 0
    (ended,) = {pod.last().step for pod in group.pods[1:] if pod.last()}
    newest = group.newest()
    assert newest is not None
    assert ended - newest.step < 25


async def test_a_dying_node_is_told_by_its_agent_and_its_member_asked_to_be_replaced(group: Group) -> None:
    await until(lambda: group.at("1.1") and group.newest() is not None)
    last = group.pods[1].last()
    assert last is not None
    notice = Notice("xid-79-boot", "xid-79", Severity.FATAL, Scope.NODE, Repair.REBOOT, "GPU has fallen off the bus")
    group.agent.say(notice)
    await until(lambda: group.agent.acknowledged == ("xid-79-boot",))
    await until(lambda: (report := group.report()) is not None and bool(report.exclude) and report.saved)
    report = group.report()
    assert report is not None
    assert [item.uid for item in report.exclude] == ["uid-1"]
    assert report.newest is not None
    assert report.newest.step >= last.step


@pytest.mark.parametrize("group", [{"NO_ROOT": "yes"}], indirect=True)
async def test_without_a_checkpoint_root_a_killed_rank_resumes_from_memory(group: Group) -> None:
    await until(lambda: group.at("1.1"))
    await until(lambda: all((pod.folder / "shm" / "slot-0-0" / "header").exists() for pod in group.pods))
    await until(group.advanced())
    os.kill(group.pids()[1], signal.SIGKILL)
    await until(lambda: group.at("1.2"))
    assert all(last.first > 0 for pod in group.pods if (last := pod.last()))
    assert group.controller.reports["uid-0"].root_state == "none"


async def test_a_volume_that_is_not_there_is_named(tmp_path: Path) -> None:
    authority = Authority()
    controller = FakeController(authority, 1)
    await controller.start()
    pod = Pod(
        tmp_path / "pod", 0, f"127.0.0.1:{controller.port}", authority.pem, f"{tmp_path}/nowhere/.rlguard", size=1
    )
    try:
        pod.start()
        await until(lambda: "uid-0" in controller.reports and "not mounted" in controller.reports["uid-0"].root_state)
        await until(lambda: (leader := controller.leader()) is not None and leader.group is not None)
        assert controller.reports["uid-0"].disk_generation is None
        assert not (tmp_path / "nowhere").exists()
    finally:
        pod.stop()
        await controller.stop()
