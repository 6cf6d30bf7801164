"""`python -m rlguard.io.rdmachild SYSFS [GID-INDEX]`: the reader behind a pipe, so that a hanging read can be killed.

One JSON request per line on stdin, `{"counters": ["hw_counters/out_of_sequence"]}`; for each the lines
`{"device": "mlx5_bond_0"}`, each before that device is read, and then `{"files": {...}}` or `{"error": "..."}`. Ends
when stdin does.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rlguard.io.rdma import Reader


def main() -> int:
    """Serve until stdin ends."""
    if len(sys.argv) not in (2, 3):
        sys.stderr.write("usage: python -m rlguard.io.rdmachild SYSFS [GID-INDEX]\n")
        return 2
    index = int(sys.argv[2]) if len(sys.argv) == 3 else None  # noqa: PLR2004 - the program and its two arguments
    reader = Reader(Path(sys.argv[1]), index, lambda device: _say({"device": device}))
    for line in sys.stdin.buffer:
        try:
            _say(_answer(reader, line))
        except BrokenPipeError:  # nobody listens any more
            return 0
    return 0


def _answer(reader: Reader, line: bytes) -> dict[str, Any]:
    try:
        return {"files": reader.read([str(name) for name in json.loads(line)["counters"]])}
    except BrokenPipeError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        return {"error": str(error)[:300] or type(error).__name__}


def _say(message: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
