"""Faults that events told, and what more events make of them: the same fault is one, and some events end some. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from rlguard.health.faults import Ended, Fault, Named, Sighting, Told, Until
from rlguard.model import Repair, Scope, Severity

PROCESS_FAULT_KEPT: Final = 600.0
"""Seconds after which a fault of one process, not seen again, says nothing about the node any more."""
FAULT_LIMIT: Final = 256
"""Kinds of faults kept; with so many the verdict stands, and who can write such lines must not fill our memory."""
PROCESS_LIMIT: Final = 8
"""Processes of a fault that are told apart."""
CONSEQUENCE_WITHIN: Final = 60.0
"""Seconds after a cause in which what can follow from it is taken to follow from it."""
NAME_LIMIT: Final = 64
COUNT_LIMIT: Final = 10**15
RANK: Final[Mapping[Severity, int]] = {Severity.INFO: 0, Severity.WARNING: 1, Severity.FATAL: 2}
WEIGHT: Final[Mapping[Repair, int]] = {
    Repair.NONE: 0,
    Repair.RESTART_PROCESS: 1,
    Repair.FIX_PROGRAM: 2,
    Repair.RESET_GPU: 3,
    Repair.REBOOT: 4,
    Repair.REPLACE: 5,
}
"""Of two repairs for the same fault the heavier one mends both."""

FaultKey = tuple[str, str]
Faults = Mapping[FaultKey, "Standing"]


@dataclass(frozen=True, slots=True)
class Standing:
    """A fault, when it was first and last seen on this boot, how often, and in which processes (the lowest ids)."""

    fault: Fault
    first: float
    last: float
    count: int = 1
    processes: tuple[int, ...] = ()


def key_of(fault: Fault) -> FaultKey:
    """What makes two faults the same."""
    return fault.code, fault.device


def with_told(
    known: Faults, good: frozenset[FaultKey], told: Iterable[Told], at: float
) -> tuple[Faults, frozenset[FaultKey]]:
    """The faults, and which devices were told to be good at what, after the events of one moment, in their order."""
    faults, seen_good = dict(known), set(good)
    for item in told:
        match item:
            case Ended():
                _end(faults, seen_good, item)
            case Sighting():
                _add(faults, seen_good, item, at)
            case Fault():
                _add(faults, seen_good, Sighting(item), at)
            case Named():
                pass
    return _bounded(faults), frozenset(sorted(seen_good)[:FAULT_LIMIT])


def with_names(known: Mapping[str, str], told: Iterable[Told]) -> Mapping[str, str]:
    """Device -> its other name, with those that were told; the first ones are kept."""
    new = {item.device: item.name for item in told if isinstance(item, Named)}
    return dict([*known.items(), *new.items()][:NAME_LIMIT]) if new else known


def quiet_of(fault: Fault) -> float | None:
    """Seconds after which a fault that was not told again is over, None if silence does not end it."""
    if fault.clears.until is Until.QUIET:
        return fault.clears.seconds
    return PROCESS_FAULT_KEPT if fault.scope is Scope.PROCESS and fault.clears.until is Until.BOOT else None


def follows(one: Standing, cause: Standing) -> bool:
    """True when `one` is a mere consequence of `cause`."""
    moments = (cause.first, cause.last)
    return cause.fault.code in one.fault.follows and any(0 <= one.first - at <= CONSEQUENCE_WITHIN for at in moments)


def _end(faults: dict[FaultKey, Standing], good: set[FaultKey], ended: Ended) -> None:
    """Take away what is over, and with it what was a mere consequence of it."""
    if ended.code:
        good.add((ended.code, ended.device))
    for key, cause in [item for item in faults.items() if _is_over(item[1], ended)]:
        faults.pop(key, None)
        for other in [other for other, one in faults.items() if follows(one, cause)]:
            del faults[other]


def _is_over(one: Standing, ended: Ended) -> bool:
    if one.fault.device != ended.device:
        return False
    if ended.code:
        return one.fault.code == ended.code
    return one.fault.clears.until is Until.CHECK or one.fault.scope is Scope.PROCESS


def _add(faults: dict[FaultKey, Standing], good: set[FaultKey], sighting: Sighting, at: float) -> None:
    fault, key = sighting.fault, key_of(sighting.fault)
    if fault.severity is Severity.INFO or (fault.needs_good and key not in good):
        return
    processes = () if sighting.process is None else (sighting.process,)
    standing = Standing(fault, at, at, sighting.count, processes)
    faults[key] = merge(faults[key], standing) if key in faults else standing


def merge(one: Standing, other: Standing) -> Standing:
    """The two as one, the same whichever came first: words and repair of the worse one, the earlier deadline."""
    fault = min(one.fault, other.fault, key=_order)
    deadlines = [d for d in (one.fault.deadline, other.fault.deadline) if d is not None]
    return Standing(
        dataclasses.replace(fault, deadline=min(deadlines, default=None)),
        min(one.first, other.first),
        max(one.last, other.last),
        min(one.count + other.count, COUNT_LIMIT),
        tuple(sorted({*one.processes, *other.processes})[:PROCESS_LIMIT]),
    )


def _order(fault: Fault) -> tuple[int, int, str, str]:
    return -RANK[fault.severity], -WEIGHT[fault.repair], fault.detail, fault.scope


def _bounded(faults: dict[FaultKey, Standing]) -> dict[FaultKey, Standing]:
    if len(faults) <= FAULT_LIMIT:
        return faults
    kept = sorted(faults.items(), key=lambda item: (-RANK[item[1].fault.severity], item[1].first, item[0]))
    return dict(kept[:FAULT_LIMIT])
