"""The verdict on one node, case by case."""

from __future__ import annotations

import dataclasses
from functools import reduce

import pytest

from rlguard.health.assess import (
    PATIENCE,
    Answered,
    Assessment,
    CannotLook,
    CloudSaid,
    Fact,
    Happened,
    KernelRead,
    Observed,
    Source,
    View,
    decide,
    fold,
    recall,
)
from rlguard.health.catalogue import builtin
from rlguard.health.faults import Fault
from rlguard.health.spot import Hint, NoNotice, Reclaim, Unreadable
from rlguard.health.standing import PROCESS_FAULT_KEPT
from rlguard.model import Repair, Scope, Severity, Verdict

ALL = frozenset(Source)
TABLE = builtin()
NOW = 1000.0
LOOKED: tuple[Fact, ...] = tuple(Answered(source, NOW) for source in Source)


def xid(code: int, text: str = "text", device: str = "0000:05:00") -> Fault:
    fault = TABLE.read(f"NVRM: Xid (PCI:{device}): {code}, {text}")
    assert fault is not None
    return fault


def kernel(*faults: Fault, at: float = NOW, gaps: int = 0, caught_up: bool = True, position: int = 1) -> KernelRead:
    return KernelRead(at, position, faults, gaps, caught_up)


def seen(*facts: Fact, sources: frozenset[Source] = ALL, boot_id: str = "0123456789") -> View:
    return reduce(fold, facts, View("node-1", boot_id, sources))


def judge(view: View, now: float = NOW) -> Assessment:
    (assessment,) = decide(view, now).actions
    assert isinstance(assessment, Assessment)
    return assessment


def test_nothing_is_known_at_the_start() -> None:
    assessment = judge(seen())
    assert assessment.report.verdict is Verdict.UNKNOWN
    assert (assessment.condition.status, assessment.condition.reason) == ("Unknown", "blind")
    assert "metadata: no answer yet" in assessment.condition.message


def test_the_node_is_healthy_once_every_source_has_looked() -> None:
    assessment = judge(seen(*LOOKED))
    assert (assessment.report.verdict, assessment.report.notices) == (Verdict.HEALTHY, ())
    assert assessment.condition.status == "True"


@pytest.mark.parametrize("missing", list(Source))
def test_one_source_that_has_not_looked_is_enough_to_know_nothing(missing: Source) -> None:
    facts = [fact for fact in LOOKED if fact != Answered(missing, NOW)]
    assert judge(seen(*facts)).report.verdict is Verdict.UNKNOWN


@pytest.mark.parametrize("source", list(Source))
def test_an_answer_grows_old(source: Source) -> None:
    view = seen(*LOOKED, *(Answered(other, NOW + 1000) for other in Source if other is not source))
    assert judge(view, NOW + PATIENCE[source]).report.verdict is Verdict.HEALTHY
    assert judge(view, NOW + PATIENCE[source] + 1).report.verdict is Verdict.UNKNOWN


def test_a_source_that_appeared_later_is_missed_from_then_on() -> None:
    few = frozenset({Source.KERNEL})
    appeared = seen(kernel(at=NOW + 60), Observed(Source.RDMA, NOW, ()), sources=few)
    assert judge(seen(kernel(at=NOW + 60), sources=few), NOW + 60).report.verdict is Verdict.HEALTHY
    assert judge(appeared, NOW + 60).condition.message == "rdma: no answer lately"
    blind = seen(kernel(), CannotLook(Source.RDMA, "hangs"), sources=few)
    assert judge(blind).condition.message == "rdma: hangs"


def test_the_decision_wakes_when_the_next_answer_grows_old() -> None:
    assert decide(seen(*LOOKED), NOW).wake_at == NOW + min(PATIENCE.values())


def test_a_log_not_read_to_its_end_has_not_been_looked_at() -> None:
    others = [fact for fact in LOOKED if fact != Answered(Source.KERNEL, NOW)]
    assert judge(seen(*others, kernel(caught_up=False))).report.verdict is Verdict.UNKNOWN
    assert judge(seen(*others, kernel(caught_up=False), kernel())).report.verdict is Verdict.HEALTHY


