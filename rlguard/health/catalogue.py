"""What each fault that the kernel log tells means, how bad it is, what mends and what ends it. Pure.

The tables are `data/xid.json`, `data/sxid.json` and `data/lines.json`, versioned, each row with its source; and
`data/other.json`, which describes for people what other sources tell and rate by themselves. A row:
code, meaning, severity, scope, repair, clears, source; `nonfatal`, `fatal`: the severity where the line has that word;
`actions`: for Xid 154, severity, scope and repair for each number of NVML's recovery action; `ends`: codes of the same
device that this line takes back; `follows`: codes that this one is a consequence of; `needs_good`: counts only after
a line that would end it. Codes of the first two tables are numbers there, `xid-79` and `sxid-20034` everywhere else.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

from rlguard.errors import BadConfigError
from rlguard.health.faults import Clears, Ended, Fault, Named, Sighting, Until
from rlguard.health.lines import dispatch, nvidia
from rlguard.health.lines.line import Line
from rlguard.health.xid import Xid, read_xid, recovery_action, says_fatal, says_nonfatal
from rlguard.model import Repair, Scope, Severity

Rating = tuple[Severity, Scope, Repair]
LineFacts = tuple[Sighting | Ended | Named, ...]
LINE_TABLES: Final = ("xid.json", "sxid.json", "lines.json")
OTHER_TABLE: Final = "other.json"
NO_ACTION: Final = 0
"""NVML's number for "nothing has to be done about this GPU"."""
RECOVERY: Final = "xid-154"
UNLISTED_CLEARS: Final = Clears(Until.QUIET, 86400.0)


@dataclass(frozen=True, slots=True)
class Row:
    """One code of the tables."""

    code: str
    meaning: str
    rating: Rating
    clears: Clears
    source: str
    nonfatal: Severity | None = None
    fatal: Severity | None = None
    actions: Mapping[int, Rating] = dataclasses.field(default_factory=dict)
    ends: tuple[str, ...] = ()
    follows: tuple[str, ...] = ()
    needs_good: bool = False


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All tables."""

    version: str
    rows: Mapping[str, Row]

    def row(self, code: str) -> Row:
        """The row of a code; one that nobody has described is told, and nothing is done about it."""
        return self.rows.get(code) or _unlisted(code)

    def fault(self, xid: Xid) -> Fault:
        """The fault that an Xid tells, rated."""
        return self._rated(nvidia.line_of(xid))

    def read(self, text: str) -> Fault | None:
        """The Xid in a kernel line as a fault, None if it tells none. Never raises."""
        xid = read_xid(text)
        return None if xid is None else self.fault(xid)

    def read_line(self, text: str, count: int = 1) -> LineFacts:
        """All that a kernel line, seen `count` times, tells: a fault and what it ends, or a name. Never raises."""
        line = dispatch.read(text)
        if line is not None:
            return self.rate(line, count)
        introduced = nvidia.read_introduction(text)
        return () if introduced is None else (Named(*introduced),)

    def rate(self, line: Line, count: int = 1) -> LineFacts:
        """What a line means."""
        ended = tuple(Ended(code, line.device) for code in self._ends(line))
        return (Sighting(self._rated(line), count, line.process), *ended)

    def _ends(self, line: Line) -> tuple[str, ...]:
        if line.code == RECOVERY:
            return (RECOVERY, "") if recovery_action(line.text) == NO_ACTION else ()
        return self.row(line.code).ends

    def _rated(self, line: Line) -> Fault:
        row = self.row(line.code)
        severity, scope, repair = _rate(row, line.text)
        return Fault(
            line.code,
            line.device,
            severity,
            scope,
            repair,
            f"{_title(line.code)} ({row.meaning}{_blamed(line.text)}): {line.text}",
            clears=row.clears,
            follows=row.follows,
            needs_good=row.needs_good,
        )


def builtin(override: str | None = None) -> Catalogue:
    """The tables that come with this version, with a user's own rows over them. Raises BadConfigError."""
    return from_files((*LINE_TABLES, OTHER_TABLE), override)


