"""Which Events are written about a node."""

from __future__ import annotations

from functools import reduce

from hypothesis import given
from hypothesis import strategies as st

from rlguard.health.events import MEMORY, MOST_TOLD, MOST_WAITING, TO_DO, EventQueue, hear, written
from rlguard.messages import AgentReport
from rlguard.model import Notice, Repair, Scope, Severity, Verdict


def notice(code: str = "xid-79", severity: Severity = Severity.FATAL, left: float | None = None) -> Notice:
    return Notice(f"11111111/{code}/0000:05:00", code, severity, Scope.GPU, Repair.REBOOT, "fell off the bus", left)


def report(*notices: Notice) -> AgentReport:
    return AgentReport("n", "11111111-boot", Verdict.LOST, notices)


def heard(*reports: AgentReport, every: float = 1.0) -> EventQueue:
    return reduce(lambda told, step: hear(told, step[1], step[0] * every), enumerate(reports), EventQueue())


def test_a_new_fault_is_told_once_with_what_to_do() -> None:
    told = heard(*[report(notice())] * 100)
    (event,) = told.waiting
    assert event.reason == "xid-79"
    assert event.message == "0000:05:00: fell off the bus. To do: reboot the node."
    assert written(told, event).waiting == ()
    assert hear(written(told, event), report(notice()), 100.0).waiting == ()


def test_a_deadline_is_part_of_the_words_and_not_of_the_key() -> None:
    (early,) = heard(report(notice(left=120.0))).waiting
    (late,) = heard(report(notice(left=60.0))).waiting
    assert "In 120 s it is gone." in early.message
    assert early.key == late.key


def test_what_is_told_for_information_is_no_event() -> None:
    assert heard(report(notice("node-cordoned", Severity.INFO))).waiting == ()


def test_a_fault_that_comes_back_is_told_again_only_after_an_hour() -> None:
    soon, later = (heard(report(notice()), report(), report(notice()), every=step) for step in (10.0, MEMORY))
    assert (len(soon.waiting), len(later.waiting)) == (1, 2)


def test_every_repair_has_words() -> None:
    assert set(TO_DO) == set(Repair)


@given(st.lists(st.lists(st.integers(0, 99), max_size=60), max_size=30))
def test_what_waits_and_what_is_remembered_is_bounded_and_the_loss_is_counted(codes: list[list[int]]) -> None:
    told = heard(*(report(*(notice(f"xid-{code}") for code in some)) for some in codes))
    distinct = {code for some in codes for code in some}
    assert len(told.waiting) <= MOST_WAITING
    assert len(told.at) <= MOST_TOLD
    assert len(told.waiting) + told.dropped == len(distinct)


def test_of_more_faults_than_can_be_remembered_the_newest_are() -> None:
    told = heard(*(report(notice(f"xid-{code}")) for code in range(MOST_TOLD + 10)))
    assert len(told.at) == MOST_TOLD
    assert notice(f"xid-{MOST_TOLD + 9}").id in told.at
    assert notice("xid-0").id not in told.at
