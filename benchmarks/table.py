"""What every benchmark prints: one JSON object with `--json`, else a table."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Row:
    """One measure; `value` and `rival` come from the same run.

    `limit` is what `value` (or its ratio to `rival`) may be, in words. `holds`: True if it is within the limit, None
    where there is none.
    """

    name: str
    value: float | None
    unit: str
    rival: float | None
    limit: str
    holds: bool | None


def arguments(description: str | None) -> argparse.ArgumentParser:
    """A parser that knows `--json`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    return parser


def show(rows: list[Row], *, as_json: bool) -> int:
    """Print; the exit status is 1 if a limit does not hold."""
    if as_json:
        print(json.dumps({"rows": [asdict(row) for row in rows]}))
    else:
        lines(rows)
    return int(any(row.holds is False for row in rows))


def lines(rows: list[Row]) -> None:
    """A plain table."""
    print(f"{'measure':<52}{'value':>10}{'rival':>10}  {'unit':<6}{'limit':<22}holds")
    for row in rows:
        value = "-" if row.value is None else f"{row.value:.2f}"
        rival = "-" if row.rival is None else f"{row.rival:.2f}"
        holds = {True: "yes", False: "NO", None: ""}[row.holds]
        print(f"{row.name:<52}{value:>10}{rival:>10}  {row.unit:<6}{row.limit:<22}{holds}")