def test_a_source_says_why_it_is_blind() -> None:
    view = seen(*LOOKED, CannotLook(Source.KERNEL, "no permission"))
    assert judge(view).report.verdict is Verdict.HEALTHY  # it looked a moment ago
    assert "kernel-log: no permission" in judge(view, NOW + 20).condition.message


def scans(at: float, *faults: Fault, sources: tuple[Source, ...] = (Source.GPU, Source.RDMA)) -> list[Fact]:
    """GPUs and ports are looked at, from `at` on."""
    return [Observed(source, at, faults) for source in sources]


def test_a_hole_in_the_kernel_log_is_no_health_until_the_devices_were_looked_at() -> None:
    hole = [*LOOKED, kernel(gaps=1, at=NOW), kernel(at=NOW)]
    assert judge(seen(*hole)).report.verdict is Verdict.UNKNOWN
    assert judge(seen(*hole, *scans(NOW + 1))).report.verdict is Verdict.HEALTHY
    assert judge(seen(*hole, *scans(NOW + 1), kernel(gaps=1, at=NOW + 2))).report.verdict is Verdict.UNKNOWN


def test_a_look_that_began_before_the_hole_was_known_does_not_fill_it() -> None:
    view = seen(*LOOKED, kernel(gaps=1, at=NOW), *scans(NOW - 1))
    assert judge(view).report.verdict is Verdict.UNKNOWN


@pytest.mark.parametrize("looked", [Source.GPU, Source.RDMA])
def test_a_hole_is_filled_by_every_source_that_looks_at_devices_and_no_fewer(looked: Source) -> None:
    view = seen(*LOOKED, kernel(gaps=1, at=NOW), *scans(NOW + 1, sources=(looked,)))
    assert judge(view).report.verdict is Verdict.UNKNOWN


def test_a_driver_that_hangs_fills_no_hole() -> None:
    hung = Fault("nvml-hung", "node", Severity.WARNING, Scope.GPU, Repair.NONE, "no answer")
    view = seen(*LOOKED, kernel(gaps=1, at=NOW), *scans(NOW + 1, hung))
    assert judge(view).report.verdict is Verdict.UNKNOWN


def test_where_nothing_looks_at_gpus_a_hole_in_the_kernel_log_is_never_healthy_again_on_this_boot() -> None:
    blind = ALL - {Source.GPU}
    facts = [fact for fact in LOOKED if fact != Answered(Source.GPU, NOW)]
    view = seen(*facts, kernel(gaps=1, at=NOW), *scans(NOW + 1, sources=(Source.RDMA,)), sources=blind)
    assert judge(view).report.verdict is Verdict.UNKNOWN


def test_a_hole_from_before_a_restart_is_filled_by_the_first_looks_after_it() -> None:
    before = judge(seen(*LOOKED, kernel(gaps=1, at=NOW))).memory
    again = reduce(fold, LOOKED, recall(seen(), before))
    assert judge(again).report.verdict is Verdict.UNKNOWN
    assert judge(reduce(fold, scans(NOW + 1), again)).report.verdict is Verdict.HEALTHY


def test_a_fatal_xid_is_a_notice_and_costs_the_node() -> None:
    assessment = judge(seen(*LOOKED, kernel(xid(79, "GPU has fallen off the bus."))))
    (notice,) = assessment.report.notices
    assert assessment.report.verdict is Verdict.LOST
    assert (notice.id, notice.code) == ("01234567/xid-79/0000:05:00", "xid-79")
    assert (notice.severity, notice.scope, notice.repair) == (Severity.FATAL, Scope.GPU, Repair.REBOOT)
    assert notice.seconds_left is None
    assert (assessment.condition.status, assessment.condition.reason) == ("False", "xid-79")


def test_what_is_known_bad_is_said_although_a_source_is_blind() -> None:
    assert judge(seen(kernel(xid(79)))).report.verdict is Verdict.LOST


def test_a_program_s_fault_is_told_for_a_while_and_says_nothing_about_the_node() -> None:
    view = seen(*LOOKED, kernel(xid(31)))
    assert judge(view).report.verdict is Verdict.HEALTHY
    assert [notice.code for notice in judge(view).report.notices] == ["xid-31"]
    assert judge(view, NOW + PROCESS_FAULT_KEPT + 1).report.notices == ()


