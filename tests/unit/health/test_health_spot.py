"""Answers of Tencent Cloud's metadata server."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlguard.health.spot import NoNotice, Reclaim, Unreadable, read_tencent

NOW = datetime(2026, 3, 1, 4, 0, 0, tzinfo=UTC).timestamp()
DATE = "Sun, 01 Mar 2026 04:00:00 GMT"
DAY = 86_400.0


def test_404_means_that_nothing_is_announced() -> None:
    assert read_tencent(404, "<html>404</html>", DATE, NOW, DAY) == NoNotice()


def test_the_time_is_eight_hours_ahead_of_utc() -> None:
    assert read_tencent(200, "2026-03-01 12:02:00\n", DATE, NOW, DAY) == Reclaim(120.0)


def test_the_server_s_clock_counts_not_ours() -> None:
    assert read_tencent(200, "2026-03-01 12:02:00", DATE, NOW - 5000, DAY) == Reclaim(120.0)


@pytest.mark.parametrize("date", [None, "", "yesterday", "Sun, 41 Mar 2026 04:00:00 GMT"])
def test_without_the_server_s_clock_ours_must_do(date: str | None) -> None:
    assert read_tencent(200, "2026-03-01 12:02:00", date, NOW, DAY) == Reclaim(120.0)


def test_a_time_that_has_passed_on_this_boot_is_due() -> None:
    assert read_tencent(200, "2026-03-01 11:59:00", DATE, NOW, DAY) == Reclaim(0.0)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, "2026-02-27 12:00:00"),  # before this boot
        (200, "2026-03-03 12:00:00"),  # two days ahead
        (200, "<html>please log in</html>"),
        (200, ""),
        (200, "2026-03-01T12:02:00Z"),
        (200, "2026-13-01 12:02:00"),
        (200, "0000-00-00 00:00:00"),
        (200, "２026-03-01 12:02:00"),  # noqa: RUF001 - a digit that is none of ASCII
        (500, "2026-03-01 12:02:00"),
        (502, ""),
        (301, ""),
        (403, ""),
    ],
)
def test_whatever_is_not_documented_is_no_answer(status: int, body: str) -> None:
    assert isinstance(read_tencent(status, body, DATE, NOW, DAY), Unreadable)


@given(st.integers(), st.text(), st.none() | st.text(), st.floats(0, 4e9), st.floats(0, 1e9))
def test_no_answer_makes_the_parser_fail(status: int, body: str, date: str | None, now: float, uptime: float) -> None:
    answer = read_tencent(status, body, date, now, uptime)
    assert (answer == NoNotice()) == (status == 404)


@given(st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31)))  # noqa: DTZ001 - the server's times have no zone
def test_any_time_is_a_reclaim_within_a_day_or_no_answer(moment: datetime) -> None:
    answer = read_tencent(200, moment.strftime("%Y-%m-%d %H:%M:%S").rjust(19, "0"), DATE, NOW, DAY)
    assert isinstance(answer, Unreadable) or (isinstance(answer, Reclaim) and 0 <= answer.seconds_left <= DAY)
