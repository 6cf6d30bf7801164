"""What ends a fault, and what several faults say together."""

from __future__ import annotations

from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlguard.health.assess import (
    Answered,
    Assessment,
    KernelRead,
    Memory,
    Observed,
    Source,
    View,
    decide,
    fold,
    recall,
)
from rlguard.health.catalogue import builtin
from rlguard.health.faults import Clears, Ended, Fault, Named, Sighting, Told, Until
from rlguard.health.standing import COUNT_LIMIT, FAULT_LIMIT, NAME_LIMIT, PROCESS_LIMIT
from rlguard.model import Repair, Scope, Severity, Verdict
from rlguard.wire import from_json, to_json

TABLE = builtin()
START = View("node-1", "0123456789", frozenset({Source.KERNEL}))
GPU = "0000:05:00"


def line(text: str, at: float = 0.0, count: int = 1) -> KernelRead:
    return KernelRead(at, None, TABLE.read_line(text, count), 0, caught_up=True)


def xid(code: int, at: float = 0.0, device: str = GPU, pid: int = 7, text: str = "text") -> KernelRead:
    return line(f"NVRM: Xid (PCI:{device}): {code}, pid={pid}, name=python3, {text}", at)


def judged(view: View, at: float) -> Assessment:
    (assessment,) = decide(fold(view, Answered(Source.KERNEL, at)), at).actions
    assert isinstance(assessment, Assessment)
    return assessment


def standing(*facts: KernelRead, at: float) -> list[str]:
    return [notice.code for notice in judged(reduce(fold, facts, START), at).report.notices]


def fault(rule: str, scope: Scope = Scope.GPU) -> Fault:
    return Fault("code", GPU, Severity.WARNING, scope, Repair.NONE, "detail", clears=Clears.parse(rule))


def told(*items: Told, at: float = 0.0) -> KernelRead:
    return KernelRead(at, None, items, 0, caught_up=True)


def test_what_a_boot_ends_outlasts_everything_else_on_this_boot() -> None:
    assert standing(told(fault("boot")), told(Ended("", GPU)), at=1e9) == ["code"]


@pytest.mark.parametrize(("after", "stands"), [(599.0, True), (600.0, True), (600.5, False)])
def test_a_quiet_rule_counts_from_the_last_time(after: float, stands: bool) -> None:
    view = reduce(fold, [told(fault("quiet:600")), told(fault("quiet:600"), at=300.0)], START)
    assert bool(judged(view, 300.0 + after).report.notices) is stands


def test_the_agent_wakes_when_a_quiet_fault_is_over() -> None:
    view = fold(fold(START, told(fault("quiet:5"))), Answered(Source.KERNEL, 1.0))
    assert decide(view, 1.0).wake_at == 5.0


def test_a_passed_check_ends_what_a_check_ends_on_this_device_alone() -> None:
    assert standing(told(fault("check")), told(Ended("", "0000:06:00")), at=1.0) == ["code"]
    assert standing(told(fault("check")), told(Ended("", GPU)), at=1.0) == []


def test_a_pair_needs_its_own_code_and_device() -> None:
    assert standing(told(fault("pair")), told(Ended("other", GPU)), at=1.0) == ["code"]
    assert standing(told(fault("pair")), told(Ended("", GPU)), at=1.0) == ["code"]
    assert standing(told(fault("pair")), told(Ended("code", GPU)), at=1.0) == []


def test_within_one_reading_the_order_of_lines_decides() -> None:
    assert standing(told(fault("pair"), Ended("code", GPU)), at=1.0) == []
    assert standing(told(Ended("code", GPU), fault("pair")), at=1.0) == ["code"]


def test_what_came_back_is_a_fault_again_with_the_same_id() -> None:
    once = reduce(fold, [told(fault("pair"))], START)
    again = reduce(fold, [told(Ended("code", GPU)), told(fault("pair"), at=5.0)], once)
    assert [n.id for n in judged(again, 6.0).report.notices] == [n.id for n in judged(once, 1.0).report.notices]


