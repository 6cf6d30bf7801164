"""A fault as the assessment knows it, whatever source it came from. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, Self

from rlguard.model import Repair, Scope, Severity

NODE: Final = "node"
"""The device of a fault that is of the whole node, or of a device that the source does not name."""


class Until(StrEnum):
    """What shows that a fault is over. Another boot ends every fault."""

    BOOT = "boot"  # nothing but that
    QUIET = "quiet"  # not told again for some time
    CHECK = "check"  # the device passes a check: the driver asks for nothing more
    PAIR = "pair"  # another line takes it back
    SEEN = "seen"  # its source does not see it any more


class Clears(NamedTuple):
    """When a fault is over; `seconds` count for QUIET alone."""

    until: Until
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.until}:{self.seconds:g}" if self.until is Until.QUIET else self.until.value

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `boot`, `check`, `pair`, `seen` or `quiet:600`. Raises ValueError on anything else."""
        word, colon, number = text.partition(":")
        until = Until(word)
        if (until is Until.QUIET) != bool(colon):
            raise ValueError(f"not a rule for clearing: {text!r} (expected boot, check, pair, seen or quiet:SECONDS)")
        seconds = float(number) if colon else 0.0
        if not 0 <= seconds <= 1e9:  # noqa: PLR2004 - thirty years; keeps nan and inf out
            raise ValueError(f"not a number of seconds: {number!r}")
        return cls(until, seconds)


UNTIL_BOOT: Final = Clears(Until.BOOT)


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault on one device: `code` (`xid-79`, `spot-reclaim`) and `device` (`0000:9b:00`, `node`) name it.

    `deadline` is a moment of this machine's CLOCK_BOOTTIME after which the device or node is gone, None without one.
    `follows` are codes of which this one is a mere consequence when it comes shortly after. `needs_good`: the fault
    counts only on a device that was told to be good before: an unused port was never up.
    """

    code: str
    device: str
    severity: Severity
    scope: Scope
    repair: Repair
    detail: str
    deadline: float | None = None
    clears: Clears = UNTIL_BOOT
    follows: tuple[str, ...] = ()
    needs_good: bool = False


@dataclass(frozen=True, slots=True)
class Sighting:
    """A fault told by an event, `count` times in a row, about one process if `process` is set."""

    fault: Fault
    count: int = 1
    process: int | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """An event says that fault `code` of a device is over; without a code, that the device has passed a check.

    The check ends every fault that clears by one, and those of the processes that were on the device.
    """

    code: str
    device: str


@dataclass(frozen=True, slots=True)
class Named:
    """Another name of a device: a GPU's UUID, which its driver tells even when NVML hangs."""

    device: str
    name: str


Told = Fault | Sighting | Ended | Named
"""What an event source tells. A Fault alone was told once."""
