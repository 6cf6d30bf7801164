"""Faults that events told, and what more events make of them: the same fault is one, and some events end some. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from rlguard.health.faults import Ended, Fault, Sighting, Told, Until
from rlguard.model import Scope, Severity

PROCESS_FAULT_KEPT: Final = 600.0
"""Seconds after which a fault of one process, not seen again, says nothing about the node any more."""
FAULT_LIMIT: Final = 256
"""Kinds of faults kept; with so many the verdict stands, and who can write such lines must not fill our memory."""
PROCESS_LIMIT: Final = 8
"""Processes of a fault that are told apart."""
COUNT_LIMIT: Final = 10**15
RANK: Final[Mapping[Severity, int]] = {Severity.INFO: 0, Severity.WARNING: 1, Severity.FATAL: 2}

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
        if isinstance(item, Ended):
            _end(faults, seen_good, item)
        else:
            _add(faults, seen_good, item if isinstance(item, Sighting) else Sighting(item), at)
    return _bounded(faults), frozenset(sorted(seen_good)[:FAULT_LIMIT])


def quiet_of(fault: Fault) -> float | None:
    """Seconds after which a fault that was not told again is over, None if silence does not end it."""
    if fault.clears.until is Until.QUIET:
        return fault.clears.seconds
    return PROCESS_FAULT_KEPT if fault.scope is Scope.PROCESS and fault.clears.until is Until.BOOT else None


def _end(faults: dict[FaultKey, Standing], good: set[FaultKey], ended: Ended) -> None:
    if ended.code:
        good.add((ended.code, ended.device))
        faults.pop((ended.code, ended.device), None)
        return
    passed = [key for key, one in faults.items() if key[1] == ended.device and one.fault.clears.until is Until.CHECK]
    for key in passed:
        del faults[key]


def _add(faults: dict[FaultKey, Standing], good: set[FaultKey], sighting: Sighting, at: float) -> None:
    fault, key = sighting.fault, key_of(sighting.fault)
    if fault.severity is Severity.INFO or (fault.needs_good and key not in good):
        return
    processes = () if sighting.process is None else (sighting.process,)
    standing = Standing(fault, at, at, sighting.count, processes)
    faults[key] = merge(faults[key], standing) if key in faults else standing


def merge(one: Standing, other: Standing) -> Standing:
    """The two as one, the same whichever came first: the worse one's words, the earlier deadline."""
    fault = min(one.fault, other.fault, key=_order)
    deadlines = [d for d in (one.fault.deadline, other.fault.deadline) if d is not None]
    return Standing(
        dataclasses.replace(fault, deadline=min(deadlines, default=None)),
        min(one.first, other.first),
        max(one.last, other.last),
        min(one.count + other.count, COUNT_LIMIT),
        tuple(sorted({*one.processes, *other.processes})[:PROCESS_LIMIT]),
    )


def _order(fault: Fault) -> tuple[int, str, str, str]:
    return -RANK[fault.severity], fault.detail, fault.scope, fault.repair


def _bounded(faults: dict[FaultKey, Standing]) -> dict[FaultKey, Standing]:
    if len(faults) <= FAULT_LIMIT:
        return faults
    kept = sorted(faults.items(), key=lambda item: (-RANK[item[1].fault.severity], item[1].first, item[0]))
    return dict(kept[:FAULT_LIMIT])
