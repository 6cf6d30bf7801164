"""`python -m rlguard.io.storechild ROOT`: the store behind a pipe, so that a hung file system can be killed (C9).

One JSON request per line on stdin, `{"op": "scan", "args": {}}`; for each one line on stdout, `{"ok": ...}` or
`{"error": {"kind", "message", "state"}}`, after any number of `{"progress": true}`. Ends when stdin does.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rlguard.errors import BadWireError, RlguardError, StoreError
from rlguard.io.clock import boottime
from rlguard.io.store import Store
from rlguard.io.storewire import OPERATIONS, error_to_json

if TYPE_CHECKING:
    from typing import BinaryIO

PROGRESS_S: Final = 0.25
"""Seconds between two signs of life at most."""


class Child:
    """Answers requests for one root."""

    def __init__(self, root: Path, out: BinaryIO) -> None:
        self._out = out
        self._last = 0.0
        self._store = Store(root, progress=self._progress)

    def answer(self, line: bytes) -> None:
        """Do one request and write its answer. Never raises for what a request or the file system does."""
        try:
            self._say({"ok": self._done(line)})
        except RlguardError as error:
            self._say({"error": error_to_json(error)})
        except Exception as error:  # noqa: BLE001 # the other end must hear of a bug, not wait for an answer
            said = StoreError(f"internal error of the store: {type(error).__name__}: {error}")
            self._say({"error": error_to_json(said)})

    def _done(self, line: bytes) -> Any:
        try:
            request = json.loads(line)
            operation, args = OPERATIONS[request["op"]], request["args"]
        except (ValueError, KeyError, TypeError) as error:
            raise BadWireError(f"no request of ours: {line[:200]!r}") from error
        return operation(self._store, args)

    def _progress(self) -> None:
        now = boottime()
        if now - self._last >= PROGRESS_S:
            self._last = now
            self._say({"progress": True})

    def _say(self, message: dict[str, Any]) -> None:
        self._out.write(json.dumps(message).encode() + b"\n")
        self._out.flush()


def main() -> int:
    """Serve until stdin ends."""
    if len(sys.argv) != 2:  # noqa: PLR2004 # the program and its one argument
        sys.stderr.write("usage: python -m rlguard.io.storechild ROOT\n")
        return 2
    child = Child(Path(sys.argv[1]), sys.stdout.buffer)
    for line in sys.stdin.buffer:
        try:
            child.answer(line)
        except BrokenPipeError:  # nobody listens any more
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
