"""One look by somebody who was not there before: what counts, what is doubted, and by whose clock."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from rlguard.health import once, storage
from rlguard.health.catalogue import builtin
from rlguard.health.described import with_every_code
from rlguard.health.gpu.snapshot import Fabric, Gpu, Hung, Refused, Rows, Snapshot, Unreadable
from rlguard.health.gpu.table import builtin_signs
from rlguard.health.rdma import table as rdma
from rlguard.health.rdma.learned import Expectation
from rlguard.health.rdma.snapshot import read_snapshot
from rlguard.model import Repair, Severity

SIGNS = builtin_signs()
PORTS = rdma.builtin()
TREE = json.loads((Path(__file__).parents[2] / "data/rdma/machines/tke-two-bonds.json").read_text())
XID = "NVRM: Xid (PCI:0000:2b:00): 79, x"


def record(sequence: int, text: str, at: float = 1.0, facility: int = 0) -> bytes:
    return f"{facility * 8 + 4},{sequence},{int(at * 1e6)},-;{text}\n SUBSYSTEM=pci\n".encode()


def gpu(**changes: object) -> once.GpusSeen:
    look = Snapshot((dataclasses.replace(Gpu(0, "0000:1b:00"), **changes),))  # type: ignore[arg-type]
    return once.gpus(look, 100.0, SIGNS)


def test_each_record_counts_at_its_own_time_and_never_later_than_now() -> None:
    seen = once.kernel_log([record(0, XID, 5.0), record(1, "quiet", 6.0), record(2, XID, 900.0)], builtin(), 100.0)
    assert [(fact.at, len(fact.told), fact.caught_up) for fact in seen.facts] == [
        (5.0, 1, False),
        (100.0, 1, False),
        (100.0, 0, True),
    ]
    assert (seen.records, seen.first, seen.garbage) == (3, 0, 0)


def test_a_hole_is_told_and_what_was_overwritten_before_is_none() -> None:
    assert once.kernel_log([record(70, "x"), record(71, "x")], builtin(), 9.0).facts[-1].gaps == 0
    assert once.kernel_log([record(70, "x"), record(75, "x")], builtin(), 9.0).facts[-1].gaps == 1
    assert once.kernel_log([record(70, "x"), b"EPIPE"], builtin(), 9.0).facts[-1].gaps == 1


def test_of_a_storm_the_newest_lines_are_read_and_the_rest_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(once, "MOST_TELLING", 2)
    seen = once.kernel_log([record(number, XID, number) for number in range(5)], builtin(), 9.0)
    assert (seen.left_out, [fact.at for fact in seen.facts]) == (3, [3.0, 4.0, 9.0])


@pytest.mark.parametrize("packet", [XID.encode(), b"4,x,1,-;" + XID.encode(), record(1, XID, facility=1), b"\xff", b""])
def test_what_the_kernel_did_not_write_tells_nothing(packet: bytes) -> None:
    assert [fact.told for fact in once.kernel_log([packet], builtin(), 9.0).facts] == [()]


def test_what_a_gpu_says_of_itself_counts_at_once() -> None:
    assert [(fault.code, fault.severity) for fault in gpu(rows=Rows(failed=True)).faults] == [
        ("gpu-remap-failed", Severity.FATAL)
    ]
    lost = gpu(refused=(Refused("nvmlDeviceGetUUID", 15),))
    assert [(fault.code, fault.severity) for fault in lost.faults] == [("gpu-lost", Severity.FATAL)]


def test_what_has_to_last_is_doubted_and_says_for_how_long() -> None:
    (fault,) = gpu(fabric=Fabric(state=3, status=999)).faults
    assert (fault.code, fault.severity) == ("gpu-fabric-failed", Severity.WARNING)
    assert "28 s" in fault.detail


def test_nothing_is_known_of_a_driver_that_hangs_refuses_or_shows_no_gpu() -> None:
    hung = once.gpus(Hung(3.0), 1.0, SIGNS)
    assert [fault.code for fault in hung.faults] == ["nvml-hung"]
    for seen in (hung, once.gpus(Unreadable("why"), 1.0, SIGNS), once.gpus(Snapshot(()), 1.0, SIGNS)):
        assert seen.problem


def test_missing_gpus_are_fatal_only_where_a_number_is_expected() -> None:
    seen = once.gpus(Snapshot((Gpu(0, "0000:1b:00"),)), 1.0, SIGNS, expected=2)
    assert [(fault.code, fault.severity) for fault in seen.faults] == [("gpu-lost", Severity.FATAL)]


def port_down() -> dict[str, str]:
    path = next(path for path in TREE if path.endswith("mlx5_bond_0/ports/1/state"))
    return {**TREE, path: "1: DOWN"}


def test_a_healthy_tree_shows_nothing() -> None:
    seen = once.ports(read_snapshot(TREE), PORTS, Expectation(ports=2, rate=400.0))
    assert (seen.faults, seen.up, seen.count) == ((), 2, 2)


def test_a_silent_port_is_doubted_and_asks_for_no_repair() -> None:
    (fault,) = once.ports(read_snapshot(port_down()), PORTS, Expectation()).faults
    assert (fault.code, fault.severity, fault.repair) == ("rdma-port-down", Severity.WARNING, Repair.NONE)


def test_a_number_of_ports_that_is_not_there_is_fatal() -> None:
    seen = once.ports(read_snapshot(port_down()), PORTS, Expectation(ports=2))
    assert {fault.code: fault.severity for fault in seen.faults}["rdma-ports-missing"] is Severity.FATAL


def test_every_shared_mount_counts_once_whoever_has_it() -> None:
    text = (
        "1 0 8:1 / / rw - ext4 /dev/sda rw\n"
        "2 0 0:9 / /mnt/a rw - nfs4 s:/e rw\n"
        "3 0 0:9 / /pods/u/volumes/x rw - nfs4 s:/e rw\nnonsense\n"
    )
    (mount,) = storage.read_all_mounts(text, storage.builtin())
    assert (mount.source, mount.points, mount.pods) == ("s:/e", ("/mnt/a", "/pods/u/volumes/x"), ())
    (fault,) = storage.judge([(mount, storage.Hung())], frozenset(), storage.builtin()).faults
    assert "mounted at /mnt/a" in fault.detail


def test_every_code_that_a_table_has_is_described() -> None:
    rows = with_every_code(builtin()).rows
    codes = {row.fault for row in SIGNS.rows.values()} | {code.value for code in PORTS.rows}
    assert codes | set(storage.builtin().rows) | set(builtin().rows) == set(rows)
