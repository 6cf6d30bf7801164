"""What holds for the verdict on a node whatever the sources tell, and in whatever order."""

from __future__ import annotations

from functools import reduce

from hypothesis import given
from hypothesis import strategies as st

from rlguard.health.assess import (
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
    blindness,
    decide,
    fold,
    recall,
)
from rlguard.health.catalogue import builtin
from rlguard.health.faults import Fault
from rlguard.health.kmsg import gather
from rlguard.health.lines.dispatch import worth_reading
from rlguard.health.spot import Hint, NoNotice, Reclaim, Unreadable
from rlguard.health.standing import FAULT_LIMIT
from rlguard.messages import AgentReport
from rlguard.model import Repair, Scope, Severity, Verdict
from rlguard.wire import decode, encode, from_json, to_json

TABLE = builtin()
TIMES = st.floats(0, 1000)
FAULTS = st.builds(
    Fault,
    code=st.sampled_from(["xid-79", "xid-13", "xid-149"]),
    device=st.sampled_from(["0000:01:00", "0000:02:00", "node"]),
    severity=st.sampled_from(Severity),
    scope=st.sampled_from(Scope),
    repair=st.sampled_from(Repair),
    detail=st.text(max_size=5),
)
SOME = st.lists(FAULTS, max_size=4).map(tuple)
ANSWERS = st.one_of(
    st.just(NoNotice()),
    st.builds(Reclaim, st.floats(0, 200)),
    st.builds(Reclaim, st.floats(0, 900), st.just("maintenance-reboot"), binding=st.booleans(), dated=st.booleans()),
    st.just(Hint("maintenance-reboot", "in days")),
    st.builds(Unreadable, st.text(max_size=5)),
)
FACTS: st.SearchStrategy[Fact] = st.one_of(
    st.builds(Answered, st.sampled_from(Source), TIMES),
    st.builds(CannotLook, st.sampled_from(Source), st.text(max_size=5)),
    st.builds(KernelRead, TIMES, st.none() | st.integers(0, 99), SOME, st.integers(0, 1), st.booleans()),
    st.builds(CloudSaid, TIMES, ANSWERS),
    st.builds(CloudSaid, TIMES, ANSWERS, st.just("maintenance")),
    st.builds(Observed, st.just(Source.NODE), TIMES, SOME),
    st.builds(Happened, st.just(Source.GPU), TIMES, SOME),
)
KERNEL_FACTS = st.lists(
    st.builds(KernelRead, TIMES, st.none() | st.integers(0, 99), SOME, st.integers(0, 1), st.booleans()), max_size=6
)


def start() -> View:
    return View("node-1", "boot-id-1", frozenset(Source))


def judge(view: View, now: float) -> Assessment:
    (assessment,) = decide(view, now).actions
    assert isinstance(assessment, Assessment)
    return assessment


@given(st.lists(FACTS, max_size=20), TIMES)
def test_never_healthy_while_anything_is_out_of_sight(facts: list[Fact], now: float) -> None:
    view = reduce(fold, facts, start())
    if blindness(view, now):
        assert judge(view, now).report.verdict not in (Verdict.HEALTHY, Verdict.DEGRADED)


@given(st.lists(FACTS, max_size=20), TIMES)
def test_never_healthy_with_a_fatal_notice(facts: list[Fact], now: float) -> None:
    report = judge(reduce(fold, facts, start()), now).report
    if any(notice.severity is Severity.FATAL for notice in report.notices):
        assert report.verdict in (Verdict.LOST, Verdict.LEAVING)


@given(KERNEL_FACTS.flatmap(lambda facts: st.tuples(st.just(facts), st.permutations(facts))), TIMES)
def test_the_order_in_which_faults_are_told_does_not_matter(
    orders: tuple[list[KernelRead], list[KernelRead]], now: float
) -> None:
    one, other = (judge(reduce(fold, facts, start()), now) for facts in orders)
    assert one == other


@given(st.lists(FACTS, max_size=10), FACTS, TIMES)
def test_the_same_fault_told_again_changes_no_notice(facts: list[Fact], fact: Fact, now: float) -> None:
    once = fold(reduce(fold, facts, start()), fact)
    twice = fold(once, fact)
    assert judge(twice, now).report.notices == judge(once, now).report.notices


@given(st.lists(FACTS, max_size=20), TIMES)
def test_every_notice_has_an_id_of_its_own_and_the_report_travels(facts: list[Fact], now: float) -> None:
    report = judge(reduce(fold, facts, start()), now).report
    ids = [notice.id for notice in report.notices]
    assert all(name.startswith("boot-id-/") for name in ids)
    decoded = decode(encode(report))
    assert isinstance(decoded, AgentReport)
    assert decoded == report


@given(st.lists(FACTS, max_size=20), TIMES)
def test_what_is_kept_brings_back_what_the_sources_will_not_tell_again(facts: list[Fact], now: float) -> None:
    view = reduce(fold, [fact for fact in facts if not isinstance(fact, Observed)], start())
    memory = judge(view, now).memory
    again = recall(start(), from_json(type(memory), to_json(memory)))
    assert judge(again, now).report.notices == judge(view, now).report.notices
    assert judge(again, now).memory == memory


def test_the_same_line_eight_hundred_thousand_times_is_one_notice() -> None:
    view, position, text = start(), None, "NVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus."
    for first in range(0, 800_000, 8000):
        packets = [f"4,{number},1,-;{text}\n".encode() for number in range(first, first + 8000)]
        gathered = gather(position, packets, kernel_only=True, about=worth_reading)
        position = gathered.position
        told = tuple(fact for line, count in gathered.texts.items() for fact in TABLE.read_line(line, count))
        view = fold(view, KernelRead(float(first), position, told, gathered.overruns, caught_up=True))
    assert [notice.code for notice in judge(view, 1.0).report.notices] == ["xid-79"]
    assert view.position == 799_999
    assert view.faults["xid-79", "0000:05:00"].count == 800_000


def test_lines_that_anyone_could_write_do_not_fill_memory_nor_push_out_what_is_fatal() -> None:
    fatal = TABLE.read("NVRM: Xid (PCI:0000:05:00): 79, x")
    assert fatal is not None
    view = fold(start(), KernelRead(500.0, 1, (fatal,), 0, caught_up=True))
    for number in range(2000):
        warning = TABLE.read(f"NVRM: Xid (PCI:0000:{number // 256:02x}:{number % 256:02x}): 999, x")
        assert warning is not None
        view = fold(view, KernelRead(float(number), 2, (warning,), 0, caught_up=True))
    assert len(view.faults) == FAULT_LIMIT
    assert judge(view, 500.0).report.verdict is Verdict.LOST
