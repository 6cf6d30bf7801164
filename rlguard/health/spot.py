"""The cloud's word that it takes the machine back. Pure.

Tencent Cloud, GET /latest/meta-data/spot/termination-time (documents 213/37970, 213/32487): 404 = not a spot instance,
or not being reclaimed; 200 with `2018-08-18 12:05:33` = when it will be, a time without zone that is UTC+8 whatever
the machine's own zone is. Anything else is no answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Final

PATH: Final = "/latest/meta-data/spot/termination-time"
CHINA: Final = timezone(timedelta(hours=8))
FURTHEST: Final = 86_400.0
"""Seconds. Notices come about 120 s ahead; one further ahead than a day is a mistake."""
OK: Final = 200
NOT_FOUND: Final = 404

_TIME = re.compile(r"(\d{4})-(\d{2})-(\d{2}) (\d{2}):(\d{2}):(\d{2})", re.ASCII)
_DATE_FORM: Final = "%a, %d %b %Y %H:%M:%S GMT"  # Thu, 22 Jul 2021 04:50:17 GMT


@dataclass(frozen=True, slots=True)
class NoNotice:
    """The cloud has announced nothing."""


@dataclass(frozen=True, slots=True)
class Reclaim:
    """The machine is taken back in so many seconds from now; 0 when it is due."""

    seconds_left: float


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Not an answer; `reason` says what came instead."""

    reason: str


Answer = NoNotice | Reclaim | Unreadable


def read_tencent(status: int, body: str, date: str | None, now: float, uptime: float) -> Answer:
    """What an answer of the metadata server means. Never raises.

    `date` is its Date header: the server's own clock, so that ours does not count. `now` (Unix seconds) stands in
    where it is missing; `uptime` is how many seconds ago this machine booted: a time before that is of another life.
    """
    if status == NOT_FOUND:
        return NoNotice()
    if status != OK:
        return Unreadable(f"status {status}")
    end = _termination(body)
    if end is None:
        return Unreadable(f"not a time: {body.strip()[:60]!r}")
    return _judge(end - _server_now(date, now), uptime, body.strip())


def _judge(left: float, uptime: float, shown: str) -> Answer:
    if left < -uptime:
        return Unreadable(f"a time from before this machine booted: {shown}")
    if left > FURTHEST:
        return Unreadable(f"a time more than a day ahead: {shown}")
    return Reclaim(max(0.0, left))


def _termination(body: str) -> float | None:
    found = _TIME.fullmatch(body.strip())
    if found is None:
        return None
    try:
        year, month, day, hour, minute, second = (int(part) for part in found.groups())
        return datetime(year, month, day, hour, minute, second, tzinfo=CHINA).timestamp()
    except (ValueError, OverflowError):
        return None


def _server_now(date: str | None, now: float) -> float:
    try:
        return datetime.strptime(date or "", _DATE_FORM).replace(tzinfo=UTC).timestamp()
    except (ValueError, OverflowError):
        return now
