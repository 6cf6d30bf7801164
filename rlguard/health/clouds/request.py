"""What is asked and answered, as data, and the parts that several clouds' answers share. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from rlguard.health.spot import OK, Answer, Hint, Reclaim, Unreadable
from rlguard.model import Repair

NEAR: Final = 900.0
"""Seconds. Maintenance further ahead is a prediction: a job is not taken from its node days before."""
FURTHEST: Final = 100 * 86_400.0
"""Seconds. Maintenance announced further ahead, or so long overdue, is a mistake."""


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request; `path` is appended to the server's URL."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back. Header names are in lower case; not `whole`: the body was longer than we read."""

    status: int
    body: str
    headers: Mapping[str, str] = field(default_factory=dict)
    whole: bool = True

    @property
    def date(self) -> str | None:
        """The server's own clock."""
        return self.headers.get("date")


@dataclass(frozen=True, slots=True)
class Here:
    """The machine we run on: `now` Unix seconds, `uptime` seconds since it booted, `instance` what
    the cloud calls it.
    """

    now: float
    uptime: float
    instance: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """One thing to ask again and again. `read` never raises."""

    name: str
    request: Request
    read: Callable[[Reply, Here], Answer]


@dataclass(frozen=True, slots=True)
class Token:
    """How to get the token that every other request then carries in `header`.

    Not `required`: where the server has none to give, it is asked without.
    """

    request: Request
    header: str
    required: bool


@dataclass(frozen=True, slots=True)
class Provider:
    """A cloud: where its server is, in the order in which to try, and what it is asked.

    `instance`: how to learn this machine's name, where answers are about several machines. `approve`: what to send so
    that the cloud need not wait with the event of that id.
    """

    name: str
    bases: tuple[str, ...]
    questions: tuple[Question, ...]
    token: Token | None = None
    instance: Request | None = None
    approve: Callable[[str], Request] | None = None


def read(question: Question, reply: Reply, here: Here) -> Answer:
    """What a reply to a question means. Never raises."""
    if not reply.whole:
        return Unreadable(f"{question.name}: an answer too long to be one: {reply.body[:60]!r}")
    return question.read(reply, here)


def not_documented(name: str, reply: Reply) -> Unreadable:
    """No answer to the question of that name: a status or a body that the cloud does not document."""
    seen = f"{name}: status {reply.status}: {reply.body.strip()[:60]!r}"
    return Unreadable(f"{seen}; are RLGUARD_AGENT_CLOUD and RLGUARD_AGENT_METADATA those of this machine?")


def as_list(reply: Reply) -> list[Any] | None:
    """The JSON array that a good reply is, None if it is none."""
    value = _as_json(reply)
    return value if isinstance(value, list) else None


def as_object(reply: Reply) -> Mapping[str, Any]:
    """The JSON object that a good reply is, an empty one if it is none."""
    value = _as_json(reply)
    return value if isinstance(value, dict) else {}


def _as_json(reply: Reply) -> Any:
    try:
        return json.loads(reply.body) if reply.status == OK else None
    except (ValueError, RecursionError):
        return None


def moment(text: Any, form: str) -> float | None:
    """Unix seconds of a UTC time in a `strptime` form, None if it is none."""
    if not isinstance(text, str) or not text.isascii():
        return None
    try:
        return datetime.strptime(text.strip(), form).replace(tzinfo=UTC).timestamp()
    except (ValueError, OverflowError):
        return None


def scheduled(code: str, detail: str, left: float, here: Here, repair: Repair, event: str = "") -> Answer:
    """What maintenance `left` seconds ahead means: it may be called off, and until it is near it is a prediction."""
    if left < -here.uptime or not -FURTHEST <= left <= FURTHEST:
        return Unreadable(f"{code}: a time of another life of this machine: {detail}")
    if left > NEAR:
        return Hint(code, detail)
    return Reclaim(max(0.0, left), code, detail, repair, binding=False, event=event)


def worst(answers: list[Answer]) -> Answer | None:
    """Of the answers that one reply holds the one to act on: unreadable, then the soonest end, then a hint."""
    return min(answers, key=_urgency, default=None)


def _urgency(answer: Answer) -> tuple[int, float]:
    match answer:
        case Unreadable():
            return 0, 0.0
        case Reclaim(seconds_left):
            return 1, seconds_left
        case Hint():
            return 2, 0.0
        case _:
            return 3, 0.0
