"""The cloud's word that it takes the machine back: what an answer can be, and Tencent's. Pure.

Tencent Cloud, GET /latest/meta-data/spot/termination-time (documents 213/37970, 213/32487): 404 = not a spot instance,
or not being reclaimed; 200 with `2018-08-18 12:05:33` = when it will be, a time without zone that is UTC+8 whatever
the machine's own zone is. Anything else is no answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Final

from rlguard.model import Repair

PATH: Final = "/latest/meta-data/spot/termination-time"
CHINA: Final = timezone(timedelta(hours=8))
FURTHEST: Final = 3_600.0
"""Seconds. Spot notices come 30 to 300 s ahead: one an hour ahead, or an hour overdue with the machine still here, is
a mistake, such as a time in another zone."""
SPOT: Final = "spot-reclaim"
OK: Final = 200
NOT_FOUND: Final = 404

_TIME = re.compile(r"(\d{4})-(\d{2})-(\d{2}) (\d{2}):(\d{2}):(\d{2})", re.ASCII)
_DATE_FORM: Final = "%a, %d %b %Y %H:%M:%S GMT"  # Thu, 22 Jul 2021 04:50:17 GMT


@dataclass(frozen=True, slots=True)
class NoNotice:
    """The cloud has announced nothing."""


@dataclass(frozen=True, slots=True)
class Reclaim:
    """The machine is taken back in so many seconds from now; 0 when it is due.

    `code`, `detail` and `repair` are those of the fault. `dated`: the cloud named the moment; without, the seconds are
    the documented lead, which counts from when it was first said. `binding`: the cloud documents no way back, so the
    notice is believed until its moment has passed. `event`: the cloud's own id, by which it may be told to go ahead.
    """

    seconds_left: float
    code: str = SPOT
    detail: str = "the cloud takes this spot instance back"
    repair: Repair = Repair.REPLACE
    dated: bool = True
    binding: bool = True
    event: str = ""


@dataclass(frozen=True, slots=True)
class Hint:
    """Something may come, or comes much later: a prediction, with the code and detail of its fault."""

    code: str
    detail: str


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Not an answer; `reason` says what came instead."""

    reason: str


Answer = NoNotice | Reclaim | Hint | Unreadable


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
    return judge(end - server_now(date, now), uptime, body.strip())


def judge(left: float, uptime: float, shown: str) -> Reclaim | Unreadable:
    """What a spot notice of a moment `left` seconds ahead means; `shown` is its text, for people."""
    if left < -uptime:
        return Unreadable(f"a time from before this machine booted: {shown:.60}")
    if not -FURTHEST <= left <= FURTHEST:
        return Unreadable(f"a time more than an hour away, maybe of another zone: {shown:.60}")
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


def server_now(date: str | None, now: float) -> float:
    """The Unix seconds of the server's Date header, `now` where there is none."""
    try:
        return datetime.strptime(date or "", _DATE_FORM).replace(tzinfo=UTC).timestamp()
    except (ValueError, OverflowError):
        return now
