"""What the cloud has announced, and when it is believed to have taken it back. Pure.

A notice is level-triggered: it stands as long as the cloud repeats it. But a metadata server that hiccups must not call
a flush off, so a notice goes only after several calmer answers in a row; and where the cloud documents no way back,
only once its moment has passed and the machine is still here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from rlguard.health.faults import NODE, Fault
from rlguard.health.spot import Answer, Hint, Reclaim, Unreadable
from rlguard.model import Repair, Scope, Severity

CALM: Final = 3
"""So many calmer answers in a row take a notice back."""
OUTLIVED: Final = 60.0
"""Seconds by which the machine must have outlived a binding notice before the cloud's silence counts."""
JITTER: Final = 5.0
"""Seconds by which the same moment may move from answer to answer: dates have whole seconds, and answers travel."""


@dataclass(frozen=True, slots=True)
class Announced:
    """What one question to the cloud was answered so far.

    `calmer` counts the answers in a row that said less than `fault` does; `answered` is when it was last answered,
    `problem` what was wrong with an answer that was none.
    """

    question: str
    fault: Fault | None = None
    binding: bool = True
    calmer: int = 0
    answered: float | None = None
    problem: str = ""

    @property
    def asked(self) -> bool:
        """False for what is only remembered of an earlier life of the agent."""
        return self.answered is not None or bool(self.problem)


def hear(before: Announced, answer: Answer, at: float) -> Announced:
    """What is announced after one more answer, which came at `at` (seconds of CLOCK_BOOTTIME)."""
    if isinstance(answer, Unreadable):
        return replace(before, problem=answer.reason or "no answer", calmer=0)
    repeated = before.answered is not None and at <= before.answered
    now = replace(before, problem="", answered=at if before.answered is None else max(at, before.answered))
    told = _fault(answer, at)
    if before.fault is not None and _calmer(told, before.fault, answer):
        return now if repeated else _calmed(now, before.fault, told, answer)
    if told is None:
        return now
    binding = isinstance(answer, Reclaim) and answer.binding
    return replace(now, fault=_merged(before.fault, told), binding=binding, calmer=0)


def remembered(announced: Mapping[str, Announced]) -> tuple[Announced, ...]:
    """What must outlive the agent's process: the notices that stand."""
    kept = (one for _, one in sorted(announced.items()) if one.fault is not None)
    return tuple(Announced(one.question, one.fault, one.binding) for one in kept)


def standing(announced: Mapping[str, Announced]) -> tuple[Fault, ...]:
    """The faults that stand; of those that two questions tell alike the one that leaves less time."""
    told = sorted((one.fault for one in announced.values() if one.fault is not None), key=_less_urgent)
    return tuple({fault.code: fault for fault in told}.values())


def last_look(announced: Mapping[str, Announced]) -> float | None:
    """When all questions had been answered, None if one never was."""
    moments = [one.answered for one in announced.values() if one.asked]
    known = [at for at in moments if at is not None]
    return min(known) if known and len(known) == len(moments) else None


def _less_urgent(fault: Fault) -> tuple[bool, float, str]:
    return fault.severity is Severity.FATAL, -(fault.deadline or 0.0), fault.detail


def _fault(answer: Answer, at: float) -> Fault | None:
    match answer:
        case Reclaim():
            deadline = float(int(at + answer.seconds_left))
            return Fault(answer.code, NODE, Severity.FATAL, Scope.NODE, answer.repair, answer.detail, deadline)
        case Hint(code, detail):
            return Fault(code, NODE, Severity.WARNING, Scope.NODE, Repair.NONE, detail)
        case _:
            return None


def _calmer(told: Fault | None, standing: Fault, answer: Answer) -> bool:
    if told is None:
        return True
    if told.severity is not standing.severity:
        return standing.severity is Severity.FATAL
    if standing.deadline is None or told.deadline is None:
        return False
    # Without a date the moment seems to move on with each answer.
    dated = isinstance(answer, Reclaim) and answer.dated
    return dated and told.deadline > standing.deadline + JITTER


def _calmed(now: Announced, standing: Fault, told: Fault | None, answer: Answer) -> Announced:
    calmer = min(now.calmer + 1, CALM)
    outlived = (
        now.answered is not None and standing.deadline is not None and now.answered > standing.deadline + OUTLIVED
    )
    if calmer < CALM or (now.binding and not outlived):
        return replace(now, calmer=calmer)
    return replace(now, fault=told, binding=isinstance(answer, Reclaim) and answer.binding, calmer=0)


def _merged(standing: Fault | None, told: Fault) -> Fault:
    """The new word, with the earlier of both deadlines if it speaks of the same end."""
    if standing is None or standing.code != told.code or standing.deadline is None or told.deadline is None:
        return told
    return replace(told, deadline=min(standing.deadline, told.deadline))
