"""The ranks' output: passed on to the container's own, with the last of it kept for the report."""

from __future__ import annotations

import os
import select
from typing import Final

TAIL_BYTES: Final = 4096
_CHUNKS_AT_ONCE: Final = 64
"""Then it is the launcher's other work's turn: ranks that write without pause must not keep it from its orders."""
_CHUNK: Final = select.PIPE_BUF  # what a pipe that polls writable takes without blocking


class Tail:
    """The last `TAIL_BYTES` of everything the ranks wrote, both streams in the order they came."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def add(self, data: bytes) -> None:
        """Append, and forget what is too old."""
        self._bytes += data
        del self._bytes[:-TAIL_BYTES]

    def text(self) -> str:
        """Return it as text; a character cut in half shows as a replacement mark."""
        return self._bytes.decode(errors="replace")


class Stream:
    """One stream of the ranks, on its way to one of the launcher's own descriptors.

    Nothing is dropped and the launcher never blocks: while the sink is full nothing is read, so the ranks wait in
    their own write, as they would without a launcher between.
    """

    def __init__(self, source: int, sink: int, tail: Tail) -> None:
        self.source = source
        self._sink = sink
        self._tail = tail
        self._pending = b""
        os.set_blocking(source, False)

    def pump(self) -> bool:
        """Move what can be moved now. False when the stream has ended and all of it is out."""
        for _ in range(_CHUNKS_AT_ONCE):
            if not self._flush():
                return True
            try:
                data = os.read(self.source, _CHUNK)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._tail.add(data)
            self._pending = data
        self._flush()
        return True

    @property
    def waits(self) -> bool:
        """Whether the sink is full."""
        return bool(self._pending)

    def _flush(self) -> bool:
        poller = select.poll()
        poller.register(self._sink, select.POLLOUT)
        while self._pending:
            if not poller.poll(0):
                return False
            try:
                self._pending = self._pending[os.write(self._sink, self._pending) :]
            except OSError:  # nobody reads the container's output any more: training goes on without it
                self._pending = b""
        return True

    def close(self) -> None:
        """Close the source."""
        os.close(self.source)
