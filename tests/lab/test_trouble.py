"""What is no training fault: rlguard's own processes die, the API server stops. Training goes on."""

from __future__ import annotations

import itertools
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
from kit import QUICK, STEP_S, SYSTEM, endless, eventually, incarnation, log_of, namespace_for, start, steps_on

from rlguard_chaos.lab import processes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit import Cluster, Job

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def steady(guarded_cluster: Cluster) -> Iterator[Job]:
    """One job for all tests that leave it running."""
    with namespace_for(guarded_cluster, __name__) as namespace:
        yield start(guarded_cluster, namespace, endless(namespace), QUICK)


@pytest.fixture
def job(steady: Job) -> Job:
    """The job that all tests share, running and with a committed checkpoint."""
    steady.running(limit_s=120)
    eventually(lambda: steady.group().get("newest"), 30, steady.story)
    return steady


def resumes_in_place(job: Job, before: str, limit_s: float = 60.0) -> str:
    """Wait for a step of another attempt, which must not have begun at step 0; returns its incarnation."""
    eventually(lambda: incarnation(job) != before, limit_s, job.story)
    first = next(line for line in log_of(job) if line["incarnation"] == incarnation(job))
    last = [line for line in log_of(job) if line["incarnation"] == before][-1]
    assert 0 <= last["step"] - (first["step"] - 1) <= 3 / STEP_S, "goes on from what was staged"
    return incarnation(job)


def test_a_killed_sidecar_does_not_make_training_pause_and_comes_back_to_its_work(job: Job) -> None:
    before, newest = incarnation(job), job.group()["newest"]
    for pod in job.pods():
        job.kill_sidecar(pod)
    lines = steps_on(job, more=30)
    assert {line["incarnation"] for line in lines} == {before}
    pauses = [after["t"] - line["t"] for line, after in itertools.pairwise(lines)]
    assert max(pauses) < 3, "the machine's own jitter, no more"
    eventually(lambda: job.group()["newest"] != newest, 60, job.story)
    assert all(status["restartCount"] == 0 for pod in job.pods().values() for status in statuses(pod))


def statuses(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """The states of all containers of a pod."""
    status = pod["status"]
    return [*status["containerStatuses"], *status["initContainerStatuses"]]


def test_without_a_controller_a_rank_is_restarted_and_the_guard_catches_up_later(
    guarded_cluster: Cluster, job: Job
) -> None:
    scale = ("-n", SYSTEM, "scale", "deployment", "rlguard-controller")
    guarded_cluster.kubectl(*scale, "--replicas=0")
    try:
        selector = ("-n", SYSTEM, "get", "pods", "-l", "app.kubernetes.io/component=controller", "-o", "name")
        eventually(lambda: not guarded_cluster.kubectl(*selector).strip())
        steps_on(job)
        before = incarnation(job)
        job.kill_rank(job.group()["world"][-1]["pod"])
        after = resumes_in_place(job, before)
        assert str(job.group()["attempt"]) != after.partition(".")[2], "nobody is there to tell"
    finally:
        guarded_cluster.kubectl(*scale, "--replicas=2")
    eventually(lambda: f"{job.group()['generation']}.{job.group()['attempt']}" == after, 60, job.story)
    assert job.running()["incidents"][-1]["decision"] == "in-place"


def test_without_an_api_server_training_goes_on_and_a_rank_is_restarted(job: Job) -> None:
    before, world = incarnation(job), job.group()["world"]
    server = processes.running()["kube-apiserver"]
    os.kill(server, signal.SIGSTOP)
    try:
        time.sleep(12)  # longer than the kubelets' Leases live here
        assert incarnation(job) == before
        job.kill_rank_unasked(world[0]["node"])
        after = resumes_in_place(job, before)
        assert {line["incarnation"] for line in steps_on(job, more=20)} == {after}
    finally:
        os.kill(server, signal.SIGCONT)
    eventually(lambda: f"{job.group().get('generation')}.{job.group().get('attempt')}" == after, 60, job.story)
    assert [member["uid"] for member in job.running()["world"]] == [member["uid"] for member in world]


def test_a_controller_that_takes_over_while_the_other_lives_is_told_everything(
    guarded_cluster: Cluster, job: Job
) -> None:
    lease = ("-n", SYSTEM, "lease", "rlguard-controller")
    selector = ("-n", SYSTEM, "pods", "-l", "app.kubernetes.io/component=controller")
    holder = guarded_cluster.get(*lease)["spec"]["holderIdentity"]
    names = [pod["metadata"]["name"] for pod in guarded_cluster.get(*selector)["items"]]
    other = next(name for name in names if name != holder)
    patch = f'{{"spec": {{"holderIdentity": "{other}"}}}}'
    guarded_cluster.kubectl("-n", SYSTEM, "patch", "lease", "rlguard-controller", "--type=merge", "-p", patch)
    time.sleep(5)  # the former leader has hung up by now
    step = job.group()["step"]
    eventually(lambda: job.group()["step"] > step + 20, 40, job.story)
    assert guarded_cluster.get(*lease)["spec"]["holderIdentity"] == other
