"""Staging and resuming in one process: what is kept, what comes back, and what never stops training."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
import subprocess
import sys
import timeit
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rlguard.train import pages

pytestmark = [pytest.mark.torch, pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")]

torch = pytest.importorskip("torch")
train = pytest.importorskip("rlguard.train")


def environment(shm: Path, **more: str) -> dict[str, str]:
    """Name a rank's environment, as a launcher and torchrun set it."""
    return {"RLGUARD_SHM": str(shm), "RLGUARD_INCARNATION": "3.1", **more}


def resume(shm: Path, slot: int | None, directory: Path | None, **more: str) -> dict[str, str]:
    """Name the environment of the next incarnation, told to resume step 2."""
    named = {"checkpoint": "2@3.1", "slot": slot, "directory": directory and str(directory)}
    return {**environment(shm, RLGUARD_RESUME=json.dumps(named), **more), "RLGUARD_INCARNATION": "3.2"}


class Loop:
    """A model of two types, its optimizer, a scheduler and counters, in a training loop."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7), torch.nn.Linear(7, 1))
        self.model[2].to(torch.bfloat16)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.9)
        self.counters = {"samples": 0}
        self.parts = {
            "model": self.model,
            "optimizer": self.optimizer,
            "schedule": self.schedule,
            "rng": train.Rng(),
            "counters": self.counters,
        }

    def step(self) -> None:
        """Train on random data."""
        self.optimizer.zero_grad()
        hidden = self.model[:2](torch.randn(4, 5))
        self.model[2](hidden.to(torch.bfloat16)).float().pow(2).sum().backward()
        self.optimizer.step()
        self.schedule.step()
        self.counters["samples"] += 4
        random.random()  # noqa: S311 # moves the state that must be kept

    def state(self) -> dict[str, Any]:
        """Take everything that decides how the loop goes on."""
        kept = [self.model.state_dict(), self.optimizer.state_dict(), self.schedule.state_dict(), self.counters]
        return copy.deepcopy({"kept": kept, "torch": torch.get_rng_state(), "python": random.getstate()})


def equal(one: Any, other: Any) -> bool:
    """Compare nested values, tensors bit for bit and type for type."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def order(shm: Path, number: int, step: int, slot: int = 0, incarnation: str = "3.1") -> None:
    """Write the sidecar's order."""
    writer = pages.ControlWriter(shm)
    writer.write(pages.ControlPage(incarnation, number, step, slot))
    writer.close()


def page(shm: Path, local_rank: int = 0) -> pages.RankPage:
    """Read what the rank says."""
    read = pages.read_rank(shm, local_rank)
    assert read is not None
    return read


def two_steps(shm: Path, **more: str) -> tuple[Loop, Any]:
    """Train two steps and stage the second one in slot 0."""
    loop = Loop()
    guard = train.Guard(loop.parts, environment(shm, **more))
    order(shm, 1, 2)
    for step in (1, 2):
        loop.step()
        guard.step(step)
    assert page(shm).result == pages.StageResult.STAGED
    return loop, guard


def test_without_a_sidecar_every_call_does_nothing() -> None:
    """Plain torchrun, the package importable."""
    guard = train.Guard(Loop().parts, {})
    assert guard.resume() == 0
    guard.step(1)
    assert not guard.finished
    guard.close()
    assert guard.finished


def test_the_page_tells_steps_an_end_and_a_bad_loss(tmp_path: Path) -> None:
    """From the first moment on."""
    guard = train.Guard(
        Loop().parts, environment(tmp_path, RANK="3", WORLD_SIZE="4", LOCAL_RANK="1", LOCAL_WORLD_SIZE="2")
    )
    first = page(tmp_path, 1)
    assert (first.rank, first.world_size, first.local_world_size, first.pid) == (3, 4, 2, os.getpid())
    assert (first.step, first.reshardable, first.incarnation) == (-1, True, "3.1")
    guard.step(5)
    assert page(tmp_path, 1).step == 5
    assert page(tmp_path, 1).heartbeat_ns > first.heartbeat_ns
    guard.step(6, nan=True)
    guard.close()
    assert (page(tmp_path, 1).step, page(tmp_path, 1).nan, page(tmp_path, 1).finished) == (6, True, True)


def test_a_resumed_loop_goes_on_bit_for_bit(tmp_path: Path) -> None:
    """From a slot, into a process that began with other numbers."""
    loop, _ = two_steps(tmp_path)
    at_two = loop.state()
    for _ in range(3):
        loop.step()
    at_five = loop.state()

    other = Loop(seed=9)
    guard = train.Guard(other.parts, resume(tmp_path, 0, None))
    assert guard.resume() == 2
    assert equal(other.state(), at_two)
    for _ in range(3):
        other.step()
    assert equal(other.state(), at_five)
    assert page(tmp_path).step == 2


def test_staging_changes_nothing_in_the_loop(tmp_path: Path) -> None:
    """Nor does it create optimizer state before the first step."""
    loop = Loop()
    guard = train.Guard(loop.parts, environment(tmp_path))
    before = loop.state()
    order(tmp_path, 1, 0)
    guard.step(0)
    assert page(tmp_path).result == pages.StageResult.STAGED
    assert equal(loop.state(), before)


