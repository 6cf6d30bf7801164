"""systemd's word that the machine is about to shut down or reboot. Pure.

With a delay inhibitor held, logind says `PrepareForShutdown(true)` before it begins, and then waits until the inhibitor
is given back, at most InhibitDelayMaxUSec: 5 s unless set (logind.conf, systemd-inhibit(1); kubelet's graceful node
shutdown raises it). `PrepareForShutdown(false)` takes it back. Clearing rule: that signal, or another boot.
"""

from __future__ import annotations

from typing import Final

from rlguard.health.faults import NODE, Fault
from rlguard.model import Repair, Scope, Severity

LONGEST: Final = 86_400.0
"""Seconds; a delay beyond is a mistake, and what is left is not believed to be more."""


def announced(at: float, delay_us: int) -> Fault:
    """The fault of a shutdown announced at `at` (seconds since boot), which waits `delay_us` microseconds at most."""
    delay = min(max(0.0, delay_us / 1e6), LONGEST)
    detail = f"the machine shuts down or reboots: systemd waits {delay:.0f} s at most"
    return Fault("node-shutdown", NODE, Severity.FATAL, Scope.NODE, Repair.REBOOT, detail, at + delay)
