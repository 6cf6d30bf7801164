"""Lines of PCIe error reporting, machine checks and memory controllers. Pure."""

from __future__ import annotations

import re
from typing import Final

from rlguard.health.lines.line import PCI, Line, Pattern, first

TELLTALES: Final = ("AER:", "PCIe Bus Error", "Machine Check Exception", "EDAC MC", "[Hardware Error]: event severity")

# pcieport 0000:00:1d.0: AER: Uncorrected (Non-Fatal) error received: 0000:00:1d.0
# pcieport 0000:00:1d.0: AER: Uncorrectable (Fatal) error message received from 0000:00:1d.0      (newer)
# pcieport 0000:00:03.0: AER: Multiple Corrected error received: id=0018                          (older)
_RECEIVED = r"AER: (?:Multiple )?{} error (?:message )?received(?:: | from )"
# pcieport 0000:00:1d.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)
_BUS = r"{}: (?:AER: )?PCIe Bus Error: severity={},"


def _aer(code: str, severity: str) -> tuple[Pattern, ...]:
    return (
        Pattern(code, re.compile(_RECEIVED.format(severity) + PCI), "{pci}"),
        Pattern(code, re.compile(PCI + ": " + _RECEIVED.format(severity) + r"id=[0-9a-fA-F]{4}\b"), "{pci}"),
        Pattern(code, re.compile(_BUS.format(PCI, severity)), "{pci}"),
    )


_PATTERNS = (
    *_aer("pcie-corrected", "Corrected"),
    *_aer("pcie-nonfatal", r"Uncorrect(?:ed|able) \(Non-Fatal\)"),
    *_aer("pcie-fatal", r"Uncorrect(?:ed|able) \(Fatal\)"),
    # pcieport 0000:00:1d.0: AER: device recovery successful
    Pattern("pcie-recovered", re.compile(rf"{PCI}: AER: [Dd]evice recovery successful"), "{pci}"),
    # pcieport 0000:00:1d.0: AER: device recovery failed
    Pattern("pcie-recovery-failed", re.compile(rf"{PCI}: AER: [Dd]evice recovery failed"), "{pci}"),
    # mce: [Hardware Error]: CPU 5: Machine Check Exception: 5 Bank 7: be00000000800400
    Pattern("machine-check", re.compile(r"CPU [0-9]{1,4}: Machine Check Exception: [0-9a-fA-F]{1,16} Bank [0-9]{1,3}")),
    # EDAC MC0: 1 UE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x0 offset:0x0 grain:32)
    Pattern("edac-uncorrected", re.compile(r"EDAC MC(?P<mc>[0-9]{1,3}): [0-9]{1,9} UE "), "mc{mc}"),
    # EDAC MC0: 1 CE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x0 offset:0x0 grain:32)
    Pattern("edac-corrected", re.compile(r"EDAC MC(?P<mc>[0-9]{1,3}): [0-9]{1,9} CE "), "mc{mc}"),
    # {1}[Hardware Error]: event severity: fatal
    Pattern("firmware-hardware-error", re.compile(r"\[Hardware Error\]: event severity: fatal")),
)


def read(text: str) -> Line | None:
    """What a line tells of the machine's hardware, None if nothing. Never raises."""
    return first(_PATTERNS, text)
