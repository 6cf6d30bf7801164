"""What rlguard leans on fails: its agents, its coordinator in the middle of an act, the checkpoint folder."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest
from kit import QUICK, SYSTEM, endless, eventually, incarnation, log_of, namespace_for, start, steps_on

from rlguard_chaos.lab import fakes, layout

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kit import Cluster, Job

pytestmark = [pytest.mark.lab, pytest.mark.timeout(400)]
XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


@pytest.fixture(scope="module")
def steady(guarded_cluster: Cluster) -> Iterator[Job]:
    """One job for all tests of this file."""
    with namespace_for(guarded_cluster, __name__) as namespace:
        yield start(guarded_cluster, namespace, endless(namespace), QUICK)


@pytest.fixture
def job(steady: Job) -> Job:
    """The job that all tests share, running and with a committed checkpoint."""
    steady.running(limit_s=120)
    eventually(lambda: steady.group().get("newest"), 30, steady.story)
    return steady


def test_without_agents_a_rank_is_restarted_all_the_same(guarded_cluster: Cluster, job: Job) -> None:
    patch = ("-n", SYSTEM, "patch", "daemonset", "rlguard-agent", "--type=merge", "-p")
    nowhere = {"spec": {"template": {"spec": {"nodeSelector": {"rlguard.io/none": "here"}}}}}
    guarded_cluster.kubectl(*patch, json.dumps(nowhere))
    selector = ("-n", SYSTEM, "get", "pods", "-l", "app.kubernetes.io/component=agent", "-o", "name")
    try:
        eventually(lambda: not guarded_cluster.kubectl(*selector).strip(), 60)
        before = incarnation(job)
        job.kill_rank(job.group()["world"][-1]["pod"])
        eventually(lambda: incarnation(job) != before, 60, job.story)
        assert job.running()["incidents"][-1]["decision"] == "in-place"
    finally:
        nowhere["spec"]["template"]["spec"]["nodeSelector"] = {"rlguard.io/none": None}  # type: ignore[dict-item]
        guarded_cluster.kubectl(*patch, json.dumps(nowhere))
    eventually(lambda: len(guarded_cluster.kubectl(*selector).split()) == 3, 60)


def test_a_checkpoint_folder_that_refuses_writes_costs_no_step_until_it_is_needed_and_nothing_committed(
    job: Job,
) -> None:
    before, newest = incarnation(job), job.group()["newest"]
    folders = [str(job.root / name) for name in ("steps", "tmp", "lineage", "incidents")]
    subprocess.run(["chattr", "+i", *folders], check=True)
    try:
        lines = steps_on(job, more=30)
        assert {line["incarnation"] for line in lines} == {before}, "training does not wait for it"
        job.kill_rank(job.group()["world"][-1]["pod"])
        eventually(
            lambda: "denied" in job.group()["why"].lower() or "permi" in job.group()["why"].lower(), 60, job.story
        )
    finally:
        subprocess.run(["chattr", "-i", *folders], check=True)
    eventually(lambda: incarnation(job) != before, 90, job.story)
    resumed = job.running()["incidents"][-1]["resumed"]
    assert resumed is not None
    assert int(resumed.partition("@")[0]) >= int(newest.partition("@")[0]), "nothing that was committed is lost"


def test_a_full_checkpoint_folder_costs_no_step_and_is_used_again_once_there_is_room(job: Job) -> None:
    before, newest = incarnation(job), job.group()["newest"]
    with filled(layout.SHARED_FOLDER, leave=size_of(job.root / "steps" / newest) // 2):
        lines = steps_on(job, more=30)
        assert {line["incarnation"] for line in lines} == {before}, "training does not wait for it"
        eventually(lambda: "No space left" in job.group()["why"], 30, job.story)
        kept = job.group()["newest"]
        job.kill_rank(job.group()["world"][-1]["pod"])
        eventually(lambda: incarnation(job) != before, 60, job.story)
        first = next(line for line in log_of(job) if line["incarnation"] != before and line["step"] > lines[-1]["step"])
        assert first["step"] - 1 > int(kept.partition("@")[0]), "from memory, which was newer than what is on disk"
    eventually(lambda: job.group()["newest"].partition("@")[2] == incarnation(job), 60, job.story)
    assert "No space left" not in job.running()["why"]


@contextlib.contextmanager
def filled(folder: Path, leave: int) -> Iterator[None]:
    """The folder's file system has no more than `leave` bytes free."""
    assert folder.is_mount(), "the lab's shared folder is no file system of its own"
    ballast = folder / "ballast"
    seen = os.statvfs(folder)
    try:
        with ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, seen.f_bavail * seen.f_frsize - leave)
        yield
    finally:
        ballast.unlink(missing_ok=True)


def size_of(folder: Path) -> int:
    """Bytes of the files in it."""
    return sum(path.stat().st_size for path in folder.iterdir())


def test_a_coordinator_killed_in_the_middle_of_a_save_finishes_what_was_begun(job: Job) -> None:
    world = job.group()["world"]
    leader, worker = world[0], world[-1]
    newest = int(job.group()["newest"].partition("@")[0])
    fakes.write_kernel_line(worker["node"], XID)
    try:
        eventually(lambda: job.group()["phase"] in ("Saving", "Stopping", "Waiting"), 20, job.story)
        job.kill_sidecar(leader["pod"])

        def replaced() -> bool:
            group = job.group()
            return group["phase"] == "Running" and group["world"][-1]["uid"] != worker["uid"]

        eventually(replaced, 150, job.story)
    finally:
        node = job.cluster.lab.node(worker["node"])
        node.kill()
        node.start()
    group = job.group()
    assert group["world"][0]["uid"] == leader["uid"], "the leader pod is the same"
    resumed = next(record["parent"] for record in reversed(job.lineage()) if record["parent"])
    assert int(resumed.partition("@")[0]) >= newest
    assert log_of(job)[-1]["step"] > newest
