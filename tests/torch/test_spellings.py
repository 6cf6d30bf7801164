"""Every way to write torchrun ends in the ordered world."""

from __future__ import annotations

import os
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from fake_sidecar import FakeSidecar
from test_resume import free_port, world

pytestmark = [
    pytest.mark.torch,
    pytest.mark.timeout(120),
    pytest.mark.skipif(find_spec("torch") is None, reason="needs torch"),
]

SCRIPT = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
print("rank", os.environ["RANK"], "of", int(one.item()), "at", os.environ["RLGUARD_INCARNATION"], flush=True)
dist.destroy_process_group()
"""
BIN = Path(sys.executable).parent
FLAGS = [
    "--nnodes=2",
    "--nproc_per_node=1",
    "--max-restarts=3",
    "--rdzv_backend=c10d",
    "--rdzv_endpoint=nowhere.invalid:1",
]
SPELLINGS = {
    "torchrun": ["torchrun"],
    "path": [str(BIN / "torchrun")],
    "module": [sys.executable, "-m", "torch.distributed.run"],
    "shell": ["bash", "-c"],
    "launch": [sys.executable, "-W", "ignore", "-m", "torch.distributed.launch"],
    "standalone": [str(BIN / "torchrun"), "--standalone"],
}


def spelled(name: str, script: Path) -> list[str]:
    """Write the command out."""
    words = [*FLAGS[: 3 if name == "standalone" else None], str(script)]
    if name == "shell":
        return ["bash", "-c", f"cd / && torchrun {shlex.join(words)}; exit $?"]
    return [*SPELLINGS[name], *words]


@pytest.mark.parametrize("names", [("torchrun", "shell"), ("path", "module"), ("launch", "standalone")])
def test_two_spellings_meet_in_one_world(tmp_path: Path, names: tuple[str, str]) -> None:
    """Their own rendezvous leads nowhere, so only the hook can have brought them together."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    path = {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    nodes = [FakeSidecar(tmp_path / name, spelled(name, script), path) for name in names]
    port = free_port()
    for index, node in enumerate(nodes):
        node.start("7.1", world(2, index, port))
    for index, node in enumerate(nodes):
        state = node.until("exited", seconds=90)
        assert (state["code"], state["hooked"]) == (0, True), node.log.read_text()
        assert f"rank {index} of 2 at 7.1" in node.log.read_text()
        node.close()


def test_a_command_without_torchrun_runs_with_the_world_in_its_environment(tmp_path: Path) -> None:
    """Generic mode."""
    program = "import json, os; print(json.loads(os.environ['RLGUARD_WORLD'])['node_rank'])"
    node = FakeSidecar(tmp_path, [sys.executable, "-c", program])
    node.start("7.1", world(2, 1, 1))
    state = node.until("exited")
    assert (state["code"], state["hooked"], state["tail"]) == (0, False, "1\n")
    node.close()
