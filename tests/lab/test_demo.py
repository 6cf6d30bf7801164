"""The demo, judged by what it did not write itself: the ranks' own step logs and the folder of checkpoints."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from listing import newcomers, processes, things

from rlguard_chaos import lab as labs
from rlguard_chaos import steplog
from rlguard_chaos.lab import Lab, layout
from rlguard_chaos.steplog import LoggedStep

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

RLGUARD = [sys.executable, "-m", "rlguard_chaos"]
LAB_WORDS = ("rlguard", "kube", "containerd", "etcd", "coredns", "lws", "torchrun", "train.py", "pause")
SCRIPT = "/workspace/ppo/train.py"
ACTS = ["rank-killed", "gpu-fell-off", "spot-reclaimed", "leader-lost", "finished"]


@dataclass
class Played:
    """A demo that ran to its end."""

    status: int
    output: str
    figures: dict[str, Any]
    steps: list[LoggedStep]
    root: Path

    def act(self, name: str) -> dict[str, Any]:
        """One act's figures."""
        found: dict[str, Any] = next(act for act in self.figures["acts"] if act["name"] == name)
        return found


def play(build: Path, *options: str) -> tuple[int, str]:
    done = subprocess.run(
        [*RLGUARD, "demo", "--keep", "--build", str(build), *options],
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory, machine: None) -> Played:  # noqa: ARG001 - by its name
    """The whole demo, once; its checkpoints and logs are looked at while the lab still stands."""
    build = tmp_path_factory.mktemp("demo")
    status, output = play(build)
    sys.stdout.write(output)
    figures = json.loads((build / "demo.json").read_text())
    shared = labs.Lab().shared
    steps = steplog.read(shared / "ppo-log" / "steps-rank0.jsonl")
    return Played(status, output, figures, steps, shared / ".rlguard" / "default" / "ppo" / "0")


def test_every_act_recovers_and_the_demo_says_so(demo: Played) -> None:
    assert demo.status == 0, demo.output
    assert [(act["name"], act["recovered"]) for act in demo.figures["acts"]] == [(name, True) for name in ACTS]
    decisions = [act["decision"] for act in demo.figures["acts"]]
    assert decisions == ["in-place", "replace", "shrink", "recreate", ""]


def test_without_rlguard_a_lost_leader_is_not_recovered_in_the_time_it_was_watched(demo: Played) -> None:
    act = demo.act("leader-lost")
    assert act["baseline_s"] is None
    assert act["baseline_watched_s"] == 90.0
    assert demo.act("rank-killed")["baseline_s"] > 0


@pytest.mark.parametrize("name", ACTS[:4])
def test_lost_steps_and_time_are_those_of_the_ranks_own_log(demo: Played, name: str) -> None:
    """The first line of another incarnation after the fault is the first new step."""
    act = demo.act(name)
    before = [step for step in demo.steps if step.at <= act["injected_at"]]
    assert before, "the job had stepped before the fault"
    first = next(
        step for step in demo.steps if step.at > act["injected_at"] and step.incarnation != before[-1].incarnation
    )
    reached = max(step.step for step in demo.steps if step.at < first.at)
    # The log is written before the step is told; with leader and controller gone at once a member's heartbeat tells it.
    assert reached - (first.step - 1) == pytest.approx(act["lost_steps"], abs=3 if name == "leader-lost" else 1)
    # The log is written before the step is told; a busy machine may need a moment to tell it.
    assert first.at - act["injected_at"] == pytest.approx(act["time_to_first_step_s"], abs=3.0)
    assert act["resumed"] is not None
    assert first.step - 1 == int(act["resumed"].partition("@")[0])


