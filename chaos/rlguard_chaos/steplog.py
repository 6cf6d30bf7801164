"""The ranks' own record of their steps: one JSON line per step and rank, written by the training script."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """One finished step. `at` is Unix seconds, `world` the number of ranks, `value` the mean episode return."""

    at: float
    step: int
    world: int
    value: float | None
    incarnation: str | None


def read(path: Path) -> list[LoggedStep]:
    """All whole lines of one rank's log, in the order written; a torn last line (a killed writer) is left out."""
    if not path.exists():
        return []
    lines = path.read_text(errors="replace").splitlines()
    return [step for line in lines if (step := _parse(line)) is not None]


def _parse(line: str) -> LoggedStep | None:
    try:
        item = json.loads(line)
        return LoggedStep(
            at=float(item["t"]),
            step=int(item["step"]),
            world=int(item.get("world", 0)),
            value=None if item.get("return") is None else float(item["return"]),
            incarnation=item.get("incarnation"),
        )
    except (ValueError, KeyError, TypeError):
        return None


def first_after(steps: list[LoggedStep], moment: float) -> LoggedStep | None:
    """The first step finished after `moment` (Unix seconds)."""
    return next((step for step in steps if step.at > moment), None)
