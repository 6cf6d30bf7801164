"""Jobs that cannot run, or not wholly guarded: each says why."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from kit import QUICK, endless, eventually, log_of, trainer_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from kit import Cluster, Job

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]


def test_a_command_that_cannot_be_run_is_given_up_with_the_reason(apply: Callable[..., Job], namespace: str) -> None:
    manifest = endless(namespace, gpus=2)
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
    manifest = endless(namespace, gpus=2)
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
    manifest = endless(namespace, gpus=2)
    volumes = manifest["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["volumes"]
    volumes[0]["persistentVolumeClaim"]["claimName"] = "forgotten"
    job = apply(manifest, QUICK)
    eventually(lambda: "forgotten" in job.group().get("why", ""), 30, job.story)
    assert job.guard()["status"]["phase"] == "Pending"


def test_a_job_that_begins_while_the_injector_does_not_answer_is_guarded_once_it_does(
    guarded_cluster: Cluster, apply: Callable[..., Job], namespace: str
) -> None:
    def port(number: int) -> None:
        patch = [{"op": "replace", "path": "/webhooks/0/clientConfig/service/port", "value": number}]
        words = ("patch", "mutatingwebhookconfiguration", "rlguard-injector", "--type=json", "-p", json.dumps(patch))
        guarded_cluster.kubectl(*words)

    port(444)
    try:
        job = apply(endless(namespace, gpus=2))
        pods = eventually(job.pods, 60)
        assert not any("initContainers" in pod["spec"] for pod in pods.values()), "the API server let it through"
    finally:
        port(443)
    job.running(limit_s=120)
    assert all("initContainers" in pod["spec"] for pod in job.pods().values())
    assert job.condition("Guarded")["status"] == "True"


def test_an_unknown_label_value_leaves_the_pods_as_they_are_and_says_so(
    apply: Callable[..., Job], namespace: str
) -> None:
    manifest = endless(namespace, gpus=2)
    labels = manifest["spec"]["leaderWorkerTemplate"]["workerTemplate"]["metadata"]["labels"]
    labels["rlguard.io/guard"] = "enable"
    job = apply(manifest)
    eventually(lambda: len(log_of(job)) > 2, 120, job.pods)
    pods = job.pods()
    assert all(len(pod["spec"]["containers"]) == 1 for pod in pods.values())
    assert not any(pod["spec"].get("initContainers") for pod in pods.values())
    marks = {pod["metadata"]["annotations"]["rlguard.io/unguarded"] for pod in pods.values()}
    assert marks == {"label rlguard.io/guard: 'enable' is not enabled"}
