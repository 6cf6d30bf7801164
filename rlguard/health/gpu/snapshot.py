"""What NVML shows of a node's GPUs at one moment. Pure.

None is "the driver does not tell": such a value is never a fault. Counters are as NVML gives them: `volatile` ones
start at 0 with the driver, aggregate ones are for the GPU's life.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

UNINITIALIZED: Final = 1
NO_PERMISSION: Final = 4
DRIVER_NOT_LOADED: Final = 9
LIBRARY_MISMATCH: Final = 18
"""Return codes of NVML (nvml.h, nvmlReturn_t) after which nothing can be read before it is initialised anew."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A call that did not give its value: the function's name and NVML's return code."""

    call: str
    code: int


@dataclass(frozen=True, slots=True)
class Ecc:
    """Memory errors by NVML's count."""

    corrected: int | None = None
    uncorrected: int | None = None
    lifetime_corrected: int | None = None
    lifetime_uncorrected: int | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """Remapped memory rows (Ampere and newer) and retired pages (older ones).

    `banks_exhausted` counts memory banks with no spare row left, `banks_low` those with few.
    """

    corrected: int | None = None
    uncorrected: int | None = None
    pending: bool | None = None
    failed: bool | None = None
    banks_low: int | None = None
    banks_exhausted: int | None = None
    pages_pending: bool | None = None


@dataclass(frozen=True, slots=True)
class Heat:
    """Degrees Celsius, watts, and why clocks are held down (mask of NVML's clocks event reasons)."""

    temperature: int | None = None
    slowdown_at: int | None = None
    watts: float | None = None
    reasons: int | None = None


@dataclass(frozen=True, slots=True)
class Fabric:
    """The GPU's place among NVSwitches: NVML's fabric state, status (a return code) and health mask."""

    state: int | None = None
    status: int | None = None
    health: int | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU; `pci` is normalised (`0000:9b:00`). `links` are the NVLinks by number: up or not.

    `link_errors` counts replays and recoveries on all links; `action` is NVML's recovery action, 0 for none.
    """

    index: int
    pci: str | None = None
    uuid: str | None = None
    serial: str | None = None
    name: str | None = None
    minor: int | None = None
    ecc: Ecc = Ecc()
    rows: Rows = Rows()
    heat: Heat = Heat()
    fabric: Fabric = Fabric()
    links: tuple[bool, ...] = ()
    link_errors: int | None = None
    action: int | None = None
    refused: tuple[Refused, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Every GPU that the driver shows, and the driver's version."""

    gpus: tuple[Gpu, ...]
    driver: str | None = None


@dataclass(frozen=True, slots=True)
class XidEvent:
    """An Xid that NVML told: on which device (None: not known which), and its code."""

    pci: str | None
    code: int


@dataclass(frozen=True, slots=True)
class Hung:
    """The driver did not answer within `seconds`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Unreadable:
    """NVML cannot be looked at; `reason` says why, where, and what to do."""

    reason: str


Look = Snapshot | Hung | Unreadable
