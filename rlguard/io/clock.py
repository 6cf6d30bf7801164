"""The clocks: durations by CLOCK_BOOTTIME (goes on while a machine sleeps, never steps), wall time for people only."""

from __future__ import annotations

import time


def boottime() -> float:
    """Seconds since boot, suspended time included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def wall() -> float:
    """Unix seconds, for reports to people; no rule may compare them."""
    return time.time()
