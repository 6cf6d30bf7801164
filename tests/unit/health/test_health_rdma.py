"""RDMA ports: how sysfs is read, when a sign is believed, what is remembered, how counters count."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from rlguard.errors import BadConfigError
from rlguard.health.rdma.counters import Slope, Window, increment
from rlguard.health.rdma.learned import Expectation, dotted
from rlguard.health.rdma.snapshot import Gid, Gpu, Netdev, Port, Snapshot, read_snapshot
from rlguard.health.rdma.table import Code, Rule, builtin, parse
from rlguard.health.rdma.watch import View, faults, fold, fold_hang, recall, remember, unknown_slopes
from rlguard.model import Repair, Scope, Severity
from rlguard.wire import from_json, to_json

TABLE = builtin()
LATER = 3600.0
"""Seconds since boot at moment 0 of a test."""
KEY = "0000:10:00.0"
ADDRESS = "0000:0000:0000:0000:0000:ffff:1e0a:0005"
DIES_AT_255 = Rule("counters/link_downed", Code.FLAPPING, 255, None, 3, 3600, "")
WRAPS = Rule("hw_counters/out_of_sequence", Code.RETRIES, None, 2**32, 10, 60, "")


def netdev(name: str = "bond0", *, carrier: bool | None = True, changes: int | None = 2) -> Netdev:
    return Netdev(name, "down" if carrier is False else "up", carrier, changes)


def port(**changes: Any) -> Port:
    made = Port(
        device="mlx5_bond_0",
        number=1,
        pci=KEY,
        virtual=False,
        numa=0,
        link_layer="Ethernet",
        state=4,
        phys_state=5,
        rate=400.0,
        netdev=netdev(),
        slaves=(netdev("eth1"), netdev("eth2")),
        gids=(Gid(3, ADDRESS, "RoCE v2", "bond0"),),
        counters=None,
    )
    return dataclasses.replace(made, **changes)


def snapshot(*ports: Port) -> Snapshot:
    return Snapshot(ports)


def after(*looks: tuple[float, Snapshot], view: View | None = None) -> View:
    view = view or View(TABLE)
    for at, seen in looks:
        view = fold(view, seen, LATER + at)
    return view


def codes(view: View) -> list[str]:
    return [fault.code for fault in faults(view)]


def seen_at(shown: Snapshot, *moments: float, view: View | None = None) -> View:
    return after(*((moment, shown) for moment in moments), view=view)


DOWN = snapshot(port(state=1, phys_state=3))
UP = snapshot(port())


def test_a_tree_is_read_into_ports_with_their_bond_its_links_and_the_addresses() -> None:
    base, found = "class/infiniband/mlx5_bond_0/", "class/net/"
    read = read_snapshot(
        {
            base + "device": "../../../0000:10:00.0",
            base + "device/numa_node": "1",
            base + "ports/1/state": "4: ACTIVE\n",
            base + "ports/1/phys_state": "5: LinkUp\n",
            base + "ports/1/rate": "200 Gb/sec (4X HDR)\n",
            base + "ports/1/link_layer": "Ethernet\n",
            base + "ports/1/gids/0": "0000:0000:0000:0000:0000:0000:0000:0000\n",
            base + "ports/1/gids/3": ADDRESS + "\n",
            base + "ports/1/gid_attrs/types/3": "RoCE v2\n",
            base + "ports/1/gid_attrs/ndevs/3": "eth1\n",
            base + "ports/1/hw_counters/out_of_sequence": "12\n",
            base + "ports/1/counters/symbol_error": "N/A (no PMA)\n",
            found + "eth1/master": "../../bond0",
            found + "bond0/bonding/slaves": "eth2 eth1\n",
            found + "eth1/carrier": "1\n",
            found + "eth2/carrier": "0\n",
            found + "eth2/carrier_changes": "7\n",
            "bus/pci/drivers/nvidia/0000:40:00.0": "",
            "bus/pci/drivers/nvidia/bind": "",
            "bus/pci/devices/0000:40:00.0/numa_node": "1",
            "module/ib_core/parameters/netns_mode": "Y\n",
        }
    )
    (one,) = read.ports
    assert (one.key, one.name, one.numa, one.rate) == (KEY, "mlx5_bond_0 port 1 (bond0)", 1, 200.0)
    assert [slave.name for slave in one.slaves] == ["eth1", "eth2"]
    assert (one.slaves[1].lost, one.slaves[1].carrier_changes) == (True, 7)
    assert one.gids == (Gid(3, ADDRESS, "RoCE v2", "eth1"),)
    assert one.counters == {"hw_counters/out_of_sequence": 12, "counters/symbol_error": None}
    assert (read.shared, read.gpus) == (True, (Gpu("0000:40:00.0", 1),))
    assert read.near(one) == ("0000:40:00.0",)


def test_the_default_route_is_the_one_with_the_lowest_metric() -> None:
    table = (
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n"
        "eth9\t00000000\t0\t3\t0\t0\t200\t00000000\neth0\t00000000\t0\t3\t0\t0\t100\t00000000\n"
        "eth5\t0000000A\t0\t1\t0\t0\t0\t000000FF\n"
    )
    assert read_snapshot({"proc/net/route": table}).default_route == "eth0"


@pytest.mark.parametrize("text", ["", "ACTIVE", "four: ACTIVE", "-1: X", "\u0664: ACTIVE"])
def test_a_state_that_is_no_number_is_not_known(text: str) -> None:
    (one,) = read_snapshot({"class/infiniband/mlx5_0/ports/1/state": text}).ports
    assert one.up is None


def test_a_port_is_named_by_its_place_and_the_second_one_of_a_card_by_its_number_too() -> None:
    assert [port().key, port(number=2).key, port(pci="").key] == [KEY, f"{KEY}/2", "mlx5_bond_0"]


def test_an_unused_ipoib_device_does_not_make_an_infiniband_port_down() -> None:
    idle = port(link_layer="InfiniBand", netdev=netdev("ib0", carrier=False), slaves=())
    assert idle.up is True
    assert port(netdev=netdev(carrier=False), slaves=()).up is False


def test_a_port_is_down_only_after_fifteen_seconds_and_three_looks() -> None:
    view = after((0, UP), (1, DOWN), (1.1, DOWN), (1.2, DOWN))
    assert codes(view) == []
    assert codes(after((15.9, DOWN), view=view)) == []
    assert codes(after((16, DOWN), view=view)) == ["rdma-port-down"]
    assert codes(after((0, UP), (1, DOWN), (60, DOWN))) == []


def test_a_port_that_is_down_costs_the_node_and_says_which_and_why() -> None:
    view = seen_at(snapshot(port(state=1, phys_state=3, netdev=netdev(carrier=False))), 1, 9, 20, view=after((0, UP)))
    (fault,) = faults(view)
    assert (fault.severity, fault.scope, fault.repair) == (Severity.FATAL, Scope.NIC, Repair.REBOOT)
    assert fault.device == KEY
    assert "mlx5_bond_0 port 1 (bond0): state 1, physical state 3, no carrier on bond0" in fault.detail


def test_one_good_look_starts_the_count_anew() -> None:
    assert codes(after((0, UP), (1, DOWN), (9, DOWN), (10, UP), (11, DOWN), (18, DOWN), (20, DOWN))) == []


def test_a_fault_that_stands_ends_only_after_a_minute_without_a_bad_look() -> None:
    broken = seen_at(DOWN, 1, 9, 20, view=after((0, UP)))
    assert codes(after((30, UP), (80, UP), view=broken)) == ["rdma-port-down"]
    assert codes(after((30, UP), (80, DOWN), (91, UP), view=broken)) == ["rdma-port-down"]
    assert codes(after((30, UP), (90, UP), view=broken)) == []


def test_what_cannot_be_judged_neither_starts_a_fault_nor_ends_one() -> None:
    blank = snapshot(port(state=None))
    doubtful = after((0, UP), (1, DOWN), (9, DOWN), (10, blank), (11, DOWN), (18, DOWN), (20, DOWN))
    assert codes(doubtful) == []
    broken = seen_at(DOWN, 1, 9, 20, view=after((0, UP)))
    assert "rdma-port-down" in codes(seen_at(blank, 30, 100, 200, view=broken))
    slow = seen_at(snapshot(port(rate=200.0)), 1, 9, 20, view=after((0, UP)))
    halved = snapshot(port(rate=200.0, slaves=(netdev("eth1"), netdev("eth2", carrier=False))))
    assert codes(seen_at(halved, 30, 60, 200, view=slow)) == ["rdma-bond-degraded", "rdma-rate-low"]


def test_the_only_card_is_watched_also_where_it_has_the_default_route() -> None:
    view = after((0, Snapshot((port(),), "bond0")))
    assert codes(seen_at(Snapshot((port(state=1),), "bond0"), 1, 9, 20, view=view)) == ["rdma-port-down"]


def test_an_address_of_a_pod_is_no_substitute_for_the_ports_own() -> None:
    of_pod = Gid(4, ADDRESS[:-1] + "9", "RoCE v2", "macvlan7")
    lost = snapshot(port(gids=(Gid(1, "fe80::1", "RoCE v2", "bond0"), of_pod)))
    assert codes(seen_at(lost, 1, 9, 20, view=after((0, UP)))) == ["rdma-gid-lost"]


def test_a_late_look_changes_nothing() -> None:
    view = after((0, UP), (10, UP))
    assert fold(view, DOWN, LATER + 5) == view
    assert fold(view, DOWN, LATER + 10) == view


def test_one_bad_device_does_not_blind_the_rest() -> None:
    other = port(device="mlx5_bond_1", pci="0000:11:00.0")
    odd = port(state=None, rate=None, gids=(), netdev=None, slaves=())
    broken = snapshot(odd, dataclasses.replace(other, state=1))
    view = seen_at(broken, 1, 9, 20, view=after((0, snapshot(port(), other))))
    assert [(fault.code, fault.device) for fault in faults(view)] == [
        ("rdma-port-down", "0000:11:00.0"),
        ("rdma-port-unreadable", KEY),
    ]


def test_a_lost_address_is_not_a_spare_port_however_active_the_port() -> None:
    lost = snapshot(port(gids=()))
    view = seen_at(lost, 1, 9, 20, view=after((0, UP), view=View(TABLE, Expectation(ports=1))))
    assert [(fault.code, fault.severity) for fault in faults(view)] == [("rdma-gid-lost", Severity.FATAL)]


def test_an_address_is_only_judged_while_the_port_is_active() -> None:
    broken = snapshot(port(state=1, gids=()))
    assert codes(seen_at(broken, 1, 9, 20, view=after((0, UP)))) == ["rdma-port-down"]


def test_a_restarted_agent_knows_at_once_what_stood_and_what_was_learned() -> None:
    view = seen_at(DOWN, 1, 9, 20, view=after((0, UP)))
    memory = from_json(type(remember(view, "boot")), json.loads(json.dumps(to_json(remember(view, "boot")))))
    again = recall(View(TABLE), memory, "boot", LATER + 30)
    assert codes(again) == ["rdma-port-down"]
    assert codes(after((31, DOWN), view=again)) == ["rdma-port-down"]
    assert codes(after((31, UP), (92, UP), view=again)) == []
    slow = snapshot(port(rate=200.0, gids=()))
    assert codes(seen_at(slow, 31, 40, 60, 100, view=again)) == ["rdma-gid-lost", "rdma-rate-low"]


def test_what_was_learned_on_another_boot_is_dropped() -> None:
    memory = remember(after((0, UP)), "boot")
    assert recall(View(TABLE), memory, "another", 0) == View(TABLE)
    assert recall(View(TABLE), None, "boot", 0) == View(TABLE)


def test_a_hang_is_a_fault_after_a_minute_and_over_with_the_next_look() -> None:
    view = after((0, UP))
    for at in (5.0, 30.0, 64.0):
        view = fold_hang(view, "mlx5_bond_3", LATER + at)
    assert codes(view) == []
    view = fold_hang(view, "mlx5_bond_3", LATER + 65)
    assert codes(view) == ["rdma-hung"]
    assert faults(view)[0].severity is Severity.FATAL
    assert "mlx5_bond_3" in faults(view)[0].detail
    assert codes(after((66, UP), view=view)) == []


def test_downs_that_fell_between_two_looks_are_counted_by_the_carrier_and_each_once() -> None:
    view = after((0, UP))
    for at, changes, carrier in ((10, 3, False), (20, 4, True), (30, 5, False), (40, 6, True)):
        flap = netdev("eth1", carrier=carrier, changes=changes)
        view = after((at, snapshot(port(slaves=(flap, netdev("eth2"))))), view=view)
    assert codes(view) == []
    third = snapshot(port(slaves=(netdev("eth1", changes=8), netdev("eth2"))))
    assert codes(after((50, third), view=view)) == ["rdma-link-flapping"]


@pytest.mark.parametrize(
    ("last", "value", "rule", "count"),
    [
        (3, 10, WRAPS, 7),
        (2**32 - 5, 5, WRAPS, 10),
        (2**31, 5, WRAPS, 0),
        (1000, 0, WRAPS, 0),
        (250, 255, DIES_AT_255, 5),
        (255, 255, DIES_AT_255, 0),
        (255, 0, DIES_AT_255, 0),
    ],
)
def test_a_counter_rises_wraps_saturates_or_starts_anew(last: int, value: int, rule: Rule, count: int) -> None:
    assert increment(last, value, rule) == count


def test_a_counter_that_could_not_be_read_goes_on_from_what_was_known() -> None:
    slope = Slope().then(100, 0, WRAPS).then(None, 10, WRAPS).then(104, 20, WRAPS)
    assert slope.window.total == 4


def test_what_is_older_than_the_window_does_not_count() -> None:
    window = Window().plus(5, 0, 60).plus(1, 30, 60)
    assert window.total == 6
    assert window.plus(0, 61, 60).total == 1


def test_the_slope_of_a_saturated_counter_is_unknown_and_not_a_fault() -> None:
    full = snapshot(port(counters={"counters/link_downed": 255}))
    view = seen_at(full, 0, 10, 20)
    assert (codes(view), unknown_slopes(view)) == ([], ((KEY, "counters/link_downed"),))


def test_predictions_are_told_by_codes_of_their_own_and_never_fatal() -> None:
    predictions = {row.code: row.severity for row in TABLE.rows.values() if row.prediction}
    assert predictions == {Code.ERRORS: Severity.WARNING, Code.RETRIES: Severity.INFO}


def test_every_row_has_its_source_its_reason_and_what_ends_it() -> None:
    assert set(TABLE.rows) == set(Code)
    assert all(row.source and row.why and row.clears and row.meaning for row in TABLE.rows.values())
    assert all(rule.source for rule in TABLE.rules)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"version": 1, "rows": [{"code": "rdma-none"}], "counters": []}',
        '{"version": 1, "rows": [], "counters": []}',
    ],
)
def test_a_bad_table_is_refused(text: str) -> None:
    with pytest.raises(BadConfigError, match="the RDMA table"):
        parse(text)


def test_while_the_machine_boots_nothing_is_counted_and_a_fault_takes_longer_to_be_believed() -> None:
    view, down = View(TABLE), DOWN
    for at, seen in ((10, UP), (20, down), (40, down), (79, down)):
        view = fold(view, seen, at)
    assert codes(view) == []
    assert codes(fold(view, down, 80)) == ["rdma-port-down"]
    view = View(TABLE)
    for at in range(0, 300, 10):
        shown = port(slaves=(netdev("eth1", changes=2 + 2 * at),), counters={"counters/symbol_error": 90 * at})
        view = fold(view, snapshot(shown), at)
    assert codes(fold(view, snapshot(shown), 400)) == []


def test_a_fault_is_told_in_the_same_words_for_as_long_as_it_lasts() -> None:
    view, words = after((0, UP)), set()
    for step in range(1, 200):
        rising = port(
            slaves=(netdev("eth1", changes=2 + 2 * step), netdev("eth2")),
            counters={"counters/symbol_error": 50 * step, "hw_counters/local_ack_timeout_err": 900 * step},
        )
        view = after((10 * step, snapshot(rising)), view=view)
        words |= {fault.detail for fault in faults(view)}
    assert len(words) == 3


def test_an_address_is_shown_as_people_write_it() -> None:
    assert dotted(ADDRESS) == "30.10.0.5"
    assert dotted("fe80::1") == "fe80::1"


def test_another_address_before_the_learned_one_does_not_change_it() -> None:
    more = snapshot(port(gids=(Gid(1, ADDRESS.replace("0005", "0006"), "RoCE v2", "bond0"), *port().gids)))
    assert codes(seen_at(more, *range(2, 120, 2), view=seen_at(UP, 0))) == []
