"""What a node's GPUs are judged to be, look after look."""

from __future__ import annotations

import dataclasses
import json
from importlib import resources
from typing import Any

import pytest

from rlguard.errors import BadConfigError
from rlguard.health.catalogue import builtin
from rlguard.health.faults import NODE, Fault
from rlguard.health.gpu.snapshot import (
    Ecc,
    Fabric,
    Gpu,
    Heat,
    Hung,
    Look,
    Refused,
    Rows,
    Snapshot,
    Unreadable,
    XidEvent,
)
from rlguard.health.gpu.table import DETAIL_LIMIT, builtin_signs, parse_signs
from rlguard.health.gpu.watch import GpuView, Learned, faults, fold, wants_reset, xid_fault
from rlguard.health.xid import read_xid
from rlguard.model import Repair, Scope, Severity

TABLE = builtin_signs()
PCI = "0000:9b:00"
HOT = Heat(temperature=88, reasons=0x48)
LINKS = (True,) * 4
UUID = "GPU-0"


def gpu(index: int = 0, pci: str | None = PCI, **values: Any) -> Gpu:
    return Gpu(index, pci, UUID, **values)


def look(*gpus: Gpu) -> Snapshot:
    return Snapshot(gpus)


def start(expected: int | None = None, learned: Learned = Learned("boot-1")) -> GpuView:  # noqa: B008 - frozen
    return GpuView(TABLE, learned, expected)


def after(*looks: Look, view: GpuView | None = None, every: float = 10.0) -> GpuView:
    """The view after one look each ten seconds."""
    view = view or start()
    for number, one in enumerate(looks):
        view = fold(view, one, 1000.0 + every * number)
    return view


def codes(view: GpuView) -> list[tuple[str, str]]:
    return [(fault.code, fault.device) for fault in faults(view)]


def the_fault(view: GpuView) -> Fault:
    (fault,) = faults(view)
    return fault


HEALTHY = gpu(
    ecc=Ecc(0, 0, 5, 0),
    rows=Rows(0, 0, pending=False, failed=False, banks_low=0, banks_exhausted=0, pages_pending=False),
    heat=Heat(45, 87, 300.0, 0x1 | 0x2 | 0x4 | 0x10 | 0x100),
    fabric=Fabric(3, 0, 0x5 << 12 | 0x2 | 0x2 << 2 | 0x2 << 4 | 0x2 << 6 | 0x1 << 8),
    links=LINKS,
    link_errors=0,
    action=0,
)


def test_a_healthy_gpu_has_no_fault_however_long_it_is_looked_at() -> None:
    assert codes(after(*[look(HEALTHY)] * 100)) == []


def test_a_gpu_of_which_nothing_is_known_but_its_address_has_no_fault() -> None:
    assert codes(after(*[look(Gpu(0, PCI))] * 100)) == []


@pytest.mark.parametrize("code", [2, 3, 6, 13, 21, 22, 25, 26, 27])
def test_a_value_that_does_not_exist_is_no_fault(code: int) -> None:
    refused = gpu(refused=(Refused("nvmlDeviceGetRemappedRows", code),))
    assert codes(after(*[look(refused)] * 10)) == []


@pytest.mark.parametrize(
    ("bad", "code", "severity", "repair"),
    [
        ({"refused": (Refused("x", 15),)}, "gpu-lost", Severity.FATAL, Repair.REBOOT),
        ({"refused": (Refused("x", 16),)}, "gpu-reset-required", Severity.FATAL, Repair.RESET_GPU),
        ({"ecc": Ecc(0, 1)}, "gpu-ecc-uncorrected", Severity.WARNING, Repair.RESET_GPU),
        ({"rows": Rows(pending=True)}, "gpu-remap-pending", Severity.WARNING, Repair.RESET_GPU),
        ({"rows": Rows(failed=True)}, "gpu-remap-failed", Severity.FATAL, Repair.REPLACE),
        ({"rows": Rows(pages_pending=True)}, "gpu-pages-pending", Severity.WARNING, Repair.RESET_GPU),
        ({"rows": Rows(banks_exhausted=1)}, "gpu-degraded-remaps", Severity.WARNING, Repair.NONE),
    ],
)
def test_what_is_certain_counts_at_once(bad: dict[str, Any], code: str, severity: Severity, repair: Repair) -> None:
    fault = the_fault(after(look(gpu(**bad))))
    assert (fault.code, fault.device) == (code, PCI)
    assert (fault.severity, fault.scope, fault.repair) == (severity, Scope.GPU, repair)


