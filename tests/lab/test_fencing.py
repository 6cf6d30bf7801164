"""Old lives of a group, and checkpoints that are not to be seen: the job goes on from the right one or waits."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
from kit import QUICK, endless, eventually, incarnation, log_of, steps_on

if TYPE_CHECKING:
    from collections.abc import Callable

    from kit import Cluster, Job

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]


@pytest.mark.soak  # it looks again for a minute before it believes it
def test_a_group_whose_checkpoints_vanished_is_blocked_and_goes_on_once_they_are_back(
    apply: Callable[..., Job], namespace: str
) -> None:
    job = apply(endless(namespace), QUICK)
    job.running(limit_s=120)
    newest = eventually(lambda: job.group().get("newest"), 60, job.story)
    folder, away = job.root.parents[1], job.root.parents[2] / f"{namespace}-away"
    folder.rename(away)
    try:
        job.kubectl("delete", "pod", f"{job.name}-0", "--force", "--grace-period=0")
        eventually(lambda: job.group().get("phase") == "Blocked", 150, job.story)
        assert job.group()["why"].startswith("CheckpointNotVisible: ")
        done = len(log_of(job))
        assert all(line["step"] > 0 for line in log_of(job)[-1:])
    finally:
        shutil.copytree(away, folder, dirs_exist_ok=True)
        shutil.rmtree(away)
    job.running(generation=2, limit_s=90)
    first = eventually(lambda: log_of(job)[done:], 30)[0]
    assert first["step"] > int(newest.partition("@")[0])
    assert first["incarnation"].startswith("2.")


def test_what_a_cut_leader_still_writes_is_not_resumed_from(
    guarded_cluster: Cluster, apply: Callable[..., Job], namespace: str
) -> None:
    job = apply(endless(namespace), QUICK)
    group = job.running(limit_s=120)
    eventually(lambda: job.group().get("newest"), 60, job.story)
    cut = guarded_cluster.lab.node(group["world"][0]["node"])
    cut.cut()
    try:
        job.running(generation=2, limit_s=150)
        eventually(lambda: incarnation(job).startswith("2."), 30, job.story)
    finally:
        cut.heal()
    steps_on(job, more=20, limit_s=90)
    record = next(record for record in job.lineage() if record["incarnation"] == "2.1")
    assert record["parent"] is not None
    left_at = int(record["parent"].partition("@")[0])
    newest = job.group()["newest"]
    assert newest.partition("@")[2].startswith("2."), "committed by the new life"
    assert int(newest.partition("@")[0]) > left_at
    lines = [line for line in log_of(job) if line["t"] >= first_of(job, "2.1")["t"]]
    assert {line["incarnation"].partition(".")[0] for line in lines} == {"2"}
    pods = {pod["metadata"]["uid"] for pod in job.pods().values()}
    assert group["leaderUID"] not in pods


def first_of(job: Job, incarnation: str) -> dict[str, Any]:
    """The first step of an incarnation."""
    return next(line for line in log_of(job) if line["incarnation"] == incarnation)
