"""The agent's RDMA source on real trees, by a clock that runs fast; and the real agent with such a tree."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
from test_agent import linked
from waiting import until

from rlguard.errors import BadConfigError
from rlguard.health.assess import CannotLook, Fact, Observed
from rlguard.health.rdma.learned import Expectation
from rlguard.io import clock, netlink
from rlguard.model import Verdict
from rlguard_agent import rdma
from rlguard_agent.rdma import RdmaPlace, RdmaSource
from rlguard_agent.settings import read_settings
from rlguard_chaos.lab import ports

FASTER = 40


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A healthy tree; the source's clock runs FASTER, its pauses are as short."""
    monkeypatch.setattr(rdma, "boottime", lambda: clock.boottime() * FASTER)
    for name in ("EVERY", "LEAST", "APPEARED_EVERY", "WRITE_AGAIN"):
        monkeypatch.setattr(rdma, name, getattr(rdma, name) / FASTER)
    ports.lay_out(tmp_path / "sys", 2)
    return tmp_path / "sys"


def no_events() -> socket.socket:
    raise OSError(errno.EPERM, "not here")


class Running:
    """A source that runs, and what it told."""

    def __init__(self, tree: Path, mode: str = "on", boot_id: str = "boot", **changes: Any) -> None:
        self.told: list[Fact] = []
        place = RdmaPlace(mode, tree, Expectation(gid_index=3), boot_id, tree.parent / "state")
        self.source = RdmaSource(
            place, self.told.append, structlog.stdlib.get_logger(), **{"events": no_events, **changes}
        )

    def codes(self) -> list[str] | None:
        """What the last fact tells, None if it is no sight."""
        fact = self.told[-1] if self.told else None
        return [fault.code for fault in fact.faults] if isinstance(fact, Observed) else None


@asynccontextmanager
async def running(tree: Path, **changes: Any) -> AsyncIterator[Running]:
    made = Running(tree, **changes)
    task = asyncio.create_task(made.source.run())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if made.source._writing is not None:
            await made.source._writing


async def test_a_port_that_goes_down_is_told_and_taken_back_when_it_is_up_again(tree: Path) -> None:
    async with running(tree) as source:
        await until(lambda: source.codes() == [])
        ports.set_port(tree, 0, up=False)
        await until(lambda: source.codes() == ["rdma-port-down"])
        ports.set_port(tree, 0, up=True)
        await until(lambda: source.codes() == [])


async def test_a_lost_address_is_told(tree: Path) -> None:
    async with running(tree) as source:
        await until(lambda: source.codes() == [])
        ports.lose_address(tree, 1)
        await until(lambda: source.codes() == ["rdma-gid-lost"])


async def test_a_restarted_agent_knows_what_stood_and_another_boot_does_not(tree: Path) -> None:
    async with running(tree) as source:
        await until(lambda: source.codes() == [])
        ports.set_port(tree, 0, up=False)
        await until(lambda: source.codes() == ["rdma-port-down"])
        await until(lambda: "rdma-port-down" in (tree.parent / "state/rdma.json").read_text())
    async with running(tree, mode="auto") as source:
        await until(lambda: source.told)
        assert source.codes() == ["rdma-port-down"]
    async with running(tree, boot_id="another") as source:
        await until(lambda: source.codes() == [])
        await until(lambda: json.loads((tree.parent / "state/rdma.json").read_text())["boot_id"] == "another")


async def test_ports_that_all_went_away_while_the_agent_was_down_are_missed(tree: Path) -> None:
    async with running(tree) as source:
        await until(lambda: source.codes() == [])
        await until((tree.parent / "state/rdma.json").exists)
    shutil.rmtree(tree / "class/infiniband")
    async with running(tree, mode="auto") as source:
        await until(lambda: source.codes() == ["rdma-device-gone", "rdma-device-gone"])


async def test_a_memory_that_is_no_memory_is_no_memory(tree: Path) -> None:
    (tree.parent / "state").mkdir()
    (tree.parent / "state/rdma.json").write_text('{"boot_id": "boot", "ports": 7')
    async with running(tree) as source:
        await until(lambda: source.codes() == [])


