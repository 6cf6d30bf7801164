"""The codes of all tables for people: those of the kernel log, and those that other sources rate. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Final

from rlguard.health import storage
from rlguard.health.catalogue import Catalogue, Row
from rlguard.health.faults import Clears, Until
from rlguard.health.gpu import table
from rlguard.health.rdma import table as rdma

SEEN: Final = Clears(Until.SEEN)


def with_every_code(catalogue: Catalogue) -> Catalogue:
    """The catalogue, and a row for each code of the sources that look again and again."""
    rows = {row.code: row for row in (*_gpu(), *_rdma(), *_storage())}
    return dataclasses.replace(catalogue, rows={**catalogue.rows, **rows})


def _gpu() -> Iterator[Row]:
    for row in table.builtin_signs().rows.values():
        yield Row(row.fault, row.meaning, (row.severity, row.scope, row.repair), SEEN, row.source)


def _rdma() -> Iterator[Row]:
    for row in rdma.builtin().rows.values():
        yield Row(row.code.value, row.meaning, (row.severity, row.scope, row.repair), SEEN, row.source)


def _storage() -> Iterator[Row]:
    for code, row in storage.builtin().rows.items():
        yield Row(code, row.meaning, (row.severity, row.scope, row.repair), SEEN, row.source)
