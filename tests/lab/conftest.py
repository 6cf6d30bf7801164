"""The lab that lab tests run on: one for the whole session."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from rlguard_chaos import lab as labs
from rlguard_chaos.lab import layout

if TYPE_CHECKING:
    from collections.abc import Iterator

NODES = 3


@pytest.fixture(scope="session")
def machine() -> Iterator[None]:
    """A machine without a lab; with RLGUARD_LAB_REUSE=1 the one that runs is left, before and after."""
    reuse = os.environ.get("RLGUARD_LAB_REUSE") == "1"
    if not reuse:
        labs.down()
    yield
    if not reuse:
        labs.down()


@pytest.fixture
def lab(machine: None) -> labs.Lab:  # noqa: ARG001  # a fixture asks for another by its name
    """A running lab of three nodes, started for the first test that needs it and for one that follows a removal."""
    return labs.Lab() if layout.RECORD.exists() else labs.up(NODES)
