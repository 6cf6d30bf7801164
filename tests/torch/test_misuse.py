"""A training loop that uses the Guard wrongly, or runs where it cannot work, goes on or hears what is wrong."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rlguard.train import pages

pytestmark = [pytest.mark.torch, pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")]

torch = pytest.importorskip("torch")
train = pytest.importorskip("rlguard.train")


def environment(shm: Path) -> dict[str, str]:
    """What the launcher and torchrun set for one rank."""
    return {"RLGUARD_SHM": str(shm), "RLGUARD_INCARNATION": "3.1"}


def page(shm: Path) -> pages.RankPage:
    """Read what the rank says."""
    read = pages.read_rank(shm, 0)
    assert read is not None
    return read


@pytest.mark.parametrize("step", [1.5, "7", None, -1, 2**70])
def test_a_step_that_is_no_count_is_refused_and_the_page_stays_readable(tmp_path: Path, step: Any) -> None:
    one = train.Guard({"m": torch.nn.Linear(2, 2)}, environment(tmp_path))
    one.step(3)
    with pytest.raises((TypeError, ValueError)):
        one.step(step)
    assert page(tmp_path).step == 3


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "RLGUARD_INCARNATION"])
@pytest.mark.parametrize("value", ["x", "-1", " ", "../../x", "9" * 40])
def test_an_environment_that_cannot_be_is_said_and_training_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, value: str
) -> None:
    one = train.Guard({"m": torch.nn.Linear(2, 2)}, {**environment(tmp_path), name: value})
    one.step(1)
    one.close()
    assert "no heartbeat and no staging" in capsys.readouterr().err


def test_a_control_page_that_cannot_be_opened_is_said_and_training_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = train.Guard({"m": torch.nn.Linear(2, 2)}, environment(tmp_path))
    (tmp_path / "control").mkdir()
    one.step(1)
    assert "cannot look" in capsys.readouterr().err


def test_a_second_guard_takes_the_place_of_the_first_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = train.Guard({"m": torch.nn.Linear(2, 2)}, environment(tmp_path))
    second = train.Guard({"m": torch.nn.Linear(2, 2)}, environment(tmp_path))
    assert "second Guard" in capsys.readouterr().err
    second.step(5)
    first.step(9)
    first.close()
    assert (page(tmp_path).step, page(tmp_path).finished) == (5, False)


def test_a_forked_child_with_a_copy_says_nothing_for_its_parent(tmp_path: Path) -> None:
    one = train.Guard({"m": torch.nn.Linear(2, 2)}, environment(tmp_path))
    one.step(5)
    child = os.fork()
    if child == 0:
        one.step(9)
        one.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert (page(tmp_path).step, page(tmp_path).finished) == (5, False)