async def test_a_read_that_hangs_is_not_being_able_to_look_and_after_a_minute_a_fault(tree: Path) -> None:
    async with running(tree, within_s=1.5) as source:
        await until(lambda: source.codes() == [])
        state = tree / "class/infiniband/mlx5_bond_1/ports/1/state"
        state.unlink()
        os.mkfifo(state)
        await until(lambda: isinstance(source.told[-1], CannotLook))
        assert "mlx5_bond_1" in source.told[-1].reason
        await until(lambda: source.codes() == ["rdma-hung"])
        ports.lay_out(tree, 2)
        await until(lambda: source.codes() == [])


async def test_auto_waits_until_there_is_a_device(tree: Path) -> None:
    async with running(tree.parent / "later/sys", mode="auto") as source:
        await asyncio.sleep(0.3)
        assert source.told == []
        ports.lay_out(tree.parent / "later/sys", 1)
        await until(lambda: source.codes() == [])


async def test_without_a_tree_on_says_what_to_set(tree: Path) -> None:
    async with running(tree.parent / "nowhere") as source:
        await until(lambda: source.told)
    (fact, *_) = source.told
    assert isinstance(fact, CannotLook)
    assert "RLGUARD_AGENT_SYSFS" in fact.reason


async def test_a_disk_that_refuses_costs_the_memory_and_no_look(tree: Path) -> None:
    (tree.parent / "state").write_text("a file where the folder should be")
    async with running(tree) as source:
        await until(lambda: source.source.looks > 5)
        assert source.codes() == []


@pytest.mark.parametrize("by", ["event", "kick"])
async def test_word_of_a_change_is_followed_by_a_look_at_once(
    tree: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setattr(rdma, "EVERY", 3600.0)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    theirs.settimeout(0.0)
    async with running(tree, events=lambda: theirs) as source:
        await until(lambda: source.codes() == [])
        await asyncio.sleep(0.1)
        assert source.source.looks == 1
        cause: Callable[[], Any] = (lambda: ours.send(b"changed")) if by == "event" else source.source.kick
        cause()
        await until(lambda: source.source.looks == 2)
    ours.close()


def test_the_kernel_gives_word_of_links_and_draining_takes_it_all() -> None:
    events = netlink.open_link_events()
    assert netlink.drain(events) in (True, False)
    assert netlink.drain(events) is False
    events.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        netlink.drain(events)


def test_a_number_that_is_none_is_refused_by_the_name_of_its_variable(tmp_path: Path) -> None:
    (tmp_path / "boot_id").write_text("boot\n")
    env = {
        "RLGUARD_NODE": "n",
        "RLGUARD_HOST_IP": "127.0.0.1",
        "RLGUARD_CA": "x",
        "RLGUARD_AGENT_API": "none",
        "RLGUARD_AGENT_BOOT_ID": str(tmp_path / "boot_id"),
    }
    assert read_settings(env).expected == Expectation()
    numbers = {"RLGUARD_AGENT_GID_INDEX": "3", "RLGUARD_AGENT_RDMA_PORTS": "8", "RLGUARD_AGENT_RDMA_RATE": "400"}
    assert read_settings({**env, **numbers}).expected == Expectation(3, 8, 400)
    for name, value in (("GID_INDEX", "-1"), ("GID_INDEX", "256"), ("RDMA_PORTS", "many"), ("RDMA", "maybe")):
        with pytest.raises(BadConfigError, match=f"RLGUARD_AGENT_{name}"):
            read_settings({**env, f"RLGUARD_AGENT_{name}": value})


async def test_a_flapping_link_reaches_the_sidecar_from_a_tree_that_appeared_or_was_there(world: Any) -> None:
    tree = Path(world.env()["RLGUARD_AGENT_SYSFS"])
    ports.lay_out(tree)
    await world.start()
    async with linked(world) as sidecar:
        await until(lambda: sidecar.verdict() is Verdict.HEALTHY)
        await until((world.folder / "state/rdma.json").exists)
        for _ in range(3):
            ports.flap(tree, 2)
        await until(lambda: sidecar.codes() == ["rdma-link-flapping"])
        assert sidecar.verdict() is Verdict.DEGRADED
        (notice,) = sidecar.reports[-1].notices
        assert notice.id == "11111111/rdma-link-flapping/0000:12:00.0"


async def test_an_agent_that_cannot_see_ports_that_it_was_told_to_watch_is_not_healthy(world: Any) -> None:
    await world.start(RLGUARD_AGENT_RDMA="on")
    async with linked(world) as sidecar:
        await until(lambda: sidecar.verdict() is not None)
        await asyncio.sleep(4.0)
        assert {report.verdict for report in sidecar.reports} == {Verdict.UNKNOWN}