def test_a_gpu_s_warning_stays_and_degrades_the_node() -> None:
    view = seen(kernel(xid(63)), *(Answered(source, NOW + 1e6) for source in Source))
    assessment = judge(view, NOW + 1e6)
    assert assessment.report.verdict is Verdict.DEGRADED
    assert (assessment.condition.status, assessment.condition.reason) == ("True", "xid-63")


def test_what_the_vendor_says_to_ignore_is_no_notice() -> None:
    assert judge(seen(*LOOKED, kernel(xid(43)))).report.notices == ()


def test_an_nvlink_fault_that_turns_fatal_is_fatal() -> None:
    view = seen(*LOOKED, kernel(xid(149, "X Nonfatal")), kernel(xid(149, "X Fatal"), at=NOW + 1))
    (notice,) = judge(view).report.notices
    assert notice.severity is Severity.FATAL


def test_a_spot_notice_counts_down_to_its_deadline() -> None:
    view = seen(*LOOKED, CloudSaid(NOW, Reclaim(120.0)))
    (notice,) = judge(view, NOW + 20).report.notices
    assert judge(view, NOW).report.verdict is Verdict.LEAVING
    assert (notice.code, notice.scope, notice.seconds_left) == ("spot-reclaim", Scope.NODE, 100.0)
    (notice,) = judge(view, NOW + 500).report.notices
    assert notice.seconds_left == 0.0


def test_a_spot_notice_is_not_taken_back_by_silence() -> None:
    silence = [CloudSaid(NOW + 2 * number, NoNotice()) for number in range(1, 60)]
    view = seen(*LOOKED, CloudSaid(NOW, Reclaim(120.0)), *silence)
    assert judge(view).report.verdict is Verdict.LEAVING


def test_maintenance_that_is_called_off_is_a_fault_no_more() -> None:
    soon = CloudSaid(NOW, Reclaim(600.0, "maintenance-reboot", "soon", binding=False), "maintenance")
    calm = [CloudSaid(NOW + number, NoNotice(), "maintenance") for number in range(1, 5)]
    assert judge(seen(*LOOKED, soon)).report.verdict is Verdict.LEAVING
    assert judge(seen(*LOOKED, soon, *calm)).report.verdict is Verdict.HEALTHY


def test_a_hint_of_the_cloud_degrades_the_node_and_names_no_deadline() -> None:
    assessment = judge(seen(*LOOKED, CloudSaid(NOW, Hint("spot-rebalance", "maybe"), "rebalance")))
    (notice,) = assessment.report.notices
    assert assessment.report.verdict is Verdict.DEGRADED
    assert (notice.code, notice.severity, notice.seconds_left) == ("spot-rebalance", Severity.WARNING, None)


def test_one_question_that_is_not_answered_leaves_the_cloud_out_of_sight() -> None:
    others = [fact for fact in LOOKED if fact != Answered(Source.METADATA, NOW)]
    view = seen(*others, CloudSaid(NOW, Unreadable("status 500"), "maintenance"), CloudSaid(NOW, NoNotice()))
    assert judge(view).report.verdict is Verdict.UNKNOWN
    assert "metadata: status 500" in judge(view).condition.message
    assert judge(fold(view, CloudSaid(NOW, NoNotice(), "maintenance"))).report.verdict is Verdict.HEALTHY


def test_a_metadata_server_that_does_not_answer_is_not_a_healthy_cloud() -> None:
    view = seen(*LOOKED, CloudSaid(NOW, Unreadable("status 502")))
    assert judge(view, NOW + 11).report.verdict is Verdict.UNKNOWN
    assert "metadata: status 502" in judge(view, NOW + 11).condition.message


def test_what_another_wrote_onto_the_node_stands_as_long_as_it_stands_there() -> None:
    fault = Fault("condition-GPUDeviceLost", "node", Severity.FATAL, Scope.GPU, Repair.REBOOT, "lost")
    assert judge(seen(*LOOKED, Observed(Source.NODE, NOW, (fault,)))).report.verdict is Verdict.LOST
    assert (
        judge(seen(*LOOKED, Observed(Source.NODE, NOW, (fault,)), Observed(Source.NODE, NOW, ()))).report.verdict
        is Verdict.HEALTHY
    )


