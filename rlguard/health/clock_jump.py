"""Jumps of the wall clock, told apart from the clock that counts since boot. Pure.

No rule of ours compares wall clocks, but much else does: certificates, leases, the job's own log and rendezvous.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rlguard.health.faults import NODE, Fault
from rlguard.model import Repair, Scope, Severity

JUMP: Final = 3.0
"""Seconds between two looks; a clock that is slewed moves by milliseconds."""
KEPT: Final = 3600.0
"""Seconds for which a jump is told."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """`offset`: wall clock minus CLOCK_BOOTTIME at the last look, in seconds.

    `at` and `by`: the last jump, if there were any; `times`: how many.
    """

    offset: float
    at: float = 0.0
    by: float = 0.0
    times: int = 0


def look(before: Clocks | None, wall: float, boot: float) -> Clocks:
    """The clocks as they are now: `wall` Unix seconds, `boot` seconds since boot, read at the same moment."""
    offset = wall - boot
    if before is None:
        return Clocks(offset)
    by = offset - before.offset
    if abs(by) < JUMP:
        return Clocks(offset, before.at, before.by, before.times)
    return Clocks(offset, boot, by, before.times + 1)


def faults(clocks: Clocks, now: float) -> tuple[Fault, ...]:
    """What to tell at `now` (seconds since boot): the last jump, for an hour."""
    if clocks.times == 0 or now - clocks.at > KEPT:
        return ()
    detail = f"the wall clock jumped by {clocks.by:+.0f} s (jump {clocks.times} seen); look at the node's time service"
    return (Fault("clock-jump", NODE, Severity.INFO, Scope.NODE, Repair.NONE, detail),)
