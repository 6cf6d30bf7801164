"""The return curve across all restarts, as an SVG drawing. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from rlguard_chaos.steplog import LoggedStep

WIDTH: Final = 960
HEIGHT: Final = 340
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 34, 40
TICKS: Final = 5


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment to show on the time axis (Unix seconds), with its short name."""

    at: float
    name: str


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps a range of values to a range of pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        span = (self.high - self.low) or 1.0
        return self.start + (value - self.low) / span * (self.end - self.start)


def draw(steps: Sequence[LoggedStep], marks: Sequence[Mark]) -> str:
    """One line per incarnation: mean episode return over seconds since the first step; marks are dashed lines."""
    points = [step for step in steps if step.value is not None]
    if not points:
        return "<p>No step carried a return.</p>"
    begin = points[0].at
    x = Scale(0.0, max(points[-1].at, *(mark.at for mark in marks), begin) - begin, LEFT, WIDTH - RIGHT)
    y = Scale(0.0, max(step.value or 0.0 for step in points), HEIGHT - BOTTOM, TOP)
    parts = [*_axes(x, y), *_marks(marks, x, begin), *_lines(points, x, y, begin)]
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Mean episode return over time">'
        + "".join(parts)
        + "</svg>"
    )


def _axes(x: Scale, y: Scale) -> list[str]:
    parts = []
    for index in range(TICKS + 1):
        value = y.high * index / TICKS
        parts.append(f'<line class="grid" x1="{x.start}" x2="{x.end}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.0f}</text>')
        seconds = x.high * index / TICKS
        parts.append(f'<text x="{x(seconds):.1f}" y="{HEIGHT - 22}" text-anchor="middle">{seconds:.0f}</text>')
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 4}" text-anchor="middle">seconds since the first step</text>')
    parts.append('<text x="8" y="16">mean episode return</text>')
    return parts


def _marks(marks: Sequence[Mark], x: Scale, begin: float) -> list[str]:
    parts = []
    for mark in marks:
        at = x(mark.at - begin)
        parts.append(f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP - 8}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text class="mark" x="{at + 4:.1f}" y="{TOP - 2}">{escape(mark.name)}</text>')
    return parts


def _lines(points: Sequence[LoggedStep], x: Scale, y: Scale, begin: float) -> list[str]:
    runs: dict[str | None, list[str]] = {}
    for step in points:
        runs.setdefault(step.incarnation, []).append(f"{x(step.at - begin):.1f},{y(step.value or 0.0):.1f}")
    return [_line(index, str(name), places) for index, (name, places) in enumerate(runs.items())]


def _line(index: int, name: str, places: Sequence[str]) -> str:
    shape = f'<polyline class="run run{index % 2}" points="{" ".join(places)}">'
    return f"{shape}<title>{escape(name)}</title></polyline>"
