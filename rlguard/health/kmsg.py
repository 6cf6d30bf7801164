r"""Records of /dev/kmsg, as read(2) gives them: `priority,sequence,microseconds,flags[,...];text\n KEY=value\n`. Pure.

The form is the kernel's Documentation/ABI/testing/dev-kmsg: priority is facility * 8 + level; bytes that do not print
come as `\xNN`; lines after the first that start with a space are properties.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

OVERRUN: Final = b"EPIPE"
"""Stands among the records where a reader was overtaken: read(2) failed with EPIPE there."""
KERNEL: Final = 0
"""The facility of the kernel's own lines. It cannot be forged: what user space writes gets another one."""
RECORD_LIMIT: Final = 8192
"""No record is longer; a reader's buffer must hold one whole."""

_HEADER = re.compile(rb"([0-9]{1,9}),([0-9]{1,18}),[0-9]{1,18},[^;]{0,200};")
_ESCAPE = re.compile(r"\\x([0-9a-fA-F]{2})")


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """One record; `sequence` counts from the boot on, by one."""

    facility: int
    level: int
    sequence: int
    text: str


@dataclass(frozen=True, slots=True)
class Gathered:
    """What a run of records amounts to. `position` is the last sequence number seen, None before the first; `newest` is
    that of the last record in this run, also of those seen before.

    `texts` are the texts that may tell something and how often each came, in the order in which they came last.
    `overruns` counts the places where records are missing, `lost` those records; `garbage` what was no record.
    """

    position: int | None
    texts: Mapping[str, int]
    records: int
    overruns: int
    lost: int
    garbage: int
    newest: int | None = None


def parse_record(data: bytes) -> KernelRecord | None:
    """The record in what one read gave, None if it is none. Never raises."""
    header = _HEADER.match(data)
    if header is None:
        return None
    priority, sequence = int(header.group(1)), int(header.group(2))
    return KernelRecord(priority >> 3, priority & 7, sequence, _text(data, header.end()))


def gather(
    position: int | None, packets: Iterable[bytes], *, kernel_only: bool, about: Callable[[bytes], bool]
) -> Gathered:
    """Sum up what was read after `position`; `about` says which records' texts are wanted.

    Records up to `position` were seen before and are skipped, so that a log read from its start gives nothing twice.
    Without a position the first record is where looking began: what came before is no gap.
    """
    texts: dict[str, int] = {}
    records = overruns = lost = garbage = 0
    broken, newest = False, None
    for packet in packets:
        if packet == OVERRUN:
            broken = True
            continue
        header = _HEADER.match(packet)
        if header is None:
            garbage += 1
            continue
        sequence = newest = int(header.group(2))
        if position is not None and sequence <= position:
            continue
        missing = 0 if position is None else sequence - position - 1
        overruns, lost, broken = overruns + (broken or missing > 0), lost + missing, False
        position, records = sequence, records + 1
        if about(packet) and (int(header.group(1)) >> 3 == KERNEL or not kernel_only):
            text = _text(packet, header.end())
            texts[text] = texts.pop(text, 0) + 1
    return Gathered(position, texts, records, overruns + broken, lost, garbage, newest)


def _text(data: bytes, start: int) -> str:
    text = data[start:RECORD_LIMIT].split(b"\n", 1)[0].decode("utf-8", "replace")
    return _ESCAPE.sub(_unescape, text) if "\\x" in text else text


def _unescape(found: re.Match[str]) -> str:
    return chr(int(found.group(1), 16))
