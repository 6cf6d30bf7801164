"""What holds for RDMA ports whatever sysfs says, in whatever order, for however long."""

from __future__ import annotations

import random
from functools import reduce
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rlguard.health.rdma.counters import Slope, increment
from rlguard.health.rdma.learned import Expectation
from rlguard.health.rdma.snapshot import PORT_LIMIT, Gid, Netdev, Port, Snapshot, read_snapshot
from rlguard.health.rdma.table import Rule, builtin
from rlguard.health.rdma.watch import View, faults, fold, fold_hang, recall, remember
from rlguard.wire import from_json, to_json

TABLE = builtin()
FEWER = settings(max_examples=40)
"""Trees and looks are large."""
GOOD = "0000:0000:0000:0000:0000:ffff:1e0a:0005"
PARTS = st.sampled_from(
    [
        "class", "infiniband", "net", "mlx5_0", "bond0", "eth1", "ports", "1", "2", "gids", "3", "gid_attrs", "types",
        "ndevs", "state", "phys_state", "rate", "link_layer", "counters", "hw_counters", "symbol_error", "device",
        "physfn", "numa_node", "master", "bonding", "slaves", "carrier", "carrier_changes", "operstate", "proc",
        "route", "bus", "pci", "drivers", "nvidia", "devices", "0000:10:00.0", "module", "ib_core", "parameters",
        "netns_mode",
    ]
)  # fmt: skip
TEXTS = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        ["4: ACTIVE", "1: DOWN", "400 Gb/sec (4X NDR)", "Ethernet", GOOD, "RoCE v2", "eth1 eth2", "1", "-1"]
    ),
    st.integers().map(str),
)
PATHS = st.lists(PARTS, min_size=1, max_size=7).map("/".join) | st.text(max_size=30)
TREES = st.dictionaries(PATHS, TEXTS, max_size=25)


def netdevs(name: str) -> st.SearchStrategy[Netdev]:
    numbers = st.none() | st.integers(0, 2**40)
    return st.builds(
        Netdev, st.just(name), st.sampled_from(["up", "down", ""]), st.sampled_from([True, False, None]), numbers
    )


def ports(pci: str) -> st.SearchStrategy[Port]:
    counters = st.dictionaries(
        st.sampled_from([rule.name for rule in TABLE.rules]), st.none() | st.integers(0, 2**64 - 1)
    )
    gids = st.lists(
        st.builds(Gid, st.integers(0, 9), st.sampled_from([GOOD, "fe80::1"]), st.just("RoCE v2"), st.just("bond0"))
    )
    return st.builds(
        Port,
        device=st.sampled_from(["mlx5_0", "mlx5_1"]),
        number=st.integers(1, 2),
        pci=st.just(pci),
        virtual=st.booleans(),
        numa=st.none(),
        link_layer=st.sampled_from(["Ethernet", "InfiniBand", ""]),
        state=st.none() | st.integers(0, 6),
        phys_state=st.none(),
        rate=st.none() | st.sampled_from([100.0, 400.0]),
        netdev=st.none() | netdevs("bond0"),
        slaves=st.lists(netdevs("eth1"), max_size=1).map(tuple),
        gids=gids.map(tuple),
        counters=st.none() | counters,
    )


SNAPSHOTS = st.builds(
    Snapshot,
    ports=st.lists(st.sampled_from(["0000:10:00.0", "0000:11:00.0", ""]).flatmap(ports), max_size=2).map(tuple),
    default_route=st.sampled_from(["", "bond0"]),
    shared=st.sampled_from([True, False, None]),
)
EXPECTED = st.builds(
    Expectation, st.none() | st.integers(0, 4), st.none() | st.integers(0, 3), st.none() | st.just(400.0)
)
LOOKS = st.lists(st.tuples(st.floats(0, 900), SNAPSHOTS), max_size=8)


def play(looks: list[tuple[float, Snapshot]], expected: Expectation | None = None) -> View:
    return reduce(lambda view, look: fold(view, look[1], look[0]), looks, View(TABLE, expected or Expectation()))


@FEWER
@given(TREES)
def test_no_tree_makes_reading_fail_nor_grow(files: dict[str, str]) -> None:
    read = read_snapshot(files)
    assert len(read.ports) <= PORT_LIMIT
    assert len({port.key for port in read.ports}) == len(read.ports)
    faults(fold(View(TABLE), read, 1.0))


@FEWER
@given(LOOKS, EXPECTED)
def test_no_run_of_looks_makes_it_fail_and_all_it_tells_is_bounded(
    looks: list[tuple[float, Snapshot]], expected: Expectation
) -> None:
    told = faults(fold_hang(play(looks, expected), "mlx5_0", 1000.0))
    assert len({(fault.code, fault.device) for fault in told}) == len(told)
    assert all(len(fault.detail) <= 300 for fault in told)


