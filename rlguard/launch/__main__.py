"""`python3 /rlguard/lib/rlguard/launch/__main__.py -- CMD ARGS...`: PID 1 of a guarded trainer container."""

from __future__ import annotations

import os
import sys
from pathlib import Path

LIB = Path(__file__).resolve().parents[2]


def main(arguments: list[str]) -> int:
    """Run the launcher; 2 on wrong usage."""
    if len(arguments) < 2 or arguments[0] != "--":  # noqa: PLR2004 # the two dashes and a command
        print("usage: python3 rlguard/launch/__main__.py -- COMMAND [ARGUMENT...]", file=sys.stderr)  # noqa: T201 # usage
        return 2
    from rlguard.launch.supervisor import Supervisor  # noqa: PLC0415 # needs the path set below

    run = Path(os.environ.get("RLGUARD_RUN", "/rlguard/run"))
    return Supervisor(arguments[1:], run, LIB, os.environ).run()


if __name__ == "__main__":
    # Run as a file, the first entry of the path is this folder: its modules are no top-level names.
    sys.path[0] = str(LIB)
    sys.exit(main(sys.argv[1:]))
