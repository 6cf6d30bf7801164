"""A look at a volume that hangs costs a bounded number of processes."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from rlguard_sidecar import rootcheck


@pytest.fixture
def hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A look that does not answer, and a file with a line for each one that was begun."""
    begun = tmp_path / "begun"
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\necho >> {begun}\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(rootcheck, "PATIENCE", 0.5)
    return begun


def looks(begun: Path) -> int:
    """How many were begun."""
    return len(begun.read_text()) if begun.exists() else 0


async def test_a_hung_look_is_killed_and_told(hangs: Path, tmp_path: Path) -> None:
    problem = await rootcheck.check(tmp_path)
    assert not rootcheck.is_there(problem)
    await asyncio.gather(*rootcheck._stuck)
    assert rootcheck._stuck == set()
    assert looks(hangs) == 1


async def test_looks_that_cannot_be_killed_are_not_piled_up(
    hangs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = [asyncio.create_task(asyncio.Event().wait()) for _ in range(rootcheck.MOST_STUCK)]
    monkeypatch.setattr(rootcheck, "_stuck", set(never))
    assert not rootcheck.is_there(await rootcheck.check(tmp_path))
    assert looks(hangs) == 0
    for task in never:
        task.cancel()
