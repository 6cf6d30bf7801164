"""What takes longer than a test run should: `make soak`. Many starts, kills at random moments, an act at a time."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from kit import QUICK, endless, eventually, incarnation, log_of, steps_on
from listing import newcomers, processes, things

from rlguard_chaos import lab as labs
from rlguard_chaos.lab import fakes
from rlguard_chaos.lab import processes as lab_processes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kit import Cluster, Job

pytestmark = [pytest.mark.lab, pytest.mark.soak, pytest.mark.timeout(1200)]
RLGUARD = [sys.executable, "-m", "rlguard_chaos"]
LAB_WORDS = ("rlguard", "kube", "containerd", "etcd", "coredns", "lws", "torchrun", "train.py", "pause")
OUTAGE_S = 60.0
DEMO_S = 200.0


def rlguard(*words: str) -> None:
    """A command of ours, which must succeed."""
    done = subprocess.run([*RLGUARD, *words], capture_output=True, text=True, check=False, timeout=1000)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.usefixtures("machine")
def test_a_lab_comes_and_goes_ten_times_in_a_row() -> None:
    labs.down()
    before, running = things(), processes()
    for _ in range(10):
        began = time.monotonic()
        rlguard("lab", "up", "--nodes", "3")
        sys.stdout.write(f"up in {time.monotonic() - began:.1f} s\n")
        rlguard("lab", "down")
        assert newcomers(running, LAB_WORDS) == {}
        assert things() == before


@pytest.mark.usefixtures("machine")
def test_a_demo_killed_at_five_random_moments_leaves_nothing_and_works_afterwards(tmp_path: Path) -> None:
    labs.down()
    before, running = things(), processes()
    for moment in sorted(random.Random().uniform(0, DEMO_S) for _ in range(5)):  # noqa: S311  # any moment will do
        command = [*RLGUARD, "demo", "--build", str(tmp_path)]
        demo = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(moment)
        assert demo.poll() is None, "still playing"
        demo.kill()
        demo.wait()
        rlguard("lab", "down")
        sys.stdout.write(f"killed after {moment:.1f} s\n")
        assert newcomers(running, LAB_WORDS) == {}
        assert things() == before
    rlguard("demo", "--build", str(tmp_path))
    assert newcomers(running, LAB_WORDS) == {}
    assert things() == before


@pytest.fixture
def job(apply: Callable[..., Job], namespace: str) -> Job:
    """A job that runs, with a committed checkpoint."""
    job = apply(endless(namespace), QUICK)
    job.running(limit_s=120)
    eventually(lambda: job.group().get("newest"), 30, job.story)
    return job


def resumes(job: Job, before: str, limit_s: float = 120.0) -> dict[str, Any]:
    """Wait for steps of another incarnation, which lost nothing that was committed; returns the first."""
    newest = int(job.group()["newest"].partition("@")[0])
    eventually(lambda: incarnation(job) != before, limit_s, job.story)
    first: dict[str, Any] = next(line for line in log_of(job) if line["incarnation"] == incarnation(job))
    assert first["step"] > newest
    return first


def test_a_coordinator_killed_while_a_rank_is_started_again(job: Job) -> None:
    world, before = job.group()["world"], incarnation(job)
    job.kill_rank(world[-1]["pod"])
    job.kill_sidecar(world[0]["pod"])
    resumes(job, before)
    steps_on(job, more=20)
    assert [member["uid"] for member in job.running()["world"]] == [member["uid"] for member in world]


def test_a_coordinator_killed_while_a_reclaimed_member_leaves(guarded_cluster: Cluster, job: Job) -> None:
    world, before = job.group()["world"], incarnation(job)
    used = {member["node"] for member in world}
    spare = next(node for node in guarded_cluster.lab.nodes() if node.name not in used)
    spare.kill()
    try:
        fakes.set_spot_notice(world[-1]["node"], 60)
        eventually(lambda: job.group()["phase"] in ("Saving", "Stopping"), 30, job.story)
        job.kill_sidecar(world[0]["pod"])
        resumes(job, before)
        eventually(lambda: len(job.running()["world"]) == 1, 60, job.story)
    finally:
        fakes.set_spot_notice(world[-1]["node"], None)
        spare.start()
    eventually(lambda: len(job.group()["world"]) == len(world), 180, job.story)
    assert job.group()["world"][0]["uid"] == world[0]["uid"]


def test_a_coordinator_killed_as_soon_as_it_begins_after_the_leaders_node_died(
    guarded_cluster: Cluster, job: Job
) -> None:
    group, before = job.group(), incarnation(job)
    node = guarded_cluster.lab.node(group["world"][0]["node"])
    node.kill()
    try:
        eventually(lambda: job.group().get("generation", 0) > group["generation"], 180, job.story)
        leader = f"{job.name}-0"
        eventually(lambda: is_running(job, leader), 60, job.story)
        job.kill_sidecar(leader)
        resumes(job, before)
        steps_on(job, more=20)
    finally:
        node.start()


def is_running(job: Job, pod: str) -> bool:
    """Whether the pod's containers run."""
    return job.pods().get(pod, {}).get("status", {}).get("phase") == "Running"


def test_a_coordinator_killed_when_the_job_ends_still_tells_of_the_end(
    apply: Callable[..., Job], namespace: str
) -> None:
    manifest = endless(namespace)
    containers = manifest["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"]
    words = containers[0]["command"]
    words[next(i for i, word in enumerate(words) if word.startswith("--steps="))] = "--steps=60"
    job = apply(manifest, QUICK)
    job.running(limit_s=120)
    eventually(lambda: log_of(job) and log_of(job)[-1]["step"] >= 58, 60, job.story)  # two before the end
    job.kill_sidecar(f"{job.name}-0")
    eventually(lambda: job.group().get("phase") == "Completed", 120, job.story)
    assert log_of(job)[-1]["step"] == 60  # what it was asked for
    eventually(lambda: not job.pods(), 60, job.story)


def test_a_minute_without_an_api_server_costs_no_step_and_no_pod(job: Job) -> None:
    world, before = job.group()["world"], incarnation(job)
    server = lab_processes.running()["kube-apiserver"]
    os.kill(server, signal.SIGSTOP)
    try:
        time.sleep(OUTAGE_S)
        assert incarnation(job) == before
        job.kill_rank_unasked(world[0]["node"])
        after = resumes_unseen(job, before)
    finally:
        os.kill(server, signal.SIGCONT)
    eventually(lambda: f"{job.group().get('generation')}.{job.group().get('attempt')}" == after, 90, job.story)
    time.sleep(20)  # the node controller would have acted by now
    assert [member["uid"] for member in job.running()["world"]] == [member["uid"] for member in world]
    assert incarnation(job) == after


def resumes_unseen(job: Job, before: str) -> str:
    """Wait for another incarnation while no API server can be asked; returns it."""
    eventually(lambda: incarnation(job) != before, 60)
    return incarnation(job)
