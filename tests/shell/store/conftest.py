"""A store on a real folder, with waits that take no time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from storekit import QuickFiles

from rlguard.io.store import Store

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def files() -> QuickFiles:
    return QuickFiles()


@pytest.fixture
def store(tmp_path: Path, files: QuickFiles) -> Store:
    return Store(tmp_path / "root", files)
