"""Every code that an agent may tell, for people: the fault tables, and those of GPUs, RDMA ports and file systems."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from rlguard.health import gputable, storage
from rlguard.health.catalogue import Catalogue, Row
from rlguard.health.faults import Clears, Until
from rlguard.health.rdma import table as rdma

WHILE_SEEN: Final = Clears(Until.SEEN)


@dataclass(frozen=True, slots=True)
class Codes:
    """All rows in one catalogue, and the words for what ends those of the other tables."""

    catalogue: Catalogue
    ends: Mapping[str, str]


def all_codes(catalogue: Catalogue) -> Codes:
    """The catalogue, and beside it what no kernel line tells. A row of the catalogue goes first."""
    others = list(_others())
    rows = {row.code: row for row, _ in reversed(others)}
    ends = {row.code: words for row, words in reversed(others) if row.code not in catalogue.rows}
    return Codes(Catalogue(catalogue.version, {**rows, **catalogue.rows}), ends)


def _others() -> Iterator[tuple[Row, str]]:
    for port in rdma.builtin().rows.values():
        yield _row(port.code.value, port, port.meaning), port.clears
    for sign in gputable.builtin_signs().rows.values():
        yield _row(sign.fault, sign, f"{sign.meaning}; {sign.advice}"), sign.clears
    for code, rating in storage.builtin().rows.items():
        yield _row(code, rating, f"a shared file system {rating.meaning}"), rating.clears


def _row(code: str, told: rdma.Row | gputable.SignRow | storage.Rating, meaning: str) -> Row:
    return Row(code, meaning, (told.severity, told.scope, told.repair), WHILE_SEEN, told.source)