def from_files(names: Iterable[str], override: str | None = None) -> Catalogue:
    """Some of the tables that come with this version."""
    folder = resources.files("rlguard.health").joinpath("data")
    return parse([folder.joinpath(name).read_text("utf-8") for name in names], override)


def parse(texts: Iterable[str], override: str | None = None) -> Catalogue:
    """Read tables. Raises BadConfigError naming the row that is wrong.

    `override` has the form of a table and may have rows of any of them (`{"code": "xid-63", "severity": "info"}`): of a
    code that the tables know only what differs, of another code the whole row.
    """
    raws: dict[str, dict[str, Any]] = {}
    versions = []
    for text in (*texts, *([] if override is None else [override])):
        version, rows = _read_table(text)
        versions.append(version)
        for code, raw in rows.items():
            raws[code] = {**raws.get(code, {}), **raw}
    return Catalogue("+".join(versions), {code: _row(code, raw) for code, raw in raws.items()})


def _read_table(text: str) -> tuple[str, dict[str, Mapping[str, Any]]]:
    try:
        table = json.loads(text)
        prefix = str(table.get("prefix", ""))
        return str(table["version"]), {f"{prefix}{raw['code']}": dict(raw) for raw in table["rows"]}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        form = '{"version": "...", "rows": [{"code": "...", ...}, ...]}'
        raise BadConfigError(f"the fault table cannot be read: {error!r:.200}, expected {form}") from error


def _row(code: str, raw: Mapping[str, Any]) -> Row:
    try:
        return Row(
            code=code,
            meaning=str(raw["meaning"]),
            rating=_rating(raw["severity"], raw["scope"], raw["repair"]),
            clears=Clears.parse(raw["clears"]),
            source=str(raw["source"]),
            nonfatal=_severity(raw.get("nonfatal")),
            fatal=_severity(raw.get("fatal")),
            actions={int(number): _rating(*rating) for number, rating in raw.get("actions", {}).items()},
            ends=_codes(raw.get("ends", [])),
            follows=_codes(raw.get("follows", [])),
            needs_good=raw.get("needs_good", False) is True,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadConfigError(f"the fault table has a bad row, {code!r:.40} {raw!r:.200}: {error!r}") from error


def _rating(severity: str, scope: str, repair: str) -> Rating:
    return Severity(severity), Scope(scope), Repair(repair)


def _severity(word: str | None) -> Severity | None:
    return None if word is None else Severity(word)


def _codes(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(code, str) for code in value):
        raise ValueError(f"not a list of codes: {value!r:.80}")
    return tuple(value)


def _unlisted(code: str) -> Row:
    scope = Scope.NVSWITCH if code.startswith("sxid-") else Scope.GPU if code.startswith("xid-") else Scope.NODE
    meaning = "a code that the catalogue does not list"
    return Row(code, meaning, (Severity.WARNING, scope, Repair.NONE), UNLISTED_CLEARS, "none")


def _title(code: str) -> str:
    family, dash, number = code.partition("-")
    return f"{'Xid' if family == 'xid' else 'SXid'} {number}" if dash and family in ("xid", "sxid") else code


def _blamed(text: str) -> str:
    link = nvidia.read_nvlink(text)
    return ", the device at the other end of the link is to blame" if link is not None and link.blames_peer else ""


def _rate(row: Row, text: str) -> Rating:
    severity, scope, repair = row.actions.get(recovery_action(text) or NO_ACTION, row.rating)
    if row.nonfatal is not None and says_nonfatal(text):
        severity = row.nonfatal
    elif row.fatal is not None and says_fatal(text):
        severity = row.fatal
    return (Severity.INFO, scope, Repair.NONE) if _says_nothing_new(text) else (severity, scope, repair)


def _says_nothing_new(text: str) -> bool:
    """What the driver itself calls the consequence of another Xid, or is a mere rate of bit errors."""
    link = nvidia.read_nvlink(text)
    return nvidia.named_cause(text) is not None or (link is not None and link.is_error_rate)
