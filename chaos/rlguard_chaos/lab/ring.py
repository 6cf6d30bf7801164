"""A kernel log's ring of records, with the text format of /dev/kmsg. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

CAPACITY = 1300
"""Records a ring of the usual 256 KiB holds."""

LINE_LIMIT = 976
"""The longest text of one record; the kernel cuts what is longer."""

PRINTABLE_FROM = 32
PRINTABLE_TO = 127


def escape(text: str) -> str:
    r"""As the kernel prints a record: every byte that is no printable ASCII, and the backslash, becomes \xNN."""
    plain = (PRINTABLE_FROM <= byte < PRINTABLE_TO and byte != ord("\\") for byte in text.encode())
    return "".join(chr(b) if ok else f"\\x{b:02x}" for b, ok in zip(text.encode(), plain, strict=True))


@dataclass
class Ring:
    """Holds the newest records; sequence numbers count from 0 and never repeat within one boot."""

    capacity: int = CAPACITY
    next_sequence: int = 0
    _records: deque[bytes] = field(default_factory=deque)

    @property
    def first_sequence(self) -> int:
        """Sequence number of the oldest record still held."""
        return self.next_sequence - len(self._records)

    def append(self, text: str, priority: int, microseconds: int) -> int:
        """Add one record, overwriting the oldest when full; returns its sequence number.

        priority is facility * 8 + level (NVRM lines: 4, a warning of the kernel), the stamp counts since boot.
        """
        sequence = self.next_sequence
        self._records.append(f"{priority},{sequence},{microseconds},-;{escape(text)[:LINE_LIMIT]}\n".encode())
        self.next_sequence += 1
        if len(self._records) > self.capacity:
            self._records.popleft()
        return sequence

    def read(self, sequence: int) -> bytes | None:
        """The record with this number; None when it has not been written yet.

        Raises IndexError when it has been overwritten.
        """
        if sequence < self.first_sequence:
            raise IndexError(sequence)
        return self._records[sequence - self.first_sequence] if sequence < self.next_sequence else None
