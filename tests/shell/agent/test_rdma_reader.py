"""Reading RDMA ports out of real trees, in this process and in a child: files vanish, lie, refuse and hang."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rlguard.health.rdma.snapshot import Snapshot, read_snapshot
from rlguard.io import netlink
from rlguard.io.rdma import REFUSED_FOR, Reader, has_devices
from rlguard.io.rdmaclient import CannotReadError, HungError, RdmaClient
from rlguard_chaos.lab import ports

COUNTERS = (*ports.COUNTERS, *ports.HARDWARE)
PORT = "class/infiniband/mlx5_bond_{}/ports/1"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "sys"
    ports.lay_out(root)
    return root


@pytest.fixture
async def client(tree: Path) -> AsyncIterator[RdmaClient]:
    made = RdmaClient(tree)
    yield made
    await made.close()


def seen(root: Path, counters: tuple[str, ...] = COUNTERS) -> Snapshot:
    return read_snapshot(Reader(root).read(counters))


def hang(path: Path) -> None:
    """Make reading the file wait for ever."""
    path.unlink()
    os.mkfifo(path)


def test_a_node_of_tke_is_read_whole(tree: Path) -> None:
    shown = seen(tree)
    assert [port.device for port in shown.ports] == [f"mlx5_bond_{number}" for number in range(8)]
    assert all(port.up and port.physical and port.rate == 400.0 for port in shown.ports)
    one = shown.ports[5]
    assert (one.pci, one.numa, one.netdev and one.netdev.name) == ("0000:15:00.0", 1, "bond5")
    assert [slave.name for slave in one.slaves] == ["eth11", "eth12"]
    assert [(gid.index, gid.usable) for gid in one.gids] == [(0, False), (1, False), (2, False), (3, True)]
    assert one.counters == dict.fromkeys(COUNTERS, 0)
    assert (shown.default_route, shown.shared) == ("eth0", True)
    assert shown.near(one) == ("0000:44:00.0", "0000:45:00.0", "0000:46:00.0", "0000:47:00.0")


def test_without_counters_a_look_knows_of_none(tree: Path) -> None:
    assert {port.counters for port in seen(tree, ()).ports} == {None}


def test_what_breaks_in_the_tree_is_seen(tree: Path) -> None:
    ports.set_port(tree, 0, up=False)
    ports.lose_address(tree, 1)
    ports.set_rate(tree, 2, 200)
    ports.bump(tree, 3, "hw_counters/out_of_sequence", 7)
    ports.flap(tree, 4)
    down, unaddressed, slow, counted, flapped = seen(tree).ports[:5]
    assert down.up is False
    assert [gid.index for gid in unaddressed.gids] == [0, 1]
    assert slow.rate == 200.0
    assert counted.counters is not None
    assert counted.counters["hw_counters/out_of_sequence"] == 7
    assert {slave.name: slave.carrier_changes for slave in flapped.slaves} == {"eth9": 4, "eth10": 2}
    ports.lay_out(tree)
    assert all(port.up for port in seen(tree).ports)


def test_a_device_that_vanishes_while_it_is_read_does_not_blind_the_rest(tree: Path) -> None:
    def vanish(device: str) -> None:
        if device == "mlx5_bond_3":
            shutil.rmtree(tree / "class/infiniband/mlx5_bond_3")

    shown = read_snapshot(Reader(tree, begin=vanish).read(COUNTERS))
    assert [port.device for port in shown.ports if port.up] == [
        f"mlx5_bond_{number}" for number in (0, 1, 2, 4, 5, 6, 7)
    ]


def test_empty_negative_and_binary_files_are_not_known(tree: Path) -> None:
    port = tree / PORT.format(0)
    (port / "state").write_bytes(b"")
    (port / "rate").write_bytes(b"\xff\xfe\x00" * 5000)
    (port / "counters/symbol_error").write_text("-1\n")
    one = seen(tree).ports[0]
    assert (one.up, one.rate) == (None, None)
    assert one.counters is not None
    assert one.counters["counters/symbol_error"] is None


def test_bonds_that_name_each_other_end_somewhere(tree: Path) -> None:
    (tree / "class/net/bond0/master").symlink_to("../eth1")
    (tree / "class/net/eth1/bonding").mkdir()
    (tree / "class/net/eth1/bonding/slaves").write_text("bond0 eth1 ../../x\n")
    assert len(seen(tree).ports) == 8


def test_a_virtual_function_is_seen_as_one_and_not_asked_for_counters(tree: Path) -> None:
    (tree / "devices/0000:10:00.0/physfn").symlink_to("../0000:11:00.0")
    one = seen(tree).ports[0]
    assert (one.virtual, one.physical, one.counters) == (True, False, None)


def test_a_counter_that_is_refused_is_left_alone_for_a_while(tree: Path) -> None:
    moment, counter = [100.0], tree / PORT.format(0) / "counters/symbol_error"
    counter.unlink()
    counter.mkdir()  # reading a folder fails, as a driver's refusal does
    reader = Reader(tree, now=lambda: moment[0])
    name = f"{PORT.format(0)}/counters/symbol_error"
    assert name not in reader.read(COUNTERS)
    counter.rmdir()
    counter.write_text("3\n")
    assert name not in reader.read(COUNTERS)
    moment[0] += REFUSED_FOR
    assert reader.read(COUNTERS)[name] == "3\n"


def test_counters_of_the_card_are_not_read_more_often_than_the_driver_asks_for_them(tree: Path) -> None:
    moment, name = [100.0], f"{PORT.format(0)}/hw_counters/out_of_sequence"
    (tree / PORT.format(0) / "hw_counters/lifespan").write_text("30000\n")
    reader = Reader(tree, now=lambda: moment[0])
    assert name in reader.read(COUNTERS)
    moment[0] += 29.0
    assert name not in reader.read(COUNTERS)
    moment[0] += 2.0
    assert name in reader.read(COUNTERS)


def test_a_machine_without_rdma_has_no_ports_and_one_without_sysfs_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Reader(tmp_path / "sys").read()
    (tmp_path / "sys/class/net").mkdir(parents=True)
    assert seen(tmp_path / "sys").ports == ()
    assert not has_devices(tmp_path / "sys")
    ports.lay_out(tmp_path / "sys", 1)
    assert has_devices(tmp_path / "sys")


async def test_the_child_reads_the_same(tree: Path, client: RdmaClient) -> None:
    assert await client.look(COUNTERS) == Reader(tree).read(COUNTERS)


@pytest.mark.parametrize("file", ["state", "hw_counters/out_of_sequence", "gids/0"])
async def test_a_read_that_hangs_is_ended_and_the_device_named(tree: Path, client: RdmaClient, file: str) -> None:
    (tree / PORT.format(3) / "hw_counters/lifespan").write_text("0\n")
    await client.look(COUNTERS)
    hang(tree / PORT.format(3) / file)
    with pytest.raises(HungError) as hung:
        await client.look(COUNTERS, within_s=2.0)
    assert hung.value.device == "mlx5_bond_3"
    ports.lay_out(tree)
    assert len(read_snapshot(await client.look(COUNTERS, within_s=10.0)).ports) == 8


async def test_a_child_that_is_killed_is_replaced(client: RdmaClient) -> None:
    await client.look()
    child = client._child._process
    assert child is not None
    os.kill(child.pid, signal.SIGKILL)
    await child.wait()
    assert len(read_snapshot(await client.look()).ports) == 8


async def test_a_tree_that_is_not_there_is_told_with_what_to_set(tmp_path: Path) -> None:
    client = RdmaClient(tmp_path / "none")
    with pytest.raises(CannotReadError, match="RLGUARD_AGENT_SYSFS"):
        await client.look()
    await client.close()


async def test_a_child_that_answers_nonsense_or_ends_is_an_error_and_no_hang(tree: Path) -> None:
    answers = ("nonsense", "7", "null", "[]", '{"files": 1}', '{"files": {"a": 1}}', "[" * 5000)
    for command in (*(("echo", answer) for answer in answers), ("true",), ("/does/not/exist",)):
        client = RdmaClient(tree, command=command)
        with pytest.raises(CannotReadError):
            await client.look()
        await client.close()


async def test_no_more_children_are_started_than_may_be_stuck(client: RdmaClient) -> None:
    client._child._dying = {object() for _ in range(4)}  # type: ignore[misc] # stands for tasks that wait for the dead
    with pytest.raises(HungError):
        await client.look()
    client._child._dying = set()


def test_of_an_empty_place_in_the_table_of_addresses_nothing_more_is_asked(tree: Path) -> None:
    ports.lose_address(tree, 1)
    files = Reader(tree).read()
    assert PORT.format(1) + "/gids/3" in files
    assert PORT.format(1) + "/gid_attrs/types/3" not in files


class FakeEvents:
    """A netlink socket: gives what it was given, then has nothing more."""

    def __init__(self, *given: bytes | OSError) -> None:
        self.given = list(given)

    def recv(self, _: int) -> bytes:
        """As a socket that does not block."""
        if not self.given:
            raise BlockingIOError
        one = self.given.pop(0)
        if isinstance(one, OSError):
            raise one
        return one


def test_links_and_addresses_are_what_there_is_word_of() -> None:
    with netlink.open_link_events() as opened:
        _, groups = opened.getsockname()
    assert groups == netlink.LINKS | netlink.IPV4_ADDRESSES


def test_messages_that_did_not_fit_are_word_of_a_change_too() -> None:
    assert netlink.drain(FakeEvents(OSError(errno.ENOBUFS, "no room"))) is True  # type: ignore[arg-type] # a fake
    assert netlink.drain(FakeEvents()) is False  # type: ignore[arg-type] # a fake


def test_a_broken_socket_is_said() -> None:
    with pytest.raises(OSError, match="broken"):
        netlink.drain(FakeEvents(OSError(errno.EBADF, "broken")))  # type: ignore[arg-type] # a fake


def test_a_flood_of_changes_is_taken_in_parts() -> None:
    flood = FakeEvents(*[b"x"] * (netlink.BATCH + 5))
    assert netlink.drain(flood) is True  # type: ignore[arg-type] # a fake
    assert len(flood.given) == 5
