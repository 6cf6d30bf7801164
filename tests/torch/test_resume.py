"""A killed and resumed job ends in the very state of an undisturbed one."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from fake_sidecar import REPO, FakeSidecar

from rlguard.train import pages

pytestmark = [
    pytest.mark.torch,
    pytest.mark.timeout(240),
    pytest.mark.skipif(find_spec("torch") is None, reason="needs torch"),
]

TORCHRUN = str(Path(sys.executable).with_name("torchrun"))
SCRIPT = str(REPO / "examples" / "ppo" / "train.py")
STEPS = 12
SHORT = ["--steps", str(STEPS), "--envs", "3", "--horizon", "32"]


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def world(nodes: int, node: int, port: int) -> dict[str, Any]:
    """Name a world on this machine."""
    return {"nnodes": nodes, "node_rank": node, "master_addr": "127.0.0.1", "master_port": port}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Hashes of both ranks of a run under plain torchrun, with no rlguard to import."""
    digest = tmp_path_factory.mktemp("undisturbed") / "digest"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [TORCHRUN, "--nproc_per_node=2", f"--master_port={free_port()}", SCRIPT, *SHORT, "--digest", str(digest)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=digest.parent)
    assert result.returncode == 0, result.stderr[-2000:]
    assert "running without rlguard" in result.stdout
    return digests(digest)


def digests(digest: Path) -> list[str]:
    """Read both ranks' hashes."""
    return [digest.with_name(f"{digest.name}.rank{rank}").read_text() for rank in range(2)]


class Job:
    """Two nodes, each a launcher with one rank of the example."""

    def __init__(self, home: Path) -> None:
        self.digest = home / "digest"
        # The user's own flags ask for a rendezvous that does not exist: the hook must replace them.
        flags = ["--nnodes=2", "--nproc_per_node=1", "--rdzv_backend=c10d", "--rdzv_endpoint=nowhere.invalid:29500"]
        pace = ["--min-step-seconds", "0.15", "--digest", str(self.digest)]
        self.nodes = [FakeSidecar(home / f"node{i}", [TORCHRUN, *flags, SCRIPT, *SHORT, *pace]) for i in range(2)]

    def start(self, incarnation: str, resume: dict[str, Any] | None = None) -> None:
        """Start both nodes."""
        port = free_port()
        for index, node in enumerate(self.nodes):
            own = resume and {**resume, "memory": str(node.shm)}
            node.start(incarnation, world(2, index, port), own)

    def page(self, index: int, incarnation: str) -> pages.RankPage | None:
        """Read a rank's page of this incarnation."""
        page = pages.read_rank(self.nodes[index].shm, 0)
        return page if page and page.incarnation == incarnation else None

    def wait(self, incarnation: str, what: str, **expected: Any) -> None:
        """Until both ranks' pages show all of `expected` (a step: at least that)."""
        end = time.monotonic() + 120
        while time.monotonic() < end:
            seen = [self.page(index, incarnation) for index in range(2)]
            if all(page and _matches(page, expected) for page in seen):
                return
            time.sleep(0.01)
        raise AssertionError(f"never {what}: {seen}\n{self.nodes[0].log.read_text()[-3000:]}")

    def kill(self, index: int, incarnation: str) -> None:
        """Kill a rank."""
        page = self.page(index, incarnation)
        assert page is not None
        os.kill(page.pid, signal.SIGKILL)

    def finish(self) -> list[str]:
        """Wait for the end of both; returns their hashes."""
        for node in self.nodes:
            assert node.until("exited", seconds=90, incarnation="3.2")["code"] == 0, node.log.read_text()[-3000:]
        return digests(self.digest)

    def close(self) -> None:
        """Take both down."""
        for node in self.nodes:
            node.close()


def _matches(page: pages.RankPage, expected: dict[str, Any]) -> bool:
    wanted = dict(expected)
    step = wanted.pop("step", -1)
    return page.step >= step and all(getattr(page, name) == value for name, value in wanted.items())


@pytest.fixture
def job(tmp_path: Path) -> Any:
    """Make a job, and take it down."""
    made = Job(tmp_path)
    yield made
    made.close()


def staged_then_killed(job: Job, seed: int) -> int:
    """Run 3.1, have two steps staged one after the other, kill a rank later; returns the second step."""
    chance = random.Random(seed)  # noqa: S311 # a test's luck
    job.start("3.1")
    job.wait("3.1", "at step 1", step=1)
    step = 0
    for order in (1, 2):
        seen = [job.page(index, "3.1") for index in range(2)]
        step = max(page.step for page in seen if page) + 2
        for node in job.nodes:
            node.stage("3.1", order, step, order - 1)
        job.wait("3.1", f"staged {step}", order=order, stage_step=step, result=pages.StageResult.STAGED)
    job.wait("3.1", "on its way", step=step + chance.randrange(2))
    job.kill(chance.randrange(2), "3.1")
    for node in job.nodes:
        node.until("stopping", "exited")
        node.order({"type": "stop", "incarnation": "3.1", "grace_s": 0.5})
        node.until("exited", "gone")
    return step


@pytest.mark.parametrize("seed", [1, 2])
def test_resumed_from_memory_is_bit_equal(job: Job, undisturbed: list[str], seed: int) -> None:
    """A rank killed, both ranks started again from their pods' memory."""
    step = staged_then_killed(job, seed)
    job.start("3.2", {"checkpoint": f"{step}@3.1", "slot": 1, "directory": None})
    assert job.finish() == undisturbed
    assert f"resumed {step}@3.1 from memory slot 1" in job.nodes[0].log.read_text()


def test_resumed_from_a_folder_is_bit_equal(job: Job, undisturbed: list[str], tmp_path: Path) -> None:
    """The same, with the slots carried into a folder and then lost."""
    step = staged_then_killed(job, 3)
    folder = tmp_path / "steps" / f"{step}@3.1"
    folder.mkdir(parents=True)
    for index, node in enumerate(job.nodes):
        slot = pages.slot_path(node.shm, 0, 1)
        for file in pages.read_files_json(slot):
            assert (slot / file.name).stat().st_size == file.size
            if index == 0 or not file.shared:
                shutil.copyfile(slot / file.name, folder / file.name)
        shutil.rmtree(slot)
    job.start("3.2", {"checkpoint": f"{step}@3.1", "slot": None, "directory": str(folder)})
    assert job.finish() == undisturbed


def test_a_survivor_goes_on_alone_from_its_own_memory(job: Job) -> None:
    """The second node becomes the only one: weights as they were, its own environments, another world."""
    step = staged_then_killed(job, 4)
    survivor = job.nodes[1]
    resume = {"checkpoint": f"{step}@3.1", "slot": 1, "directory": None, "memory": str(survivor.shm)}
    survivor.start("3.2", world(1, 0, free_port()), resume)
    assert survivor.until("exited", seconds=90, incarnation="3.2")["code"] == 0
    output = survivor.log.read_text()
    assert f"rank 0: resumed {step}@3.1 from memory slot 1" in output
    assert "started fresh" not in output
    assert f"step {step + 1} " in output
    assert "world 1" in output


def test_a_missing_checkpoint_ends_every_rank_and_names_the_place(job: Job) -> None:
    """Never another step than the one ordered."""
    job.start("3.1", {"checkpoint": "120@2.7", "slot": 0, "directory": None})
    for node in job.nodes:
        node.until("exited")
        assert "cannot resume from 120@2.7" in node.log.read_text()
        assert str(node.shm / "slot-0-0") in node.log.read_text()
