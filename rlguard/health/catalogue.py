"""What each Xid means, how bad it is and what mends it: `data/xid.json`, versioned, each row with its source. Pure.

A row: code, meaning, severity, scope, repair, source; `nonfatal`: the severity where the line says "Nonfatal";
`actions`: for Xid 154, severity, scope and repair for each number of NVML's recovery action.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from rlguard.errors import BadConfigError
from rlguard.health.faults import NODE, Fault
from rlguard.health.xid import Xid, read_xid, recovery_action, says_nonfatal
from rlguard.model import Repair, Scope, Severity

Rating = tuple[Severity, Scope, Repair]
UNLISTED: Rating = (Severity.WARNING, Scope.GPU, Repair.NONE)
"""A code nobody has described is told, and nothing is done about it."""


@dataclass(frozen=True, slots=True)
class Row:
    """One code of the table."""

    code: int
    meaning: str
    rating: Rating
    source: str
    nonfatal: Severity | None
    actions: Mapping[int, Rating]


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The whole table."""

    version: str
    rows: Mapping[int, Row]

    def fault(self, xid: Xid) -> Fault:
        """The fault that a line tells, rated."""
        row = self.rows.get(xid.code)
        severity, scope, repair = _rate(row, xid.text)
        meaning = row.meaning if row else "a code that the catalogue does not list"
        detail = f"Xid {xid.code} ({meaning}): {xid.text}"
        return Fault(f"xid-{xid.code}", xid.pci or NODE, severity, scope, repair, detail)

    def read(self, line: str) -> Fault | None:
        """The fault in a kernel line, None if it tells none. Never raises."""
        xid = read_xid(line)
        return None if xid is None else self.fault(xid)


def builtin() -> Catalogue:
    """The table that comes with this version."""
    return parse(resources.files("rlguard.health").joinpath("data/xid.json").read_text("utf-8"))


def parse(text: str) -> Catalogue:
    """Read a table. Raises BadConfigError naming the row that is wrong."""
    try:
        table = json.loads(text)
        rows = [_row(raw) for raw in table["rows"]]
        return Catalogue(str(table["version"]), {row.code: row for row in rows})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadConfigError(f"the Xid table cannot be read: {error!r}") from error


def _row(raw: Mapping[str, Any]) -> Row:
    try:
        nonfatal = raw.get("nonfatal")
        return Row(
            code=int(raw["code"]),
            meaning=str(raw["meaning"]),
            rating=(Severity(raw["severity"]), Scope(raw["scope"]), Repair(raw["repair"])),
            source=str(raw["source"]),
            nonfatal=None if nonfatal is None else Severity(nonfatal),
            actions={int(number): _rating(*rating) for number, rating in raw.get("actions", {}).items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadConfigError(f"the Xid table has a bad row, {raw!r:.200}: {error!r}") from error


def _rating(severity: str, scope: str, repair: str) -> Rating:
    return Severity(severity), Scope(scope), Repair(repair)


def _rate(row: Row | None, text: str) -> Rating:
    if row is None:
        return UNLISTED
    severity, scope, repair = row.actions.get(recovery_action(text) or 0, row.rating)
    if row.nonfatal is not None and says_nonfatal(text):
        severity = row.nonfatal
    return severity, scope, repair
