"""Faults that say more together than each by itself: consequences of a cause, a program's faults, a GPU's. Pure.

An Xid 13 or 31 is the program's own when several GPUs have it within minutes: they run the same program. On one GPU, in
one process after another, it makes the GPU suspect.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from rlguard.health.faults import Clears, Fault, Until
from rlguard.health.standing import FaultKey, Faults, Standing, follows
from rlguard.model import Repair, Scope, Severity

PROGRAM_OR_GPU: Final = frozenset({"xid-13", "xid-31"})
SAME_PROGRAM_WITHIN: Final = 300.0
"""Seconds in which several GPUs have the same fault because of one program."""
SUSPECT_PROCESSES: Final = 3
SUSPECT_OVER: Final = 60.0
"""Seconds that the faults of several processes must be spread over: one crash may take several processes along."""


def regroup(faults: Faults) -> Mapping[FaultKey, Fault]:
    """Each fault in the light of the others. A mere consequence comes back as information."""
    return {key: _regrouped(standing, faults) for key, standing in faults.items()}


def _regrouped(one: Standing, faults: Faults) -> Fault:
    if one.fault.follows and any(follows(one, other) for other in faults.values()):
        return dataclasses.replace(one.fault, severity=Severity.INFO)
    if one.fault.code in PROGRAM_OR_GPU and one.fault.scope is Scope.PROCESS:
        return _program_or_gpu(one, faults)
    return one.fault


def _program_or_gpu(one: Standing, faults: Faults) -> Fault:
    if any(_same_program(one, other) for other in faults.values()):
        detail = f"several GPUs at once, the program's own fault: {one.fault.detail}"
        return dataclasses.replace(one.fault, repair=Repair.FIX_PROGRAM, detail=detail)
    if len(one.processes) >= SUSPECT_PROCESSES and one.last - one.first >= SUSPECT_OVER:
        detail = f"this GPU alone, in one process after another: {one.fault.detail}"
        check = Clears(Until.CHECK)
        return dataclasses.replace(one.fault, scope=Scope.GPU, repair=Repair.RESET_GPU, detail=detail, clears=check)
    return one.fault


def _same_program(one: Standing, other: Standing) -> bool:
    same = one.fault.code == other.fault.code and one.fault.device != other.fault.device
    return same and abs(one.last - other.last) <= SAME_PROGRAM_WITHIN
