"""How bad each sign of a GPU's trouble is, and what mends it: `data/gpu.json`, each row with its source. Pure.

A row: sign (its name in the code), fault (the code that is told; several signs may share one), severity, scope, repair,
meaning and advice for people, clears (what proves it gone), source; `lasts`: seconds for which it must be seen without
a break before it counts; `limit`: for what is measured, the figure from which on it is a sign.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

from rlguard.errors import BadConfigError
from rlguard.health.faults import Fault
from rlguard.model import Repair, Scope, Severity

DETAIL_LIMIT: Final = 400
"""Characters of a fault's detail that are kept."""


@dataclass(frozen=True, slots=True)
class SignRow:
    """One sign of the table."""

    sign: str
    fault: str
    severity: Severity
    scope: Scope
    repair: Repair
    meaning: str
    advice: str
    clears: str
    source: str
    lasts: float
    limit: float


@dataclass(frozen=True, slots=True)
class SignTable:
    """The whole table."""

    version: str
    rows: Mapping[str, SignRow]

    def fault(self, sign: str, device: str, seen: str) -> Fault:
        """The fault that a sign on a device amounts to; `seen` are the words about what was seen."""
        row = self.rows[sign]
        detail = f"{seen}: {row.meaning}; {row.advice}"[:DETAIL_LIMIT]
        return Fault(row.fault, device, row.severity, row.scope, row.repair, detail)


def builtin_signs() -> SignTable:
    """The table that comes with this version."""
    return parse_signs(resources.files("rlguard.health").joinpath("data/gpu.json").read_text("utf-8"))


def parse_signs(text: str) -> SignTable:
    """Read a table. Raises BadConfigError naming the row that is wrong."""
    try:
        table = json.loads(text)
        rows = [_row(raw) for raw in table["rows"]]
        return SignTable(str(table["version"]), {row.sign: row for row in rows})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadConfigError(f"the table of GPU signs cannot be read: {error!r:.300}") from error


def _row(raw: Mapping[str, Any]) -> SignRow:
    try:
        return SignRow(
            sign=str(raw["sign"]),
            fault=str(raw["fault"]),
            severity=Severity(raw["severity"]),
            scope=Scope(raw["scope"]),
            repair=Repair(raw["repair"]),
            meaning=str(raw["meaning"]),
            advice=str(raw["advice"]),
            clears=str(raw["clears"]),
            source=str(raw["source"]),
            lasts=float(raw.get("lasts", 0)),
            limit=float(raw.get("limit", 0)),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadConfigError(f"the table of GPU signs has a bad row, {raw!r:.200}: {error!r}") from error
