"""What one kernel line tells, before anything is rated. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rlguard.health.faults import NODE

TEXT_LIMIT: Final = 300
"""Characters of a line that are kept."""
PCI: Final = r"(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])"
"""A PCI function as the kernel prints it: `0000:61:00.0`."""
NAME: Final = r"[\w.@:-]{1,64}"
"""A name of a network device, block device, server or mount."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line: `code` is a row of the tables; `process` the id of the process it names, None without one."""

    code: str
    device: str
    text: str
    process: int | None = None


@dataclass(frozen=True, slots=True)
class Pattern:
    """A form of a line. `device` is a template over the pattern's named groups; `pci` and `pid` have their meaning."""

    code: str
    regex: re.Pattern[str]
    device: str = NODE

    def read(self, text: str) -> Line | None:
        """What `text` tells if it has this form. Never raises."""
        found = self.regex.search(text)
        if found is None:
            return None
        groups = {name: value or "" for name, value in found.groupdict().items()}
        if "pci" in groups:
            groups["pci"] = with_function(groups["pci"])
        pid = groups.get("pid", "")
        device = self.device.format_map(groups).strip("/") or NODE
        return Line(self.code, device, shown(text[found.start() :]), int(pid) if pid else None)


def first(patterns: Iterable[Pattern], text: str) -> Line | None:
    """What the first pattern that fits makes of the line."""
    for pattern in patterns:
        line = pattern.read(text)
        if line is not None:
            return line
    return None


def with_function(address: str) -> str:
    """A PCI function in one spelling: `0000:61:00.0`. The ports of one adapter differ in the function alone."""
    rest, function = address.split(".")
    domain, bus, device = (int(part, 16) for part in rest.split(":"))
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function}"


def shown(text: str) -> str:
    """The text as people read it: one line, not too long."""
    return " ".join(text[: 4 * TEXT_LIMIT].split())[:TEXT_LIMIT]