@FEWER
@given(LOOKS)
def test_looks_told_twice_or_late_change_nothing(looks: list[tuple[float, Snapshot]]) -> None:
    twice = [look for look in looks for _ in range(2)]
    assert play(twice) == play(looks)
    forward = [look for index, look in enumerate(looks) if all(look[0] > before for before, _ in looks[:index])]
    assert play(forward) == play(looks)


@FEWER
@given(LOOKS)
def test_the_order_of_the_ports_in_a_tree_does_not_matter(looks: list[tuple[float, Snapshot]]) -> None:
    alone = [(at, {port.key: port for port in seen.ports}.values(), seen) for at, seen in looks]
    one = [(at, Snapshot(tuple(ports), seen.default_route, seen.shared)) for at, ports, seen in alone]
    other = [(at, Snapshot(tuple(reversed(ports)), seen.default_route, seen.shared)) for at, ports, seen in alone]
    assert faults(play(one)) == faults(play(other))


@FEWER
@given(LOOKS)
def test_what_is_kept_brings_back_what_stood(looks: list[tuple[float, Snapshot]]) -> None:
    view = play(looks)
    memory = remember(view, "boot")
    again = recall(View(TABLE), from_json(type(memory), to_json(memory)), "boot", 901.0)
    standing = {(fault.code, fault.device) for fault in faults(view)} - {("rdma-ports-missing", "node")}
    assert {(fault.code, fault.device) for fault in faults(again)} == standing
    assert remember(again, "boot") == memory


@given(st.lists(st.none() | st.integers(0, 2**64 - 1), max_size=20))
def test_no_sequence_of_values_makes_a_counter_count_backwards(values: list[int | None]) -> None:
    for rule in TABLE.rules:
        slope = Slope()
        for at, value in enumerate(values):
            slope = slope.then(value, at * 10.0, rule)
            assert slope.window.total >= 0
            assert len(slope.window.parts) <= 12


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**20))
def test_a_counter_that_wraps_counts_what_was_added(last: int, count: int) -> None:
    rule = Rule("hw_counters/x", TABLE.rules[0].code, None, 2**32, 1, 1, "")
    assert increment(last, (last + count) % 2**32, rule) == count


def noisy(name: str, number: int, chance: random.Random, state: dict[str, int]) -> Port:
    """A healthy port on a busy fabric: counters creep, wrap and start anew, links blink, files cannot be read."""
    key = f"0000:{number:02x}:00.0"
    state[f"{key}-changes"] = state.get(f"{key}-changes", 2) + (2 if chance.random() < 0.02 else 0)
    state[f"{key}-retries"] = (state.get(f"{key}-retries", 2**32 - 5000) + chance.randint(0, 900)) % 2**32
    state[f"{key}-symbols"] = state.get(f"{key}-symbols", 0) + (chance.random() < 0.1)
    if chance.random() < 0.001:
        state[f"{key}-retries"] = state[f"{key}-symbols"] = 0
    bad = chance.random()
    counters: dict[str, int | None] = {
        "hw_counters/out_of_sequence": state[f"{key}-retries"],
        "counters/symbol_error": min(65535, state[f"{key}-symbols"]) if chance.random() < 0.99 else None,
        "counters/link_downed": 255,
    }
    bond = Netdev(f"bond{number}", operstate="up", carrier=True, carrier_changes=state[f"{key}-changes"])
    gid = Gid(3, f"{GOOD[:-4]}{number:04x}", "RoCE v2", bond.name)
    gids = () if 0.004 < bad < 0.006 else (gid,)
    rate = 100.0 if 0.006 < bad < 0.008 else 400.0
    made: Any = (name, 1, key, False, 0, "Ethernet", 4, 5, rate, bond, (bond,), gids, counters)
    if bad < 0.002:
        return Port(*made[:6], 1, 2, *made[8:])
    return Port(*made[:6], None, *made[7:]) if bad < 0.004 else Port(*made)


def test_thirty_days_of_noise_are_not_one_fault() -> None:
    chance, state, view = random.Random(7), {}, View(TABLE, Expectation(gid_index=3, ports=2))  # noqa: S311 - a seeded run
    told = set()
    for look in range(30 * 24 * 6):  # every ten minutes, and a hair later, as after a link event
        if look % 7 == 0:
            view = fold(view, Snapshot((noisy("mlx5_bond_0", 1, chance, state),)), 3600 + look * 600.0)
        both = tuple(noisy(f"mlx5_bond_{number}", number, chance, state) for number in (1, 2))
        view = fold(view, Snapshot(both), 3602 + look * 600.0)
        told |= {(fault.code, fault.device) for fault in faults(view)}
    assert told == set()
    assert len(view.tracks) == 2
