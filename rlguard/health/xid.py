"""What NVIDIA's driver writes into the kernel log: `NVRM: Xid ...` in its forms, and "fallen off the bus". Pure.

No pattern is anchored at the start of the line, because dmesg, syslog and others put prefixes before it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

FALLEN: Final = 79
"""The code of "GPU has fallen off the bus", which the driver also says without a code."""
TEXT_LIMIT: Final = 300
"""Characters of a line that are kept."""


@dataclass(frozen=True, slots=True)
class Xid:
    """One Xid line. `pci` is normalised (`0000:9b:00`), None where the line names no device; `pid` None if unknown."""

    pci: str | None
    code: int
    pid: int | None
    name: str | None
    text: str


# PCI:0000:9b:00    0000:03:00    PCI:0018:01:00    0000:9b:00.0    00000000:9B:00.0
ADDRESS: Final = r"(?:PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
"""A PCI address in any of these spellings, as one group of a pattern."""
"""A PCI address in any spelling, in one group."""

# NVRM: Xid (PCI:0000:c1:00): 48, pid='<unknown>', name=<unknown>, An uncorrectable double bit error (DBE) ...
# NVRM: Xid (0000:03:00): 14, Channel 00000001
# NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate.
_XID = re.compile(rf"NVRM: Xid \({ADDRESS}\): ([0-9]{{1,5}})(?![0-9])(.*)", re.DOTALL)

# , pid=7194, name=python3, Contained: SM (0x1). RST: No, D-RST: No
# , pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
# , pid=876767, name=ray::WorkerDict, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 ...)
# , pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate.
_WHO = re.compile(r",\s*pid=([^,]{0,32}),\s*(?:name=([^,]{0,64}),\s*)?", re.DOTALL)

# NVRM: GPU 0000:29:00.0: GPU has fallen off the bus.
# NVRM: The NVIDIA GPU 0000:18:00.0
# NVRM: (PCI ID: 10de:2901) installed in this system has
# NVRM: fallen off the bus and is not responding to commands.      (one record of three lines)
# Logs that are cut at line feeds leave the last part alone: then no device is known.
_FALLEN = re.compile(r"NVRM:.{0,400}fallen off the bus", re.DOTALL)
_FALLEN_ADDRESS = re.compile(rf"GPU (?:at )?{ADDRESS}")

# NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)
_RECOVERY = re.compile(r"recovery action changed from 0x[0-9a-fA-F]{1,8}[^)]{0,64}\)? to 0x([0-9a-fA-F]{1,8})")

# NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (...)        RLW_RXPIPE Nonfatal XC0 i0 Link 13 (...)
_NONFATAL = re.compile(r"\bnon[- ]?fatal\b", re.IGNORECASE)
_FATAL = re.compile(r"\bfatal\b", re.IGNORECASE)


def read_xid(line: str) -> Xid | None:
    """The fault in a kernel line, None if it tells none. Never raises."""
    found = _XID.search(line)
    if found is None:
        return _read_fallen(line)
    address, code, rest = found.groups()
    who = _WHO.match(rest)
    text = rest[who.end() :] if who else rest.lstrip(", ")
    pid, name = (who.group(1), who.group(2)) if who else (None, None)
    return Xid(normalise_pci(address), int(code), _known_pid(pid), _known_name(name), _shown(text))


def normalise_pci(text: str) -> str | None:
    """Any spelling of a PCI address as `domain:bus:device`, lower case, four digits or more; None if it is none."""
    found = re.fullmatch(ADDRESS, text.strip())
    if found is None:
        return None
    domain, bus, device = (int(part, 16) for part in found.group(1).split(".")[0].split(":"))
    return f"{domain:04x}:{bus:02x}:{device:02x}"


def recovery_action(text: str) -> int | None:
    """The number of the action an Xid 154 asks for; the words beside it differ between drivers. None if not told."""
    found = _RECOVERY.search(text)
    return int(found.group(1), 16) if found else None


def says_nonfatal(text: str) -> bool:
    """True when the line has the word "Nonfatal" (which contains "fatal")."""
    return _NONFATAL.search(text) is not None


def says_fatal(text: str) -> bool:
    """True when the line has the word "Fatal", and nowhere "Nonfatal"."""
    return _FATAL.search(text) is not None and not says_nonfatal(text)


def _read_fallen(line: str) -> Xid | None:
    found = _FALLEN.search(line)
    if found is None:
        return None
    address = _FALLEN_ADDRESS.search(found.group())
    return Xid(normalise_pci(address.group(1)) if address else None, FALLEN, None, None, _shown(found.group()))


def _known_pid(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,10}", text) else None


def _known_name(text: str | None) -> str | None:
    return None if text in (None, "", "<unknown>") else text


def _shown(text: str) -> str:
    return " ".join(text.split())[:TEXT_LIMIT]
