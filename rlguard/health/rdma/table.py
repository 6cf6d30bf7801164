"""How bad each thing that can be wrong with an RDMA port is: `data/rdma.json`, versioned, with sources. Pure.

A row: `code`, `meaning`, `severity`, `scope`, `repair`; it is a fault after it was seen for `after` seconds and at
`looks` looks in a row, and is over when it was not seen for `clears_after` seconds; `clears`, `why` and `source` in
words; `prediction`: a sign of what may come, no fact. A counter: `name`, the `code` that `limit` of it or more
`within` seconds tell, and how it ends: it `saturates` at a number, or it `wraps` there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from typing import Any

from rlguard.errors import BadConfigError
from rlguard.health.faults import Fault
from rlguard.model import Repair, Scope, Severity


class Code(StrEnum):
    """Everything that can be wrong."""

    PORT_DOWN = "rdma-port-down"
    DEVICE_GONE = "rdma-device-gone"
    HUNG = "rdma-hung"
    PORTS_MISSING = "rdma-ports-missing"
    GID_LOST = "rdma-gid-lost"
    GID_CHANGED = "rdma-gid-changed"
    GID_MISSING = "rdma-gid-missing"
    FLAPPING = "rdma-link-flapping"
    RATE_LOW = "rdma-rate-low"
    BOND_DEGRADED = "rdma-bond-degraded"
    NO_SUBNET = "rdma-port-init"
    UNREADABLE = "rdma-port-unreadable"
    ERRORS = "rdma-errors-rising"
    RETRIES = "rdma-retries-rising"


@dataclass(frozen=True, slots=True)
class Row:
    """One code: how bad it is, when it is believed, when it is over (seconds)."""

    code: Code
    meaning: str
    severity: Severity
    scope: Scope
    repair: Repair
    after: float
    looks: int
    clears_after: float
    clears: str
    why: str
    source: str
    prediction: bool


@dataclass(frozen=True, slots=True)
class Rule:
    """One counter. `saturates`: it stays at that number; `wraps`: after the number before it comes 0. One is None."""

    name: str
    code: Code
    saturates: int | None
    wraps: int | None
    limit: int
    within: float
    source: str


@dataclass(frozen=True, slots=True)
class Table:
    """The whole table: a row for every code."""

    version: str
    rows: Mapping[Code, Row]
    rules: tuple[Rule, ...]

    def fault(self, code: Code, device: str, detail: str, *, spare: bool = False) -> Fault:
        """The fault, rated; `spare`: enough ports are left without this one, so that it costs no job."""
        row = self.rows[code]
        severity = Severity.WARNING if spare and row.severity is Severity.FATAL else row.severity
        words = f"{detail}; {row.meaning}" if detail else row.meaning
        return Fault(code.value, device, severity, row.scope, row.repair, words[:300])


def builtin() -> Table:
    """The table that comes with this version."""
    return parse(resources.files("rlguard.health").joinpath("data/rdma.json").read_text("utf-8"))


def parse(text: str) -> Table:
    """Read a table. Raises BadConfigError naming what is wrong."""
    try:
        raw = json.loads(text)
        rows = {row.code: row for row in map(_row, raw["rows"])}
        rules = tuple(map(_rule, raw["counters"]))
        version = str(raw["version"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadConfigError(f"the RDMA table cannot be read: {error!r:.300}") from error
    missing = [code.value for code in Code if code not in rows]
    if missing:
        raise BadConfigError(f"the RDMA table has no row for {', '.join(missing)}")
    return Table(version, rows, rules)


def _row(raw: Mapping[str, Any]) -> Row:
    return Row(
        code=Code(raw["code"]),
        meaning=str(raw["meaning"]),
        severity=Severity(raw["severity"]),
        scope=Scope(raw["scope"]),
        repair=Repair(raw["repair"]),
        after=_seconds(raw["after"]),
        looks=int(raw["looks"]),
        clears_after=_seconds(raw["clears_after"]),
        clears=str(raw["clears"]),
        why=str(raw["why"]),
        source=str(raw["source"]),
        prediction=raw.get("prediction", False) is True,
    )


def _rule(raw: Mapping[str, Any]) -> Rule:
    saturates, wraps = raw.get("saturates"), raw.get("wraps")
    if (saturates is None) == (wraps is None):
        raise ValueError(f"{raw['name']}: a counter either saturates or wraps")
    return Rule(
        name=str(raw["name"]),
        code=Code(raw["code"]),
        saturates=None if saturates is None else int(saturates),
        wraps=None if wraps is None else int(wraps),
        limit=int(raw["limit"]),
        within=_seconds(raw["within"]),
        source=str(raw["source"]),
    )


def _seconds(value: Any) -> float:
    seconds = float(value)
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"{value!r} is no number of seconds")
    return seconds
