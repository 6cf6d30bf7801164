"""Kubernetes objects become facts; what is none of ours is passed over."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from rlguard.cluster.facts import Taint
from rlguard.cluster.taints import TaintPolicy
from rlguard.errors import BadConfigError
from rlguard.model import GroupKey
from rlguard_controller.objects import guard_of, job_of, node_of, pod_of
from rlguard_controller.settings import read_settings

LWS = "leaderworkerset.sigs.k8s.io"
LABELS = {f"{LWS}/name": "job", f"{LWS}/group-index": "1", f"{LWS}/worker-index": "2", "rlguard.io/guard": "enabled"}
ENVIRONMENT = {
    "POD_NAMESPACE": "rlguard",
    "POD_NAME": "me",
    "RLGUARD_IMAGE": "rlguard:1",
    "RLGUARD_AGENT_ACCOUNT": "rlguard/rlguard-agent",
}


def pod(**changes: Any) -> dict[str, Any]:
    """A pod of group 1, worker 2."""
    notes = {"rlguard.io/injected": "x", "rlguard.io/avoid": "a,b"}
    meta = {"namespace": "ns", "name": "job-1-2", "uid": "u", "labels": LABELS, "annotations": notes}
    return {"metadata": {**meta, **changes}, "spec": {"nodeName": "c"}, "status": {"phase": "Running"}}


def lws(policy: str, **labels: str) -> dict[str, Any]:
    """An LWS whose worker template has these labels."""
    template = {"size": 2, "restartPolicy": policy, "workerTemplate": {"metadata": {"labels": labels}}}
    meta = {"namespace": "ns", "name": "job", "uid": "u", "resourceVersion": "7"}
    return {"metadata": meta, "spec": {"replicas": 3, "leaderWorkerTemplate": template}}


def test_a_pod_of_a_group_is_known_by_its_labels() -> None:
    found = pod_of(pod())
    assert found is not None
    assert (found.key, found.index, found.node) == (GroupKey("ns", "job", 1), 2, "c")
    assert found.injected
    assert found.avoid == ("a", "b")
    assert not found.deleting


def test_a_pod_without_a_numbered_place_in_a_group_is_none_of_ours() -> None:
    assert pod_of(pod(labels={**LABELS, f"{LWS}/group-index": "5f0c"})) is None
    assert pod_of(pod(labels={})) is None


def test_only_a_pod_that_the_scheduler_refuses_is_unschedulable() -> None:
    waiting = pod()
    waiting["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
    gated = pod()
    gated["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]
    found, held = pod_of(waiting), pod_of(gated)
    assert found is not None
    assert found.unschedulable
    assert held is not None
    assert not held.unschedulable


def test_a_pod_that_does_not_run_says_why_in_kubernetes_words() -> None:
    waiting, failing, starting = pod(), pod(), pod()
    said = 'persistentvolumeclaim "forgotten" not found'
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
    waiting["status"]["conditions"] = [unscheduled]
    pull = {"reason": "ErrImagePull", "message": "not found"}
    failing["status"]["containerStatuses"] = [{"name": "trainer", "state": {"waiting": pull}}]
    starting["status"]["containerStatuses"] = [{"name": "trainer", "state": {"waiting": {"reason": "PodInitializing"}}}]
    waits = [found.waits for thing in (waiting, failing, starting) if (found := pod_of(thing)) is not None]
    assert waits == [said, "trainer: ErrImagePull: not found", ""]


@pytest.mark.parametrize(
    ("policy", "isolated"), [("None", True), ("Default", True), ("RecreateGroupOnPodRestart", False)]
)
def test_a_worker_can_be_replaced_alone_only_under_restart_policy_none(policy: str, isolated: bool) -> None:
    job = job_of(lws(policy))
    assert job is not None
    assert job.isolated is isolated


def test_a_job_is_guarded_by_the_label_alone() -> None:
    guarded, other, bare = (job_of(lws("None", **labels)) for labels in ({GUARD: "enabled"}, {GUARD: "yes"}, {}))
    assert [job.guarded for job in (guarded, other, bare) if job is not None] == [True, False, False]


GUARD = "rlguard.io/guard"


def test_a_guard_without_spec_or_status_reads_as_one_with_defaults() -> None:
    found = guard_of({"metadata": {"namespace": "ns", "name": "job", "uid": "u", "resourceVersion": "1"}})
    assert found is not None
    assert found.spec == {}
    assert found.status.groups == ()


def test_a_node_of_which_nobody_knows_is_neither_ready_nor_not() -> None:
    found = node_of({"metadata": {"name": "a"}, "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}})
    assert found is not None
    assert found.ready is None


def test_a_nodes_labels_and_taints_are_known_in_their_order() -> None:
    taints = [{"key": "a", "effect": "NoExecute"}, {"key": "b", "value": "c", "effect": "NoSchedule"}]
    meta = {"name": "a", "labels": {"pool": "x"}, "resourceVersion": "7"}
    found = node_of({"metadata": meta, "spec": {"taints": taints}})
    assert found is not None
    assert (found.labels, found.resource_version) == ({"pool": "x"}, "7")
    assert found.taints == (Taint("a", "", "NoExecute"), Taint("b", "c", "NoSchedule"))


@pytest.mark.parametrize("name", sorted(ENVIRONMENT))
def test_a_missing_setting_is_named(name: str) -> None:
    with pytest.raises(BadConfigError, match=name):
        read_settings({key: value for key, value in ENVIRONMENT.items() if key != name})


@pytest.mark.parametrize("port", ["0", "65536", "https", "-1"])
def test_a_port_that_is_none_is_refused(port: str) -> None:
    with pytest.raises(BadConfigError, match="RLGUARD_PORT"):
        read_settings({**ENVIRONMENT, "RLGUARD_PORT": port})


TAINTS = {
    "RLGUARD_TAINTS": "on",
    "RLGUARD_TAINTS_MAX_SHARE": "0.5",
    "RLGUARD_TAINTS_FLOOR": "3",
    "RLGUARD_TAINTS_POOL_LABEL": "pool",
}


def test_no_node_is_tainted_unless_that_is_switched_on() -> None:
    assert read_settings(ENVIRONMENT).taints is None
    assert read_settings({**ENVIRONMENT, "RLGUARD_TAINTS": "on"}).taints == TaintPolicy(0.2, 1, "")
    assert read_settings({**ENVIRONMENT, **TAINTS}).taints == TaintPolicy(0.5, 3, "pool")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RLGUARD_TAINTS", "true"),
        ("RLGUARD_TAINTS_MAX_SHARE", "1.1"),
        ("RLGUARD_TAINTS_MAX_SHARE", "nan"),
        ("RLGUARD_TAINTS_MAX_SHARE", "-0.1"),
        ("RLGUARD_TAINTS_FLOOR", "1.5"),
        ("RLGUARD_TAINTS_FLOOR", ""),
    ],
)
def test_a_bound_on_taints_that_makes_no_sense_is_named(name: str, value: str) -> None:
    with pytest.raises(BadConfigError, match=f"{name}: '{value}'"):
        read_settings({**ENVIRONMENT, **TAINTS, name: value})


def test_inside_a_cluster_the_controller_does_without_the_costly_client() -> None:
    code = "import sys, rlguard_controller.__main__; sys.exit('kubernetes_asyncio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
