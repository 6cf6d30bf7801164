"""`rlguard demo`: the command."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Final

from rich.console import Console

from rlguard.errors import BadConfigError
from rlguard_chaos.demo import Options, run_demo
from rlguard_chaos.lab import layout

LOG_WIDTH: Final = 150


def register(parser: argparse.ArgumentParser) -> None:
    """Add the options of `rlguard demo`."""
    parser.description = (
        "A guarded PPO job on a lab of three nodes survives a killed rank, a lost GPU, a reclaimed spot node and the "
        "death of its leader's node, and finishes; the same job without rlguard is measured beside it."
    )
    parser.add_argument("--build", default="build", metavar="DIR", help="where demo.json and demo.html go")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="ACT",
        help="play this act only (repeatable; 'rlguard chaos list' shows them)",
    )
    parser.add_argument("--no-baseline", action="store_true", help="do not measure the job without rlguard")
    parser.add_argument("--manifests", metavar="DIR", help="folder with another job.yaml and guard.yaml of job 'ppo'")
    parser.add_argument("--within", type=float, metavar="SECONDS", help="no act may take longer, whatever it says")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="leave the lab up afterwards (or DEMO_KEEP=1); one that ran before is left in any case",
    )
    parser.set_defaults(run=_demo)


def console() -> Console:
    """The terminal, or a page wide enough for the table where there is none (a log)."""
    return Console() if Console().is_terminal else Console(width=LOG_WIDTH)


def _demo(arguments: argparse.Namespace) -> int:
    if arguments.within is not None and not arguments.within > 0:
        raise BadConfigError(f"--within must be more than 0 seconds, not {arguments.within}")
    options = Options(
        root=layout.CHECKOUT,
        build=Path(arguments.build),
        manifests=Path(arguments.manifests) if arguments.manifests else layout.CHECKOUT / "examples" / "ppo",
        only=tuple(arguments.only),
        baseline=not arguments.no_baseline,
        within=arguments.within,
        keep=arguments.keep or os.environ.get("DEMO_KEEP") == "1",
    )
    for needed in (options.root / "charts" / "rlguard", options.manifests / "job.yaml"):
        if not needed.exists():
            raise BadConfigError(f"{needed} is not there: the demo runs from a checkout of rlguard")
    return run_demo(console(), options)