def test_a_restarted_agent_knows_what_it_knew_on_the_same_boot_alone() -> None:
    before = seen(*LOOKED, kernel(xid(79), position=42, gaps=1), CloudSaid(NOW, Reclaim(60.0)))
    memory = judge(before).memory
    same = recall(seen(), memory)
    assert judge(same).report.notices == judge(before).report.notices
    assert (same.position, same.gaps) == (42, 1)
    assert recall(seen(boot_id="another"), memory) == seen(boot_id="another")


def observed(source: Source, *faults: Fault, at: float = NOW) -> Observed:
    return Observed(source, at, faults)


def lost(device: str = "0000:05:00", code: str = "gpu-lost") -> Fault:
    return Fault(code, device, Severity.FATAL, Scope.GPU, Repair.REBOOT, "gone")


@pytest.mark.parametrize("source", [Source.GPU, Source.RDMA, Source.STORAGE, Source.NODE, Source.HOST])
def test_what_a_source_saw_stands_after_a_restart_until_it_has_looked_again(source: Source) -> None:
    before = judge(seen(*LOOKED, observed(source, lost())))
    after = recall(seen(), before.memory)
    others = [Answered(one, NOW) for one in Source if one is not source]
    assert judge(reduce(fold, others, after)).report == before.report
    again = reduce(fold, [observed(source), observed(source, at=NOW + 301)], after)
    assert judge(again, NOW + 301).report.notices == ()


@pytest.mark.parametrize(("source", "wait"), [(Source.GPU, 300.0), (Source.STORAGE, 30.0)])
def test_a_fresh_process_that_cannot_see_it_yet_ends_nothing(source: Source, wait: float) -> None:
    memory = judge(seen(*LOOKED, observed(source, lost()))).memory
    looked = fold(fold(recall(seen(), memory), observed(source)), observed(source, at=NOW + wait - 1))
    assert [notice.code for notice in judge(looked).report.notices] == ["gpu-lost"]
    restarted = recall(seen(), judge(looked).memory)
    assert [notice.code for notice in judge(restarted).report.notices] == ["gpu-lost"]
    assert judge(fold(looked, observed(source, at=NOW + wait))).report.notices == ()


def test_a_driver_that_answers_a_fresh_process_hangs_no_more() -> None:
    memory = judge(seen(*LOOKED, observed(Source.GPU, lost(code="nvml-hung")))).memory
    assert judge(fold(recall(seen(), memory), observed(Source.GPU))).report.notices == ()


def test_what_a_source_saw_that_is_switched_off_since_is_forgotten() -> None:
    memory = judge(seen(*LOOKED, observed(Source.GPU, lost()))).memory
    assert judge(recall(seen(sources=ALL - {Source.GPU}), memory)).report.notices == ()


def test_of_too_many_faults_that_a_source_sees_the_worst_are_kept() -> None:
    mild = Fault("warm", "0", Severity.WARNING, Scope.GPU, Repair.NONE, "")
    many = [dataclasses.replace(mild, device=f"gpu-{number}") for number in range(300)]
    assert judge(seen(*LOOKED, observed(Source.GPU, *many, lost()))).report.verdict is Verdict.LOST


def test_the_same_fault_from_the_kernel_log_and_from_nvml_is_one_notice() -> None:
    told = (kernel(xid(79)), Happened(Source.GPU, NOW, (xid(79, "other words"),)))
    for order in (told, told[::-1]):
        (notice,) = judge(seen(*order)).report.notices
        assert notice.id == "01234567/xid-79/0000:05:00"


def test_what_a_source_saw_happen_is_kept_but_says_not_that_it_has_looked() -> None:
    view = seen(Happened(Source.GPU, NOW, (xid(79),)))
    assert Source.GPU not in view.answered
    assert [one.fault.code for one in judge(view).memory.faults] == ["xid-79"]


def test_a_source_that_speaks_is_one_from_then_on() -> None:
    kernel_alone = frozenset({Source.KERNEL})
    assert judge(seen(kernel(), sources=kernel_alone)).report.verdict is Verdict.HEALTHY
    view = seen(kernel(), CannotLook(Source.GPU, "no library"), sources=kernel_alone)
    assessment = judge(view)
    assert assessment.report.verdict is Verdict.UNKNOWN
    assert "nvml: no library" in assessment.condition.message