def test_the_resumed_checkpoint_loads_with_stock_pytorch_and_holds_the_weights_of_its_step(demo: Played) -> None:
    """In a process where rlguard cannot be imported; the ranks wrote a hash of the weights at each step."""
    resumed = demo.act("leader-lost")["resumed"]
    step, _, incarnation = resumed.partition("@")
    logged = [line for line in logged_lines() if (line["step"], line["incarnation"]) == (int(step), incarnation)]
    script = f"""
        import hashlib, importlib.util, torch
        import torch.distributed.checkpoint as dcp
        assert importlib.util.find_spec("rlguard") is None
        reader = dcp.FileSystemReader({str(demo.root / "steps" / resumed)!r})
        tensors = dcp.metadata.TensorStorageMetadata
        known = reader.read_metadata().state_dict_metadata
        state = {{name: torch.empty(m.size, dtype=m.properties.dtype) for name, m in known.items()
                 if isinstance(m, tensors)}}
        dcp.load(state, storage_reader=reader, no_dist=True)
        weights = [tensor for name, tensor in state.items() if name.startswith("model.")]
        print(hashlib.sha256(b"".join(w.numpy().tobytes() for w in weights)).hexdigest()[:16])
    """
    python = layout.user_environment() / "bin" / "python3"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    loaded = subprocess.run(
        [python, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True, cwd="/", env=environment
    )
    assert loaded.stdout.strip() == logged[-1]["sha"]


def logged_lines() -> list[dict[str, Any]]:
    log = Lab().shared / "ppo-log" / "steps-rank0.jsonl"
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_committed_files_are_those_of_their_manifests(demo: Played) -> None:
    """Read without any code of ours."""
    folders = list((demo.root / "steps").iterdir())
    assert folders
    for folder in folders:
        manifest = json.loads((folder / "rlguard.json").read_text())
        for file in manifest["files"]:
            content = (folder / file["name"]).read_bytes()
            assert (len(content), hashlib.sha256(content).hexdigest()) == (file["size"], file["sha256"])


def test_the_return_rises_across_all_restarts(demo: Played) -> None:
    values = [step.value or 0.0 for step in demo.steps]
    assert sum(values[-5:]) > 3 * sum(values[:5])


@pytest.mark.soak  # it waits for steps that never come; the one without a controller is in each run
def test_with_the_training_hook_disabled_the_demo_fails_and_names_the_act(tmp_path: Path, lab: Lab) -> None:
    del lab
    manifests = tmp_path / "manifests"
    shutil.copytree(layout.CHECKOUT / "examples" / "ppo", manifests)
    job = yaml.safe_load((manifests / "job.yaml").read_text())
    container = job["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"][0]
    words = " ".join(f'"{word}"' for word in container["command"])
    own = "/checkpoints/ppo/train.py"
    absent = f"mkdir -p /checkpoints/ppo; sed 's/import rlguard.train/import rlguard_absent/' {SCRIPT} > {own}"
    container["command"] = ["bash", "-c", f"{absent}; exec {words.replace(SCRIPT, own)}"]
    (manifests / "job.yaml").write_text(yaml.safe_dump(job))
    status, output = play(tmp_path / "build", "--no-baseline", "--only", ACTS[0], "--manifests", str(manifests))
    assert status == 1, output
    assert "Act failed: rank-killed" in output


def test_without_a_controller_the_lost_leader_is_not_recovered_and_the_demo_names_the_act(
    tmp_path: Path, lab: Lab
) -> None:
    kubectl = [str(lab.binaries / "kubectl"), "--kubeconfig", str(lab.kubeconfig), "-n", "rlguard-system", "scale"]
    scale = [*kubectl, "deployment/rlguard-controller"]
    command = [*RLGUARD, "demo", "--keep", "--build", str(tmp_path), "--no-baseline", "--only", "leader-lost"]
    command += ["--within", "60"]
    output = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            output.append(line)
            if "the guarded job steps on" in line:
                subprocess.run([*scale, "--replicas=0"], check=True, capture_output=True)
        status = demo.wait(timeout=60)
    subprocess.run([*scale, "--replicas=2"], check=True, capture_output=True)
    assert status == 1, "".join(output)
    assert "Act failed: leader-lost" in "".join(output)


@pytest.mark.parametrize("seconds", [4.0, 26.0])
def test_a_demo_that_is_killed_leaves_nothing_once_the_lab_is_down(tmp_path: Path, seconds: float) -> None:
    """What was there before is there afterwards, and nothing else. The listing is the test's own."""
    labs.down()
    before, running = things(), processes()
    demo = subprocess.Popen(
        [*RLGUARD, "demo", "--build", str(tmp_path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    threading.Timer(seconds, lambda: os.kill(demo.pid, signal.SIGKILL)).start()
    assert demo.wait(timeout=seconds + 10) == -signal.SIGKILL
    subprocess.run([*RLGUARD, "lab", "down"], check=True, capture_output=True)
    assert newcomers(running, LAB_WORDS) == {}
    assert things() == before