def test_a_link_that_was_never_up_is_no_fault_and_a_restarted_agent_knows_which_was() -> None:
    down, up = (line(f"mlx5_core 0000:0c:00.0 eth2: Link {word}") for word in ("down", "up"))
    assert standing(down, at=1.0) == []
    assert standing(down, up, down, at=1.0) == ["mlx5-link-down"]
    memory = judged(fold(START, up), 1.0).memory
    again = recall(START, from_json(Memory, to_json(memory)))
    assert [n.code for n in judged(fold(again, down), 1.0).report.notices] == ["mlx5-link-down"]


def test_a_state_file_of_the_version_before_is_understood() -> None:
    kept = {
        "fault": {
            "code": "xid-79",
            "device": GPU,
            "severity": "fatal",
            "scope": "gpu",
            "repair": "reboot",
            "detail": "d",
            "deadline": None,
        }
    }
    old = {"boot_id": START.boot_id, "position": 9, "gaps": 0, "faults": [{**kept, "first": 1.0, "last": 2.0}]}
    view = recall(START, from_json(Memory, old))
    assert judged(view, 3.0).report.verdict is Verdict.LOST


def test_equal_lines_are_one_fault_with_a_count_and_the_notice_stays_as_it_was() -> None:
    one = fold(START, xid(95))
    many = reduce(fold, [line(f"NVRM: Xid (PCI:{GPU}): 95, pid=7, name=python3, text", 0.5, 400_000)] * 2, one)
    assert many.faults["xid-95", GPU].count == 800_001
    assert judged(many, 1.0).report.notices == judged(one, 1.0).report.notices


def test_counts_and_processes_are_bounded() -> None:
    view = START
    for pid in range(50):
        view = fold(view, told(Sighting(fault("boot"), COUNT_LIMIT, pid)))
    kept = view.faults["code", GPU]
    assert (kept.count, len(kept.processes)) == (COUNT_LIMIT, PROCESS_LIMIT)


def test_the_heavier_repair_of_the_same_fault_stands() -> None:
    for order in ((1, 2), (2, 1)):
        facts = [xid(154, text=f"GPU recovery action changed from 0x0 (None) to 0x{number} (x)") for number in order]
        (notice,) = judged(reduce(fold, facts, START), 1.0).report.notices
        assert notice.repair is Repair.REBOOT


def test_a_consequence_is_told_only_when_its_cause_is_not() -> None:
    assert standing(xid(48), xid(171, at=59.0), at=60.0) == ["xid-48"]
    assert standing(xid(171, at=59.0), xid(48), at=60.0) == ["xid-48"]
    assert standing(xid(171), at=60.0) == ["xid-171"]
    assert set(standing(xid(48), xid(171, at=61.0), at=62.0)) == {"xid-48", "xid-171"}


def test_a_consequence_goes_with_its_cause() -> None:
    over = xid(154, at=90.0, text="GPU recovery action changed from 0x1 (PF FLR) to 0x0 (None)")
    assert standing(xid(48), xid(171, at=1.0), over, at=91.0) == []


def test_what_the_driver_calls_a_consequence_is_none_of_its_own() -> None:
    assert standing(xid(13, text="Graphics Exception, caused by previous Xid 149"), at=1.0) == []


def test_several_gpus_within_minutes_have_a_program_in_common() -> None:
    for gap, repair in ((300.0, Repair.FIX_PROGRAM), (301.0, Repair.RESTART_PROCESS)):
        view = reduce(fold, [xid(31), xid(31, at=gap, device="0000:06:00")], START)
        assert {notice.repair for notice in judged(view, gap).report.notices} == {repair}
        assert judged(view, gap).report.verdict is Verdict.HEALTHY