def test_a_later_stage_overwrites_values_in_place(tmp_path: Path) -> None:
    """No file is made anew, and the header counts."""
    loop, guard = two_steps(tmp_path)
    slot = pages.slot_path(tmp_path, 0, 0)
    before = (slot / "__0_0.distcp").stat()
    loop.step()
    order(tmp_path, 2, 3)
    guard.step(3)
    after = (slot / "__0_0.distcp").stat()
    assert (after.st_ino, after.st_size) == (before.st_ino, before.st_size)
    assert pages.read_header(slot) == pages.SlotHeader("3.1", 3, 2, dirty=False)
    now = loop.state()
    shutil.copytree(slot, tmp_path / "copy")
    other = Loop(seed=9)
    text = resume(tmp_path, None, tmp_path / "copy")
    text["RLGUARD_RESUME"] = text["RLGUARD_RESUME"].replace("2@", "3@")
    assert train.Guard(other.parts, text).resume() == 3
    assert equal(other.state(), now)


STOCK = """
import sys, torch, torch.distributed.checkpoint as dcp
assert "rlguard" not in sys.modules
model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7), torch.nn.Linear(7, 1))
model[2].to(torch.bfloat16)
state = {"model": model.state_dict(), "optimizer": {"state": {"0.weight": {"exp_avg": torch.zeros(7, 5)}}}}
dcp.load(state, checkpoint_id=sys.argv[1])
torch.save(state, sys.argv[2])
"""


def test_stock_pytorch_loads_what_was_staged_where_rlguard_is_not(tmp_path: Path) -> None:
    """Model and optimizer, by the names that its own tools use."""
    loop, guard = two_steps(tmp_path)
    loop.step()
    order(tmp_path, 2, 3)
    guard.step(3)
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    folder, result = pages.slot_path(tmp_path, 0, 0), tmp_path / "loaded.pt"
    subprocess.run([sys.executable, "-W", "ignore", "-c", STOCK, folder, result], env=plain, check=True, cwd=tmp_path)
    loaded = torch.load(result)
    assert equal(dict(loaded["model"]), dict(loop.model.state_dict()))
    weight = loop.model[0].weight
    assert equal(loaded["optimizer"]["state"]["0.weight"]["exp_avg"], loop.optimizer.state[weight]["exp_avg"])


def test_the_file_list_says_which_rank_writes_what(tmp_path: Path) -> None:
    """The node's first rank writes the tensors, the others only what is theirs."""
    two_steps(tmp_path)
    files = {file.name: file for file in pages.read_files_json(pages.slot_path(tmp_path, 0, 0))}
    assert {name for name, file in files.items() if file.shared} == {".metadata", "__0_0.distcp"}
    assert set(files) == {".metadata", "__0_0.distcp", "objects-0.pt"}
    second = train.Guard(Loop().parts, environment(tmp_path, RANK="1", LOCAL_RANK="1", WORLD_SIZE="2"))
    second.step(2)
    assert [f.name for f in pages.read_files_json(pages.slot_path(tmp_path, 1, 0))] == ["objects-1.pt"]


def test_a_rank_beyond_the_step_says_so_and_one_before_it_waits(tmp_path: Path) -> None:
    """Nothing is staged at another step than the ordered one."""
    guard = train.Guard(Loop().parts, environment(tmp_path))
    order(tmp_path, 1, 5)
    guard.step(4)
    assert page(tmp_path).order == 0
    guard.step(6)
    assert (page(tmp_path).order, page(tmp_path).result) == (1, pages.StageResult.PAST)
    assert not pages.slot_path(tmp_path, 0, 0).exists()


def test_an_order_of_another_incarnation_is_ignored_until_ours_comes(tmp_path: Path) -> None:
    """Even when it has the same number."""
    guard = train.Guard(Loop().parts, environment(tmp_path))
    order(tmp_path, 1, 5, incarnation="3.0")
    guard.step(5)
    assert page(tmp_path).order == 0
    order(tmp_path, 1, 6)
    guard.step(6)
    assert (page(tmp_path).order, page(tmp_path).result) == (1, pages.StageResult.STAGED)


