"""Others who act on this machine's Node: told, so that the controller steps back. Pure.

`data/remediators.json`, versioned, each row with its source: `where` (taints, labels or annotations) a `key`, or all
that begin with it (`prefix`), stands; `unless` its value is one of those. The fault is `remediator-<name>`, INFO: that
another looks after the node is nothing wrong with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

from rlguard.errors import BadConfigError
from rlguard.health.faults import NODE, Fault
from rlguard.model import Repair, Scope, Severity

PREFIX: Final = "remediator-"
PLACES: Final = ("taints", "labels", "annotations")
_MOST_MARKS: Final = 1000


@dataclass(frozen=True, slots=True)
class Row:
    """One mark by which another is known."""

    name: str
    where: str
    key: str
    prefix: bool
    unless: frozenset[str]
    does: str
    clears: str
    source: str

    def fits(self, key: str, value: str) -> bool:
        """Whether a mark on the Node is this one."""
        named = key.startswith(self.key) if self.prefix else key == self.key
        return named and value not in self.unless


def parse(text: str) -> tuple[Row, ...]:
    """Read the table. Raises BadConfigError."""
    try:
        return tuple(_row(raw) for raw in json.loads(text)["rows"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadConfigError(f"the table of remediators cannot be read: {error!r}") from error


def _row(raw: Mapping[str, Any]) -> Row:
    if raw["where"] not in PLACES:
        raise BadConfigError(f"the table of remediators has a bad row: {raw!r:.200}")
    return Row(
        name=str(raw["name"]),
        where=str(raw["where"]),
        key=str(raw["key"]),
        prefix=bool(raw.get("prefix", False)),
        unless=frozenset(map(str, raw.get("unless", ()))),
        does=str(raw["does"]),
        clears=str(raw["clears"]),
        source=str(raw["source"]),
    )


BUILTIN: Final = parse(resources.files("rlguard.health").joinpath("data/remediators.json").read_text("utf-8"))
"""The table that comes with this version."""


def acting_on(node: Mapping[str, Any], rows: tuple[Row, ...] = BUILTIN) -> tuple[Fault, ...]:
    """Who acts on a Node (as JSON, whatever it holds). Never raises."""
    marks = {place: _marks(node, place) for place in PLACES}
    found = (
        Fault(PREFIX + row.name, NODE, Severity.INFO, Scope.NODE, Repair.NONE, f"{row.does} ({row.where}: {key})"[:300])
        for row in reversed(rows)
        for key, value in marks[row.where]
        if row.fits(key, value)
    )
    return tuple({fault.code: fault for fault in found}.values())


def taint_keys(node: Mapping[str, Any]) -> frozenset[str]:
    """The keys of a Node's taints."""
    return frozenset(key for key, _ in _marks(node, "taints"))


def _marks(node: Mapping[str, Any], place: str) -> list[tuple[str, str]]:
    part = node.get("spec" if place == "taints" else "metadata")
    marks = part.get(place) if isinstance(part, dict) else None
    if place != "taints":
        pairs = list(marks.items()) if isinstance(marks, dict) else []
    else:
        pairs = [_taint(raw) for raw in marks] if isinstance(marks, list) else []
    return [(key, str(value)) for key, value in pairs[:_MOST_MARKS] if isinstance(key, str) and key]


def _taint(raw: Any) -> tuple[Any, Any]:
    return (raw.get("key"), raw.get("value") or "") if isinstance(raw, dict) else (None, "")
