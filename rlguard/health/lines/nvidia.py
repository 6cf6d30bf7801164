"""Lines of NVIDIA's GPU driver and of nvidia-peermem. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from rlguard.health.faults import NODE
from rlguard.health.lines.line import Line, Pattern
from rlguard.health.xid import ADDRESS, Xid, normalise_pci, read_xid

TELLTALES: Final = ("NVRM: Xid", "fallen off the bus", "nv_get_p2p_free_callback")
INTRODUCES: Final = "NVRM: GPU at"
"""The telltale of a line that names a GPU."""

# nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing
_PEERMEM = Pattern(
    "peermem-invalid-context", re.compile(r"nv_get_p2p_free_callback:?[0-9]{0,6} ERROR detected invalid context")
)

# NVRM: GPU at PCI:0000:9b:00: GPU-5e6d3ac5-1b1c-4b0e-8d1e-0a1b2c3d4e5f
_INTRODUCTION = re.compile(rf"NVRM: GPU at {ADDRESS}: (GPU-[0-9a-fA-F-]{{8,64}})")

# NVRM: Xid (PCI:0008:01:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149
_CAUSE = re.compile(r"caused by previous Xid ([0-9]{1,5})")

# NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000 ...        (drivers cut the line where they like)
# RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 ...
# NETIR_LINK_EVT Fatal XC0 i0 Link -1 (...                                  the whole GPU
_NVLINK5 = re.compile(
    r"\b(?P<unit>[A-Z][A-Z0-9_]{2,30})\s+(?:[Nn]on-?[Ff]atal|[Ff]atal)\s+XC[01]\s+i[0-9]{1,3}\s+Link\s+(?P<link>-?[0-9]{1,3})"
    r"(?:\s+\((?P<info>0x[0-9a-fA-F]{1,8})(?:\s+(?P<status>0x[0-9a-fA-F]{1,8}))?)?"
)
_SUBCODE_SHIFT, _SUBCODE_MASK = 20, 0x3F
_PEER: Final = frozenset({0x15, *range(0x20, 0x26)})
"""Subcodes of NETIR_LINK_EVT that blame the device at the other end of the link."""


@dataclass(frozen=True, slots=True)
class NvLink:
    """What an Xid 144-150 says about a link of NVLink 5. `link` is None for the whole GPU; codes None if cut off."""

    unit: str
    link: int | None
    subcode: int | None
    status: int | None

    @property
    def blames_peer(self) -> bool:
        """True when the error came from the other end of the link."""
        return self.unit.startswith("NETIR_LINK") and self.subcode in _PEER

    @property
    def is_error_rate(self) -> bool:
        """True for the report of a bit error rate, which stops nothing."""
        return self.unit == "NETIR_BER_EVENT"


def read(text: str) -> Line | None:
    """The Xid, or trouble of nvidia-peermem, in a line; None if it tells none. Never raises."""
    xid = read_xid(text)
    return _PEERMEM.read(text) if xid is None else line_of(xid)


def line_of(xid: Xid) -> Line:
    """The Xid as any other line."""
    return Line(f"xid-{xid.code}", xid.pci or NODE, xid.text, xid.pid)


def read_introduction(text: str) -> tuple[str, str] | None:
    """PCI address and UUID of a GPU that the driver names before its first Xid, None if it names none.

    It tells the UUID without NVML, which may hang exactly then.
    """
    found = _INTRODUCTION.search(text) if INTRODUCES in text else None
    pci = normalise_pci(found.group(1)) if found else None
    return (pci, found.group(2)) if found and pci else None


def named_cause(text: str) -> int | None:
    """The Xid that the driver itself calls the cause of this one, None if it names none."""
    found = _CAUSE.search(text)
    return int(found.group(1)) if found else None


def read_nvlink(text: str) -> NvLink | None:
    """What the text of an Xid 144-150 says, None if it has another form. Never raises."""
    found = _NVLINK5.search(text)
    if found is None:
        return None
    link = int(found["link"])
    info = int(found["info"], 16) if found["info"] else None
    subcode = None if info is None else (info >> _SUBCODE_SHIFT) & _SUBCODE_MASK
    return NvLink(
        found["unit"], link if link >= 0 else None, subcode, int(found["status"], 16) if found["status"] else None
    )
