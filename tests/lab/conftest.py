"""The lab that lab tests run on: one for the whole session."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from rlguard_chaos import lab as labs

if TYPE_CHECKING:
    from collections.abc import Iterator

NODES = 3


@pytest.fixture(scope="session")
def lab() -> Iterator[labs.Lab]:
    """A running lab of three nodes; with RLGUARD_LAB_REUSE=1 the one that runs already, and it is left running."""
    if os.environ.get("RLGUARD_LAB_REUSE") == "1":
        yield labs.up(NODES)
        return
    labs.down()
    try:
        yield labs.up(NODES)
    finally:
        labs.down()
