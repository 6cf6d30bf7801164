"""What is no training fault: rlguard's own processes die, the API server stops, the job is wrong, files vanish."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
from kit import SYSTEM, eventually, namespace_for, ppo, start, steps_of, trainer_of

from rlguard_chaos.lab import layout, processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kit import Cluster, Job

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]
QUICK = {"elastic": {"minMembers": 1}, "checkpoint": {"stageIntervalSeconds": 1, "flushIntervalSeconds": 3}}
STEP_S = 0.3


def endless(namespace: str) -> dict[str, Any]:
    """A PPO job that logs its steps and does not end."""
    return ppo("--steps=50000", f"--min-step-seconds={STEP_S}", f"--log-dir=/checkpoints/{namespace}")


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


def log_of(job: Job) -> list[dict[str, Any]]:
    """Rank 0's steps."""
    return steps_of(layout.SHARED_FOLDER / job.namespace / "steps-rank0.jsonl")


def steps_on(job: Job, more: int = 5, limit_s: float = 60.0) -> list[dict[str, Any]]:
    """Wait until there are more steps than now, and return these."""
    before = len(log_of(job))
    eventually(lambda: len(log_of(job)) >= before + more, limit_s, job.story)
    return log_of(job)[before:]


def incarnation(job: Job) -> str:
    """What the newest step was done by."""
    return str(log_of(job)[-1]["incarnation"])


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


def test_a_command_that_cannot_be_run_is_given_up_with_the_reason(apply: Callable[..., Job], namespace: str) -> None:
    manifest = endless(namespace)
    trainer_of(manifest)["command"] = ["/no/such/program"]
    job = apply(manifest)
    eventually(lambda: job.group().get("phase") == "GaveUp", 120, job.story)
    gave_up = job.condition("GaveUp")
    assert gave_up["status"] == "True"
    assert "/no/such/program" in str(job.guard()["status"])
    assert "3 times" in gave_up["message"]
    assert job.kubectl("get", "events", "--field-selector", "reason=GaveUp", "-o", "name").strip()


def test_a_job_without_a_shared_volume_says_so_and_is_restarted_from_memory(
    apply: Callable[..., Job], namespace: str
) -> None:
    manifest = endless(namespace)
    del trainer_of(manifest)["volumeMounts"]
    manifest["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["volumes"] = []
    job = apply(manifest, QUICK)
    job.running(limit_s=120)
    condition = job.condition("NoCheckpointRoot")
    assert (condition["status"], condition["reason"]) == ("True", "NoVolume")
    eventually(lambda: (job.group().get("step") or 0) > 10, 60, job.story)
    job.kill_rank(job.group()["world"][-1]["pod"])
    job.running(attempt=2)
    incident = eventually(lambda: resumed(job), 30, job.story)
    assert int(incident["resumed"].partition("@")[0]) > 0


def resumed(job: Job) -> dict[str, Any] | None:
    """The last incident once it is over."""
    incident: dict[str, Any] = job.group()["incidents"][-1]
    return incident if "firstStepAt" in incident else None


def test_a_job_whose_claim_does_not_exist_is_shown_as_pending_with_the_reason(
    apply: Callable[..., Job], namespace: str
) -> None:
    manifest = endless(namespace)
    volumes = manifest["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["volumes"]
    volumes[0]["persistentVolumeClaim"]["claimName"] = "forgotten"
    job = apply(manifest, QUICK)
    eventually(lambda: "forgotten" in job.group().get("why", ""), 30, job.story)
    assert job.guard()["status"]["phase"] == "Pending"


def test_an_unknown_label_value_leaves_the_pods_as_they_are_and_says_so(
    apply: Callable[..., Job], namespace: str
) -> None:
    manifest = endless(namespace)
    labels = manifest["spec"]["leaderWorkerTemplate"]["workerTemplate"]["metadata"]["labels"]
    labels["rlguard.io/guard"] = "enable"
    job = apply(manifest)
    eventually(lambda: len(log_of(job)) > 2, 120, job.pods)
    pods = job.pods()
    assert all(len(pod["spec"]["containers"]) == 1 for pod in pods.values())
    assert not any(pod["spec"].get("initContainers") for pod in pods.values())
    marks = {pod["metadata"]["annotations"]["rlguard.io/unguarded"] for pod in pods.values()}
    assert marks == {"label rlguard.io/guard: 'enable' is not enabled"}


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
        assert "checkpoint-not-visible" in job.group()["why"]
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
    steps_on(job, more=40, limit_s=90)
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