def test_a_failed_stage_is_told_and_training_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, a dirty slot, and the next stage works."""
    loop = Loop()
    loop.counters["samples"] = lambda: None  # type: ignore[assignment] # what pickle refuses
    guard = train.Guard(loop.parts, environment(tmp_path))
    order(tmp_path, 1, 1)
    guard.step(1)
    assert page(tmp_path).result == pages.StageResult.FAILED
    assert capsys.readouterr().err.count("staging step 1 failed") == 1
    loop.counters["samples"] = 0
    order(tmp_path, 2, 2)
    guard.step(2)
    assert page(tmp_path).result == pages.StageResult.STAGED


def test_a_stage_without_room_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A full Memory volume gets its pod evicted: never try."""
    full = os.statvfs_result((4096, 4096, 100, 0, 0, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _path: full)
    guard = train.Guard(Loop().parts, environment(tmp_path))
    order(tmp_path, 1, 1)
    guard.step(1)
    assert page(tmp_path).result == pages.StageResult.SKIPPED
    assert "more room" in capsys.readouterr().err


def test_a_half_written_slot_is_never_loaded(tmp_path: Path) -> None:
    """The process ends, and names the place; no other step is taken."""
    two_steps(tmp_path)
    slot = pages.slot_path(tmp_path, 0, 0)
    writer = pages.HeaderWriter(slot)
    writer.write(pages.SlotHeader("3.1", 2, 2, dirty=True))
    writer.close()
    loop = Loop(seed=9)
    before = loop.state()
    with pytest.raises(SystemExit, match=r"cannot resume from 2@3.1.*slot-0-0: holds half-written 2@3\.1"):
        train.Guard(loop.parts, resume(tmp_path, 0, None)).resume()
    assert equal(loop.state(), before)


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata", "objects-0.pt"])
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_damaged_folder_ends_the_process_and_is_named(tmp_path: Path, name: str, damage: str) -> None:
    """Never a traceback, never step 0."""
    two_steps(tmp_path)
    folder = shutil.copytree(pages.slot_path(tmp_path, 0, 0), tmp_path / "steps")
    if damage == "gone":
        (folder / name).unlink()
    else:
        os.truncate(folder / name, (folder / name).stat().st_size // 2)
    with pytest.raises(SystemExit, match=r"cannot resume from 2@3\.1.*steps"):
        train.Guard(Loop().parts, resume(tmp_path, None, folder)).resume()


def test_the_same_step_may_come_from_the_folder_when_the_slot_is_lost(tmp_path: Path) -> None:
    """Another place, never another step."""
    loop, _ = two_steps(tmp_path)
    state = loop.state()
    folder = shutil.copytree(pages.slot_path(tmp_path, 0, 0), tmp_path / "steps")
    shutil.rmtree(pages.slot_path(tmp_path, 0, 0))
    other = Loop(seed=9)
    assert train.Guard(other.parts, resume(tmp_path, 0, folder)).resume() == 2
    assert equal(other.state(), state)


def test_a_rank_that_the_old_world_had_not_takes_what_all_ranks_share(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights, optimizer, schedule and counters; its random numbers are its own, and one line says so."""
    loop, _ = two_steps(tmp_path)
    state = loop.state()
    folder = shutil.copytree(pages.slot_path(tmp_path, 0, 0), tmp_path / "steps")
    other = Loop(seed=9)
    own = torch.get_rng_state()
    grown = resume(tmp_path, None, folder, RANK="1", WORLD_SIZE="2", LOCAL_RANK="1")
    assert train.Guard(other.parts, grown).resume() == 2
    assert equal(other.state()["kept"], state["kept"])
    assert torch.equal(torch.get_rng_state(), own)
    assert "started fresh, as this rank is new: rng" in capsys.readouterr().err


def test_a_missing_rank_of_a_world_of_the_same_size_is_an_error(tmp_path: Path) -> None:
    """A file was lost: going on with fresh numbers would hide it."""
    two_steps(tmp_path, WORLD_SIZE="2")
    folder = shutil.copytree(pages.slot_path(tmp_path, 0, 0), tmp_path / "steps")
    with pytest.raises(SystemExit, match=r"no objects-1\.pt"):
        train.Guard(Loop().parts, resume(tmp_path, None, folder, RANK="1", WORLD_SIZE="2")).resume()


@pytest.mark.parametrize("text", ["{", "7", "{}", '{"checkpoint": "x@y"}', '{"checkpoint": "2@3.1"}'])
def test_an_order_to_resume_that_is_none_ends_the_process(tmp_path: Path, text: str) -> None:
    """Starting at step 0 instead would lose the job's history."""
    with pytest.raises(SystemExit, match="rlguard: "):
        train.Guard(Loop().parts, environment(tmp_path, RLGUARD_RESUME=text)).resume()


def test_an_order_to_resume_without_its_memory_folder_ends_the_process(tmp_path: Path) -> None:
    """Not a plain run from step 0."""
    with pytest.raises(SystemExit, match="names nothing here"):
        train.Guard(Loop().parts, resume(tmp_path / "none", 0, None)).resume()


def test_what_cannot_be_kept_is_refused_by_name(tmp_path: Path) -> None:
    """At the start, not at the first crash."""
    with pytest.raises(TypeError, match="'steps' is a int"):
        train.Guard({"steps": 3}, environment(tmp_path))
    model = torch.nn.Linear(1, 1)
    model.weight.full_tensor = lambda: None  # as a DTensor has it
    with pytest.raises(TypeError, match="'model' is sharded"):
        train.Guard({"model": model}, environment(tmp_path))


def test_a_step_with_nothing_due_costs_microseconds(tmp_path: Path) -> None:
    """No system call but the clock's; the bound leaves room for a busy machine."""
    guard = train.Guard(Loop().parts, environment(tmp_path))
    order(tmp_path, 1, 5)
    guard.step(6)
    assert min(timeit.repeat(lambda: guard.step(7), number=10_000, repeat=5)) / 10_000 < 10e-6
