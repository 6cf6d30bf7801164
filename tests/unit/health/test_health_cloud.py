"""When a notice of the cloud stands, and when it is taken back."""

from __future__ import annotations

from functools import reduce

from hypothesis import given
from hypothesis import strategies as st

from rlguard.health.cloud import CALM, OUTLIVED, Announced, hear, last_look, remembered, standing
from rlguard.health.spot import Answer, Hint, NoNotice, Reclaim, Unreadable
from rlguard.model import Severity

SPOT = Reclaim(120.0)
MAINTENANCE = Reclaim(600.0, "maintenance-reboot", "soon", binding=False)
HINT = Hint("maintenance-reboot", "in days")
ANSWERS = st.sampled_from([NoNotice(), SPOT, MAINTENANCE, HINT, Unreadable("status 500")])


def heard(*answers: Answer, start: float = 1000.0, every: float = 2.0) -> Announced:
    return reduce(
        lambda before, step: hear(before, step[1], start + step[0] * every), enumerate(answers), Announced("spot")
    )


def test_maintenance_that_is_called_off_is_over_after_some_answers_in_a_row() -> None:
    assert heard(MAINTENANCE, *[NoNotice()] * (CALM - 1)).fault is not None
    assert heard(MAINTENANCE, *[NoNotice()] * CALM).fault is None


def test_a_server_that_hiccups_takes_nothing_back() -> None:
    calm = [NoNotice()] * (CALM - 1)
    assert heard(MAINTENANCE, *calm, Unreadable("status 500"), *calm).fault is not None
    assert heard(MAINTENANCE, *calm, MAINTENANCE, *calm).fault is not None
    assert heard(MAINTENANCE, *[Unreadable("status 500")] * 99).fault is not None


def test_a_spot_notice_is_believed_until_the_machine_has_outlived_it() -> None:
    assert heard(SPOT, *[NoNotice()] * 50).fault is not None
    assert heard(SPOT, *[NoNotice()] * 50, every=(120.0 + OUTLIVED) / 49).fault is None


def test_a_moment_put_off_is_believed_after_some_answers_an_earlier_one_at_once() -> None:
    later, sooner = (Reclaim(seconds, "maintenance-reboot", "x", binding=False) for seconds in (900.0, 60.0))
    assert _deadline(heard(MAINTENANCE, later)) == 1600.0
    assert _deadline(heard(MAINTENANCE, *[later] * CALM)) == 1000.0 + 2 * CALM + 900.0
    assert _deadline(heard(MAINTENANCE, sooner)) == 1002.0 + 60.0


def test_a_deadline_that_trembles_stays() -> None:
    trembling = [
        Reclaim(600.0 - 2.0 * step + (step % 2), "maintenance-reboot", "x", binding=False) for step in range(20)
    ]
    assert _deadline(heard(*trembling)) == 1600.0


def test_answers_that_all_travel_longer_put_nothing_off() -> None:
    late = Reclaim(602.0, "maintenance-reboot", "x", binding=False)
    assert _deadline(heard(MAINTENANCE, *[late] * CALM, every=0.5)) == 1600.0


def test_without_a_date_the_lead_counts_from_the_first_time() -> None:
    assert _deadline(heard(*[Reclaim(30.0, dated=False)] * 20)) == 1030.0


def test_what_was_a_prediction_becomes_a_deadline_and_back() -> None:
    near = heard(HINT, MAINTENANCE)
    assert near.fault is not None
    assert near.fault.severity is Severity.FATAL
    far = heard(HINT, MAINTENANCE, *[HINT] * CALM)
    assert far.fault is not None
    assert (far.fault.severity, far.fault.deadline) == (Severity.WARNING, None)


def test_what_two_questions_tell_alike_is_one_fault_with_the_earlier_end() -> None:
    (fault,) = standing({"a": heard(SPOT), "b": heard(Reclaim(30.0)), "c": heard(NoNotice())})
    assert fault.deadline == 1030.0


def test_all_was_looked_at_when_the_last_question_was_answered() -> None:
    one, other = heard(NoNotice()), heard(Unreadable("x"))
    assert last_look({}) is None
    assert last_look({"a": one}) == 1000.0
    assert last_look({"a": one, "b": other}) is None
    assert last_look({"a": one, "b": heard(NoNotice(), start=900.0)}) == 900.0
    (kept,) = remembered({"a": heard(SPOT)})
    assert last_look({"a": one, "b": kept}) == 1000.0  # not asked any more, only remembered


@given(st.lists(ANSWERS, max_size=12), ANSWERS)
def test_an_answer_told_again_changes_nothing(answers: list[Answer], answer: Answer) -> None:
    once = heard(*answers, answer)
    assert hear(once, answer, 1000.0 + 2.0 * len(answers)).fault == once.fault


@given(st.lists(ANSWERS, max_size=12))
def test_a_notice_stands_from_when_it_is_said(answers: list[Answer]) -> None:
    known = heard(*answers, MAINTENANCE)
    assert known.fault is not None
    assert known.fault.severity is Severity.FATAL


@given(st.lists(ANSWERS, max_size=12))
def test_what_is_remembered_is_what_stands(answers: list[Answer]) -> None:
    known = heard(*answers)
    again = remembered({"spot": known})
    assert [one.fault for one in again] == [fault for fault in (known.fault,) if fault is not None]
    assert not any(one.asked for one in again)


def _deadline(known: Announced) -> float | None:
    return known.fault.deadline if known.fault is not None else None
