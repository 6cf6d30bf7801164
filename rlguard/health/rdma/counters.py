"""How fast a counter rises: increments between looks, summed over a window. Pure.

InfiniBand's own counters saturate: at their highest number they say nothing any more (gpud PR #943 shows link_downed
at 255, port_xmit_discards at 65535). Those of mlx5's queues are 32 bits wide and wrap. A number that fell otherwise
is a reset: the driver was loaded anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rlguard.health.rdma.table import Rule

PARTS: Final = 12
"""A window is kept as the sums of so many parts."""
NEAR_END: Final = 0.75
"""A fall from above this share of the range to below the rest is a wrap; any other is a reset."""


@dataclass(frozen=True, slots=True)
class Window:
    """What was counted lately, as (number of the part, count), oldest first."""

    parts: tuple[tuple[int, int], ...] = ()

    def plus(self, count: int, at: float, within: float) -> Window:
        """With `count` more at `at`, and without what is older than `within` seconds."""
        now = int(at * PARTS // max(within, 1.0))
        kept = [part for part in self.parts if now - PARTS < part[0] <= now]
        if count:
            last = kept.pop()[1] if kept and kept[-1][0] == now else 0
            kept.append((now, last + count))
        return self if tuple(kept) == self.parts else Window(tuple(kept))

    @property
    def total(self) -> int:
        """All that was counted within the window."""
        return sum(count for _, count in self.parts)


@dataclass(frozen=True, slots=True)
class Slope:
    """One counter: its last value, None if not known, and what it rose by lately."""

    last: int | None = None
    window: Window = Window()
    saturated: bool = False

    def then(self, value: int | None, at: float, rule: Rule) -> Slope:
        """After a look that gave `value`, None where it could not be read: the next one counts from the last known."""
        if value is None:
            return Slope(self.last, self.window.plus(0, at, rule.within), self.saturated)
        count = 0 if self.last is None else increment(self.last, value, rule)
        saturated = rule.saturates is not None and value >= rule.saturates
        return Slope(value, self.window.plus(count, at, rule.within), saturated)


def increment(last: int, value: int, rule: Rule) -> int:
    """By how much the counter rose at least between two looks."""
    if value >= last:
        return value - last
    wraps = rule.wraps
    if wraps is not None and wraps * NEAR_END < last < wraps and value < wraps * (1 - NEAR_END):
        return value + wraps - last
    return 0
