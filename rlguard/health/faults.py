"""A fault as the assessment knows it, whatever source it came from. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rlguard.model import Repair, Scope, Severity

NODE: Final = "node"
"""The device of a fault that is of the whole node, or of a device that the source does not name."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault on one device: `code` (`xid-79`, `spot-reclaim`) and `device` (`0000:9b:00`, `node`) name it.

    `deadline` is a moment of this machine's CLOCK_BOOTTIME after which the device or node is gone, None without one.
    """

    code: str
    device: str
    severity: Severity
    scope: Scope
    repair: Repair
    detail: str
    deadline: float | None = None