@pytest.mark.parametrize(
    ("pids", "spread", "suspect"), [((1, 2, 3), 100.0, True), ((1, 2, 2), 100.0, False), ((1, 2, 3), 10.0, False)]
)
def test_a_gpu_is_suspect_when_one_process_after_another_fails_on_it(
    pids: tuple[int, ...],
    spread: float,
    suspect: bool,
) -> None:
    view = reduce(fold, [xid(13, at=spread * number, pid=pid) for number, pid in enumerate(pids)], START)
    (notice,) = judged(view, 3 * spread).report.notices
    assert (notice.repair is Repair.RESET_GPU) is suspect
    assert (notice.scope is Scope.GPU) is suspect
    assert (judged(view, 1e6).report.verdict is Verdict.DEGRADED) is suspect


def test_a_reset_clears_the_suspicion() -> None:
    facts = [xid(13, at=100.0 * number, pid=number) for number in range(3)]
    reset = xid(154, at=999.0, text="GPU recovery action changed from 0x1 (PF FLR) to 0x0 (None)")
    assert standing(*facts, reset, at=1000.0) == []


def test_a_gpu_s_uuid_from_the_log_stands_in_its_notices_and_outlives_a_restart() -> None:
    named = line("NVRM: GPU at PCI:0000:05:00: GPU-5e6d3ac5-1b1c-4b0e-8d1e-0a1b2c3d4e5f")
    (notice,) = judged(reduce(fold, [named, xid(95)], START), 1.0).report.notices
    assert notice.detail.endswith("[GPU-5e6d3ac5-1b1c-4b0e-8d1e-0a1b2c3d4e5f]")
    memory = judged(fold(START, named), 1.0).memory
    (again,) = judged(fold(recall(START, from_json(Memory, to_json(memory))), xid(95)), 1.0).report.notices
    assert again.detail == notice.detail


def test_names_are_bounded() -> None:
    view = START
    for number in range(500):
        view = fold(view, told(Named(f"device-{number}", "x")))
    assert len(view.names) == NAME_LIMIT


def test_two_sources_that_know_the_same_fault_make_one_notice_of_the_worse_account() -> None:
    seen = Fault("xid-95", GPU, Severity.FATAL, Scope.GPU, Repair.REPLACE, "seen")
    milder = Fault("xid-95", GPU, Severity.WARNING, Scope.GPU, Repair.NONE, "milder")
    for other, expected in ((seen, Severity.FATAL), (milder, Severity.FATAL)):
        (notice,) = judged(reduce(fold, [xid(95), Observed(Source.GPU, 0.0, (other,))], START), 1.0).report.notices
        assert notice.severity is expected


RULES = st.sampled_from([Clears(until, 50.0 if until is Until.QUIET else 0.0) for until in Until])
ITEMS = st.one_of(
    st.builds(
        Fault,
        code=st.sampled_from(["xid-13", "xid-48", "xid-171"]),
        device=st.sampled_from([GPU, "0000:06:00"]),
        severity=st.sampled_from(Severity),
        scope=st.sampled_from(Scope),
        repair=st.sampled_from(Repair),
        detail=st.text(max_size=3),
        clears=RULES,
        follows=st.sampled_from([(), ("xid-48",)]),
        needs_good=st.booleans(),
    ),
    st.builds(Ended, st.sampled_from(["", "xid-13", "xid-48"]), st.sampled_from([GPU, "0000:06:00"])),
    st.builds(Named, st.sampled_from([GPU, "0000:06:00"]), st.text(max_size=3)),
)


@given(st.lists(st.tuples(st.floats(0, 1000), st.lists(ITEMS, max_size=5)), max_size=8), st.floats(0, 2000))
def test_what_is_kept_brings_back_the_same_verdict(history: list[tuple[float, list[Told]]], now: float) -> None:
    view = reduce(fold, [told(*items, at=at) for at, items in sorted(history, key=lambda one: one[0])], START)
    memory = judged(view, now).memory
    again = recall(START, from_json(Memory, to_json(memory)))
    assert judged(again, now).report.notices == judged(view, now).report.notices
    assert len(memory.faults) <= FAULT_LIMIT
    assert len(memory.good) <= FAULT_LIMIT
