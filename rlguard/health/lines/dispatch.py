"""The one way from a kernel line to what it tells; what has no telltale in it costs one search. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from rlguard.health.lines import hardware, network, nvidia, nvswitch, storage, tasks
from rlguard.health.lines.line import Line

_READERS: Final[tuple[tuple[tuple[str, ...], Callable[[str], Line | None]], ...]] = tuple(
    (family.TELLTALES, family.read) for family in (nvidia, nvswitch, network, hardware, tasks, storage)
)
_TELLTALES: Final = re.compile(
    "|".join(map(re.escape, [*(one for telltales, _ in _READERS for one in telltales), nvidia.INTRODUCES])).encode()
)
"""What tells, in the bytes of a record, that it may be worth reading."""

_OF_A_USER: Final = "process '"
"""The kernel's own line "process '/tmp/x' started with executable stack" (fs/exec.c) shows, unquoted, a file name that
anybody chooses who may run a program."""


def worth_reading(record: bytes) -> bool:
    """False for a record that certainly tells nothing. Most of a flood ends here."""
    return _TELLTALES.search(record) is not None


def read(text: str) -> Line | None:
    """What a line tells, None if nothing. Never raises."""
    if text.startswith(_OF_A_USER):
        return None
    for telltales, reader in _READERS:
        if any(telltale in text for telltale in telltales):
            line = reader(text)
            if line is not None:
                return line
    return None
