"""`rlguard demo`: the command."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from rich.console import Console

from rlguard_chaos.demo import run_demo


def register(parser: argparse.ArgumentParser) -> None:
    """Add the options of `rlguard demo`."""
    parser.description = (
        "A guarded PPO job on a lab of three nodes survives a killed rank, a lost GPU, a reclaimed spot node and the "
        "death of its leader's node, and finishes; the same job without rlguard is measured beside it."
    )
    parser.add_argument("--build", default="build", metavar="DIR", help="where demo.json and demo.html go")
    parser.add_argument("--keep", action="store_true", help="leave the lab up afterwards (or DEMO_KEEP=1)")
    parser.set_defaults(run=_demo)


def _demo(arguments: argparse.Namespace) -> int:
    keep = arguments.keep or os.environ.get("DEMO_KEEP") == "1"
    return run_demo(Console(), Path.cwd(), Path(arguments.build), keep=keep)
