"""The demo's figures for people: a table in the terminal, an HTML page, and the same as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import jinja2
from rich.table import Table

from rlguard_chaos.curve import Mark, draw
from rlguard_chaos.run import Act
from rlguard_chaos.steplog import LoggedStep

COLUMNS: Final = ("act", "detected after", "decision", "lost steps", "first new step", "without rlguard", "")


@dataclass(frozen=True, slots=True)
class Row:
    """An act beside what happens without rlguard.

    `bare_restart_s`: the same command started by hand, to its first step. `baseline_s`: the same fault in the same job
    under LWS and torchrun alone, to its first new step; None with `baseline_watched_s` set: not within that time.
    """

    act: Act
    bare_restart_s: float | None = None
    baseline_s: float | None = None
    baseline_watched_s: float | None = None

    @property
    def baseline(self) -> str:
        """What the job does without rlguard, in words."""
        if self.baseline_s is not None:
            return f"{self.baseline_s:.1f} s, from step 0"
        return f"not within {self.baseline_watched_s:.0f} s" if self.baseline_watched_s else ""


@dataclass(frozen=True, slots=True)
class Report:
    """Everything the demo measured. `steps` is rank 0's own log."""

    rows: tuple[Row, ...]
    steps: tuple[LoggedStep, ...]

    @property
    def passed(self) -> bool:
        """Whether every act recovered within its limits."""
        return all(row.act.recovered for row in self.rows)


def seconds(value: float | None) -> str:
    """A duration for a table cell."""
    return "" if value is None else f"{value:.1f} s"


def cells(row: Row) -> tuple[str, ...]:
    """One line of the table, as COLUMNS name it."""
    act = row.act
    lost = "" if act.lost_steps is None else str(act.lost_steps)
    return (
        act.title,
        seconds(act.detected_after_s),
        act.decision or act.why,
        lost,
        seconds(act.time_to_first_step_s),
        row.baseline or "-",
        "recovered" if act.recovered else f"FAILED: {act.reason}",
    )


def table(report: Report) -> Table:
    """The table at the end of the demo."""
    drawn = Table(*COLUMNS, title="What broke, and what it cost")
    for row in report.rows:
        drawn.add_row(*cells(row), style=None if row.act.recovered else "bold red")
    return drawn


def as_json(report: Report) -> dict[str, Any]:
    """The figures of `build/demo.json`."""
    acts = [
        {
            **asdict(row.act),
            "bare_restart_s": row.bare_restart_s,
            "baseline_s": row.baseline_s,
            "baseline_watched_s": row.baseline_watched_s,
        }
        for row in report.rows
    ]
    return {"passed": report.passed, "acts": acts}


def as_html(report: Report) -> str:
    """One self-contained page: the table and the return curve."""
    environment = jinja2.Environment(loader=jinja2.PackageLoader("rlguard_chaos", "templates"), autoescape=True)
    marks = [Mark(row.act.injected_at, row.act.name) for row in report.rows]
    return environment.get_template("report.html.j2").render(
        passed=report.passed,
        columns=COLUMNS,
        rows=[(row.act.recovered, row.act.why, cells(row)) for row in report.rows],
        curve=draw(report.steps, marks),
    )


def write(report: Report, folder: Path) -> tuple[Path, Path]:
    """Write `demo.json` and `demo.html` into `folder` and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    figures, page = folder / "demo.json", folder / "demo.html"
    figures.write_text(json.dumps(as_json(report), indent=2) + "\n")
    page.write_text(as_html(report))
    return figures, page
