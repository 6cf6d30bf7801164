"""What rlguard leans on fails: its agents, its coordinator in the middle of an act, the checkpoint folder."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest
from kit import QUICK, SYSTEM, endless, eventually, incarnation, log_of, namespace_for, start

from rlguard_chaos.lab import fakes, layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
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


@contextlib.contextmanager
def denied(job: Job) -> Iterator[str]:
    """The job's checkpoint folder refuses to be written; yields a word of what the store then says."""
    folders = [str(job.root / name) for name in ("steps", "tmp", "lineage", "incidents")]
    subprocess.run(["chattr", "+i", *folders], check=True)
    try:
        yield "not permitted"
    finally:
        subprocess.run(["chattr", "-i", *folders], check=True)


@contextlib.contextmanager
def full(job: Job) -> Iterator[str]:
    """Less is free than a checkpoint needs; yields a word of what the store then says."""
    folder = layout.SHARED_FOLDER
    assert folder.is_mount(), "the lab's shared folder is no file system of its own"
    newest = job.root / "steps" / job.group()["newest"]
    leave = sum(path.stat().st_size for path in newest.iterdir()) // 2
    ballast = folder / "ballast"
    try:
        eventually(lambda: fill(ballast, leave), 20)
        yield "No space left"
    finally:
        ballast.unlink(missing_ok=True)


def fill(ballast: Path, leave: int) -> bool:
    """Take what is free but `leave`; false if somebody took it first."""
    seen = os.statvfs(ballast.parent)
    with ballast.open("wb") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, seen.f_bavail * seen.f_frsize - leave)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return False
    return True


@pytest.mark.parametrize("trouble", [pytest.param(denied, marks=pytest.mark.soak), full])
def test_a_checkpoint_folder_that_takes_no_writes_costs_no_step_until_it_is_needed_and_nothing_committed(
    job: Job, trouble: Callable[[Job], contextlib.AbstractContextManager[str]]
) -> None:
    group = job.group()
    before, newest = incarnation(job), group["newest"]
    with trouble(job) as word:
        eventually(lambda: job.group()["step"] >= group["step"] + 30, 60, job.story)
        assert job.group()["attempt"] == group["attempt"], "training does not wait for it"
        job.kill_rank(group["world"][-1]["pod"])
        eventually(lambda: word in job.group()["why"], 60, job.story)
    eventually(lambda: incarnation(job) != before, 90, job.story)
    resumed = job.running()["incidents"][-1]["resumed"]
    assert resumed is not None
    assert int(resumed.partition("@")[0]) >= int(newest.partition("@")[0]), "nothing that was committed is lost"
    eventually(lambda: word not in job.group()["why"], 60, job.story)


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
