"""Lines of NVIDIA's switch driver (SXid) and of the Fabric Manager's log. Pure."""

from __future__ import annotations

import re
from typing import Final

from rlguard.health.faults import NODE
from rlguard.health.lines.line import Line, shown
from rlguard.health.xid import ADDRESS, normalise_pci

TELLTALES: Final = ("SXid", "detected NVSwitch")

# nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)
# nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 20034, Fatal, Link 30 LTSSM Fault Up
# nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 28002, Non-fatal, Therm Warn Deactivated
# What follows the code tells a fault from its companions, which repeat the code and tell nothing new:
# nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Severity 1 Engine instance 60 Sub-engine instance 00
# nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Data {0x50610002, 0x10100030, ...}
_SXID = re.compile(
    rf"nvswitch[0-9]{{0,3}}: SXid \({ADDRESS}\): ([0-9]{{1,6}}),\s*((?:Non-?fatal|Fatal)\b.*)",
    re.IGNORECASE | re.DOTALL,
)

# [ERROR] [tid 1213] detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 physical id 3
_MANAGER = re.compile(
    rf"detected NVSwitch ((?:non-)?fatal) error ([0-9]{{1,6}}) on .{{0,60}}pci bus id {ADDRESS}(.{{0,80}})",
    re.IGNORECASE,
)


def read(text: str) -> Line | None:
    """The switch's fault in a line, None for companions and everything else. Never raises."""
    found = _SXID.search(text)
    if found is not None:
        address, code, words = found.groups()
    else:
        found = _MANAGER.search(text)
        if found is None:
            return None
        word, code, address, rest = found.groups()
        words = f"{word},{rest}"
    return Line(f"sxid-{int(code)}", normalise_pci(address) or NODE, shown(words))
