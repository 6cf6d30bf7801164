"""Whose lab it is: the demo takes its own away and leaves another's."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from rlguard.errors import BadConfigError
from rlguard_chaos import demo
from rlguard_chaos.demo import Options, run_demo


@pytest.mark.parametrize(("there", "keep", "removed"), [(False, False, 1), (True, False, 0), (False, True, 0)])
def test_a_demo_that_fails_removes_the_lab_unless_it_ran_before_or_is_to_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, there: bool, keep: bool, removed: int
) -> None:
    """A start that fails is the shortest demo."""
    calls: list[str] = []

    def up(*_: object, **__: object) -> None:
        calls.append("up")
        raise BadConfigError("no lab can run here")

    monkeypatch.setattr(demo.lab, "is_up", lambda: there)
    monkeypatch.setattr(demo.lab, "up", up)
    monkeypatch.setattr(demo.lab, "down", lambda *_: calls.append("down"))
    with pytest.raises(BadConfigError):
        run_demo(Console(quiet=True), Options(tmp_path, tmp_path, tmp_path, keep=keep))
    assert calls == ["up"] + ["down"] * removed
