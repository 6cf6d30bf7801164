"""The one way from a kernel line to what it tells; what no telltale is in costs a few string searches. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rlguard.health.lines import hardware, network, nvidia, nvswitch, storage, tasks
from rlguard.health.lines.line import Line

_READERS: Final[tuple[tuple[tuple[str, ...], Callable[[str], Line | None]], ...]] = tuple(
    (family.TELLTALES, family.read) for family in (nvidia, nvswitch, network, hardware, tasks, storage)
)
TELLTALES: Final = tuple(telltale.encode() for telltales, _ in _READERS for telltale in telltales)
"""What tells, in the bytes of a record, that it may be worth reading."""


def worth_reading(record: bytes) -> bool:
    """False for a record that certainly tells nothing. Most of a flood ends here."""
    for telltale in TELLTALES:  # noqa: SIM110 - a generator would cost more than the searches
        if telltale in record:
            return True
    return False


def read(text: str) -> Line | None:
    """What a line tells, None if nothing. Never raises."""
    for telltales, reader in _READERS:
        if any(telltale in text for telltale in telltales):
            line = reader(text)
            if line is not None:
                return line
    return None