@pytest.mark.parametrize(
    ("bad", "code", "seconds"),
    [
        ({"refused": (Refused("x", 8),)}, "gpu-power-missing", 8),
        ({"refused": (Refused("x", 11),)}, "gpu-interrupts", 8),
        ({"refused": (Refused("x", 14),)}, "gpu-inforom-corrupted", 8),
        ({"refused": (Refused("x", 999),)}, "gpu-unreadable", 18),
        ({"refused": (Refused("x", 4),)}, "gpu-unreadable", 18),
        ({"heat": Heat(reasons=0x40)}, "gpu-throttled-heat", 60),
        ({"heat": Heat(reasons=0x20)}, "gpu-throttled-heat", 60),
        ({"heat": Heat(reasons=0x88)}, "gpu-throttled-power-brake", 60),
        ({"heat": Heat(reasons=0x8)}, "gpu-throttled-hardware", 60),
        ({"heat": Heat(85, 87)}, "gpu-degraded-heat", 120),
        ({"fabric": Fabric(3, 23)}, "gpu-fabric-failed", 28),
        ({"fabric": Fabric(2, 0)}, "gpu-fabric-not-ready", 300),
        ({"fabric": Fabric(1, 0)}, "gpu-fabric-not-ready", 300),
        ({"fabric": Fabric(3, 0, 1)}, "gpu-degraded-fabric", 60),
        ({"fabric": Fabric(3, 0, 1 << 4)}, "gpu-fabric-unhealthy", 60),
        ({"fabric": Fabric(3, 0, 5 << 8)}, "gpu-fabric-unhealthy", 60),
    ],
)
def test_what_may_be_a_moment_counts_when_it_lasts(bad: dict[str, Any], code: str, seconds: int) -> None:
    looks = [look(gpu(**bad))] * 40
    needed = -(-seconds // 10) + 1
    assert codes(after(*looks[: needed - 1])) == []
    assert codes(after(*looks[:needed])) == [(code, PCI)]


def test_a_moment_without_it_starts_the_count_anew() -> None:
    hot, cool = look(gpu(heat=HOT)), look(gpu())
    assert codes(after(*[hot] * 6, cool, *[hot] * 6)) == []
    assert codes(after(*[hot] * 7, cool)) == []


def test_two_looks_far_apart_are_not_without_a_break() -> None:
    hot = look(gpu(heat=HOT))
    assert codes(after(hot, hot, hot, every=100.0)) == []


@pytest.mark.parametrize(
    ("action", "code", "severity", "repair"),
    [
        (1, "gpu-wants-reset", Severity.FATAL, Repair.RESET_GPU),
        (2, "gpu-wants-reboot", Severity.FATAL, Repair.REBOOT),
        (3, "gpu-wants-drain-p2p", Severity.WARNING, Repair.RESET_GPU),
        (4, "gpu-wants-drain-and-reset", Severity.FATAL, Repair.RESET_GPU),
        (7, "gpu-wants-system-reboot", Severity.FATAL, Repair.REBOOT),
        (99, "gpu-wants-unknown", Severity.WARNING, Repair.NONE),
    ],
)
def test_the_recovery_action_says_what_to_do(action: int, code: str, severity: Severity, repair: Repair) -> None:
    fault = the_fault(after(look(gpu(action=action))))
    assert (fault.code, fault.severity, fault.repair) == (code, severity, repair)


@pytest.mark.parametrize("action", range(1, 8))
def test_nvml_and_the_kernel_log_rate_a_recovery_action_alike(action: int) -> None:
    line = builtin().read(f"NVRM: Xid (PCI:{PCI}): 154, GPU recovery action changed from 0x0 (None) to {action:#x} (x)")
    fault = the_fault(after(look(gpu(action=action))))
    assert line is not None
    assert (line.severity, line.scope, line.repair) == (fault.severity, fault.scope, fault.repair)


def test_a_lost_gpu_is_told_by_its_address_though_it_does_not_tell_it_any_more() -> None:
    two = look(gpu(), gpu(1, "0000:ab:00"))
    lost = look(gpu(), Gpu(1, refused=(Refused("nvmlDeviceGetHandleByIndex", 15),)))
    assert codes(after(two, lost)) == [("gpu-lost", "0000:ab:00")]
    assert codes(after(two, lost, two)) == []


def test_of_a_lost_gpu_nothing_else_counts() -> None:
    lost = gpu(action=2, rows=Rows(failed=True), refused=(Refused("x", 999), Refused("y", 15)))
    assert codes(after(look(lost))) == [("gpu-lost", PCI)]


def test_a_gpu_that_is_not_shown_any_more_is_lost_when_it_stays_away() -> None:
    two, one = look(gpu(), gpu(1, "0000:ab:00")), look(gpu())
    assert codes(after(two, one)) == []
    assert codes(after(two, one, one)) == [("gpu-lost", "0000:ab:00")]
    assert codes(after(two, one, one, two)) == []
    assert codes(after(two, look(), look())) == [("gpu-lost", PCI), ("gpu-lost", "0000:ab:00")]


def test_what_was_learned_survives_a_restart_of_the_agent() -> None:
    learned = after(look(gpu(links=LINKS), gpu(1, "0000:ab:00"))).learned
    restarted = after(*[look(gpu(links=(True, False, True, True)))] * 4, view=start(learned=learned))
    assert codes(restarted) == [("gpu-lost", "0000:ab:00"), ("gpu-nvlink-down", PCI)]


def test_fewer_gpus_than_expected_are_a_fault_of_the_node() -> None:
    view = after(look(gpu()), look(gpu()), view=start(expected=8))
    fault = the_fault(view)
    assert (fault.code, fault.device, fault.severity) == ("gpu-lost", NODE, Severity.FATAL)
    assert "8 GPUs are expected, 1 are shown" in fault.detail
    assert codes(after(look(gpu()), look(gpu()), view=start(expected=1))) == []


def test_one_missing_gpu_is_one_fault_whether_known_or_counted() -> None:
    two, one = look(gpu(), gpu(1, "0000:ab:00")), look(gpu())
    assert codes(after(two, one, one, view=start(expected=2))) == [("gpu-lost", "0000:ab:00")]


def test_links_that_were_never_up_are_no_fault_and_those_that_were_are() -> None:
    down = look(gpu(links=(True, False)))
    assert codes(after(*[down] * 100)) == []
    view = after(look(gpu(links=(True, True))), *[down] * 4)
    assert codes(view) == [("gpu-nvlink-down", PCI)]
    assert "down: 1" in the_fault(view).detail


def test_a_link_that_flaps_between_looks_is_no_fault() -> None:
    up, down = look(gpu(links=(True, True))), look(gpu(links=(True, False)))
    assert codes(after(*[up, down, down] * 20)) == []


def test_corrected_errors_count_by_how_fast_they_come() -> None:
    slow = [look(gpu(ecc=Ecc(number, 0))) for number in range(1000)]
    assert codes(after(*slow)) == []
    fast = [look(gpu(ecc=Ecc(100 * number, 0))) for number in range(6)]
    fault = the_fault(after(*fast))
    assert (fault.code, fault.severity) == ("gpu-degraded-ecc", Severity.WARNING)
    assert "500 more or above within an hour" in fault.detail


def test_many_corrected_errors_of_before_are_no_slope_nor_is_a_counter_that_starts_anew() -> None:
    assert codes(after(*[look(gpu(ecc=Ecc(10**6, 0)))] * 5)) == []
    anew = (look(gpu(ecc=Ecc(10**6, 0))), look(gpu(ecc=Ecc(3, 0))))
    assert codes(after(*anew, look(gpu(ecc=Ecc(10, 0))))) == []
    assert codes(after(*anew, look(gpu(ecc=Ecc(503, 0))))) == [("gpu-degraded-ecc", PCI)]


def test_link_errors_that_come_fast_are_a_prediction() -> None:
    assert codes(after(look(gpu(link_errors=0)), look(gpu(link_errors=1000)))) == [("gpu-degraded-nvlink", PCI)]


def test_a_slope_is_over_after_a_quiet_hour_and_its_samples_are_bounded() -> None:
    jump = [look(gpu(ecc=Ecc(0, 0))), *[look(gpu(ecc=Ecc(600, 0)))] * 1000]
    view = after(*jump)
    assert codes(view) == []
    assert codes(after(*jump[:300])) == [("gpu-degraded-ecc", PCI)]
    assert all(len(samples) <= 122 for samples in view.samples.values())


def test_a_gpu_that_works_no_more_before_a_reset_wants_one() -> None:
    assert wants_reset(after(look(gpu(action=1))))
    assert wants_reset(after(look(gpu(refused=(Refused("x", 16),)))))
    assert not wants_reset(after(look(gpu(action=2, rows=Rows(pending=True)))))


def test_the_words_do_not_change_with_every_figure() -> None:
    """They stand in the Node's condition, and each change of it is a write to the API server."""

    def worn(number: int) -> Snapshot:
        ecc = Ecc(100 * number, 10 + number)
        return look(gpu(ecc=ecc, heat=Heat(84 + number % 3, 87, 300.0 + number, 0x40), link_errors=200 * number))

    looks = [worn(number) for number in range(40)]
    assert len(codes(after(*looks[:30]))) == 5
    assert faults(after(*looks[:30])) == faults(after(*looks))


def test_a_driver_that_hangs_is_a_fault_beside_what_was_known() -> None:
    view = after(look(gpu(rows=Rows(failed=True))), Hung(10.0))
    assert codes(view) == [("nvml-hung", NODE), ("gpu-remap-failed", PCI)]
    assert "nvml-hung" in view.problem
    assert codes(after(look(gpu(rows=Rows(failed=True))), Hung(10.0), look(gpu()))) == []


def test_what_cannot_be_read_is_a_problem_and_no_fault() -> None:
    view = after(Unreadable("why"))
    assert (codes(view), view.problem) == ([], "why")
    assert after(Unreadable("why"), look(gpu())).problem == ""


def test_a_driver_without_gpus_is_a_problem_unless_there_were_some() -> None:
    assert "shows no GPU" in after(look()).problem
    assert after(look(gpu()), look()).problem == ""
    assert after(look(), view=start(expected=8)).problem == ""


@pytest.mark.parametrize("code", [13, 48, 63, 79, 94, 95, 119])
def test_an_xid_of_nvml_is_the_same_fault_as_that_of_the_kernel_log(code: int) -> None:
    line = f"NVRM: Xid (PCI:0000:9B:00): {code}, words"
    assert read_xid(line) is not None
    kernel, nvml = builtin().read(line), xid_fault(builtin(), XidEvent(PCI, code))
    assert kernel is not None
    assert dataclasses.replace(kernel, detail="") == dataclasses.replace(nvml, detail="")


def test_where_the_words_of_the_line_decide_nvmls_number_is_read_as_the_milder() -> None:
    fault = xid_fault(builtin(), XidEvent(PCI, 145))
    nonfatal = builtin().read(f"NVRM: Xid (PCI:{PCI}): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x1)")
    assert nonfatal is not None
    assert fault.severity is nonfatal.severity is Severity.WARNING


def test_every_row_says_what_it_means_what_to_do_what_clears_it_and_where_it_is_from() -> None:
    assert len(TABLE.rows) >= 30
    for row in TABLE.rows.values():
        assert all((row.meaning, row.advice, row.clears, row.source))
        detail = TABLE.fault(row.sign, PCI, "x" * 80).detail
        assert detail.endswith(row.advice), "cut off"
        if row.severity is Severity.FATAL:
            assert row.repair in (Repair.RESET_GPU, Repair.REBOOT, Repair.REPLACE)
        if row.fault.startswith("gpu-degraded-"):
            assert row.severity is Severity.WARNING


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "null", '{"version": 1, "rows": [{}]}', '{"version": 1, "rows": [3]}']
)
def test_a_table_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadConfigError, match="GPU signs"):
        parse_signs(text)


def test_a_bad_row_is_named() -> None:
    table = json.loads(resources.files("rlguard.health").joinpath("data/gpu.json").read_text("utf-8"))
    table["rows"][0]["severity"] = "dreadful"
    with pytest.raises(BadConfigError, match="dreadful"):
        parse_signs(json.dumps(table))


def test_a_gpu_that_tells_not_even_its_address_is_unreadable_whatever_the_reason() -> None:
    silent = Gpu(0, refused=(Refused("nvmlDeviceGetHandleByIndex", 6),))
    assert codes(after(*[look(silent)] * 3)) == [("gpu-unreadable", "gpu-0")]


def test_a_gpu_that_once_told_its_uuid_is_missed_by_it() -> None:
    view = after(look(HEALTHY), look(dataclasses.replace(HEALTHY, uuid=None)), *[look()] * 3)
    assert f"GPU {UUID} is not shown any more" in the_fault(view).detail


def test_words_of_the_driver_however_long_make_no_long_detail() -> None:
    view = after(look(gpu()), *[look(gpu(refused=(Refused("x" * 1000, 999),)))] * 3)
    assert len(the_fault(view).detail) == DETAIL_LIMIT
