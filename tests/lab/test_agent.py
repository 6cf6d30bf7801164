"""The node agent on real nodes: what goes in at a node's edges comes out at the sidecar and on the Node."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
from kit import eventually, namespace_for, ppo, start, trainer_of

from rlguard_chaos.lab import fakes, ports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kit import Cluster, Job

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]
LINK = "mlx5_core 0000:61:00.0 enp97s0f0np0: Link {}"
FOREIGN = "GPUPendingRetiredPages"


@pytest.fixture(scope="module")
def job(guarded_cluster: Cluster) -> Iterator[Job]:
    """A guarded job of one pod, so that a sidecar listens; no fault of these tests is one that it must act on."""
    with namespace_for(guarded_cluster, __name__) as namespace:
        manifest = ppo("--steps=50000", "--min-step-seconds=1", f"--log-dir=/checkpoints/{namespace}", size=1)
        trainer_of(manifest)["resources"]["limits"]["nvidia.com/gpu"] = "1"
        job = start(guarded_cluster, namespace, manifest)
        job.running(limit_s=120)
        yield job


@dataclass(frozen=True)
class Trouble:
    """A fault at a node's edge: its code, how it comes and how it goes."""

    code: str
    comes: Callable[[Cluster, str], None]
    goes: Callable[[Cluster, str], None]


def link(state: str) -> Callable[[Cluster, str], None]:
    """A line of the kernel about a port that was up before."""

    def write(_: Cluster, node: str) -> None:
        for word in ("up", state):
            fakes.write_kernel_line(node, LINK.format(word))

    return write


def gpu(**changes: int) -> Callable[[Cluster, str], None]:
    """What NVML says of the node's first GPU."""
    lines = {f"device.0.{name.replace('__', '.')}": value for name, value in changes.items()}
    return lambda _, node: fakes.change_gpus(node, lines)


def rate(gigabits: int) -> Callable[[Cluster, str], None]:
    """The rate at which a port of the node was trained."""
    return lambda _, node: ports.set_rate(ports.sysfs(node), 3, gigabits)


def foreign(status: str) -> Callable[[Cluster, str], None]:
    """A condition that another writes onto the Node."""

    def patch(cluster: Cluster, node: str) -> None:
        condition = {"type": FOREIGN, "status": status, "reason": "Test", "message": "a test wrote this"}
        body = json.dumps({"status": {"conditions": [condition]}})
        cluster.kubectl("patch", "node", node, "--subresource=status", "--type=strategic", "-p", body)

    return patch


TROUBLES = {
    "kernel-log": Trouble("mlx5-link-down", link("down"), link("up")),
    "nvml": Trouble("gpu-remap-pending", gpu(remap__pending=1), gpu(remap__pending=0)),
    "node-object": Trouble(f"condition-{FOREIGN}", foreign("True"), foreign("False")),
}


@pytest.mark.parametrize("source", TROUBLES)
def test_a_fault_at_a_nodes_edge_reaches_the_sidecar_and_the_node_and_goes_by_its_rule(
    guarded_cluster: Cluster, job: Job, source: str
) -> None:
    comes_and_goes(guarded_cluster, job, TROUBLES[source])


@pytest.mark.soak
def test_a_port_that_is_slower_than_it_was_reaches_the_sidecar_and_the_node_and_goes_by_its_rule(
    guarded_cluster: Cluster, job: Job
) -> None:
    ports.lay_out(ports.sysfs(node_of(job)))
    time.sleep(20)  # the source looks for ports every few seconds, and learns how fast they are
    comes_and_goes(guarded_cluster, job, Trouble("rdma-rate-low", rate(100), rate(400)))


def comes_and_goes(cluster: Cluster, job: Job, trouble: Trouble) -> None:
    """The fault shows at both places, and then at neither."""
    node = node_of(job)
    assert trouble.code not in noticed(job)
    try:
        trouble.comes(cluster, node)
        eventually(lambda: trouble.code in noticed(job), 40, lambda: noticed(job))
        eventually(lambda: trouble.code in healthy(cluster, node)["reason"], 20, lambda: healthy(cluster, node))
        assert healthy(cluster, node)["status"] == "True", "a warning does not condemn a node"
    finally:
        trouble.goes(cluster, node)
    eventually(lambda: trouble.code not in noticed(job), 100, lambda: noticed(job))
    eventually(lambda: healthy(cluster, node)["reason"] == "no-fault-known", 20, lambda: healthy(cluster, node))


def test_a_driver_that_hangs_is_told_and_delays_no_line_of_the_kernel(guarded_cluster: Cluster, job: Job) -> None:
    node = node_of(job)
    fakes.change_gpus(node, {"hang.nvmlDeviceGetCount_v2": 1})
    try:
        eventually(lambda: "nvml-hung" in noticed(job), 60, lambda: noticed(job))
        written = time.time()
        link("down")(guarded_cluster, node)
        told = eventually(lambda: told_at(job, "mlx5-link-down", written), 20, lambda: noticed(job))
        assert told - written < 2.0
    finally:
        fakes.change_gpus(node, {"hang.nvmlDeviceGetCount_v2": None})
        link("up")(guarded_cluster, node)
    eventually(lambda: not noticed(job), 60, lambda: noticed(job))


def node_of(job: Job) -> str:
    """The node of the job's only pod."""
    name: str = job.pods()[f"{job.name}-0"]["spec"]["nodeName"]
    return name


def notices(job: Job) -> list[dict[str, Any]]:
    """What the sidecar logged of its notices, oldest first."""
    lines = job.kubectl("logs", f"{job.name}-0", "-c", "rlguard-sidecar", "--tail=1000").splitlines()
    return [entry for entry in map(json.loads, lines) if entry["event"] == "notices"]


def noticed(job: Job) -> set[str]:
    """The codes of the notices that the sidecar has now."""
    told = notices(job)
    return {name.split("/")[1] for name in told[-1]["ids"]} if told else set()


def told_at(job: Job, code: str, after: float) -> float | None:
    """When the sidecar first had this notice after a moment, Unix seconds."""
    for entry in notices(job):
        at = datetime.fromisoformat(entry["timestamp"]).timestamp()
        if at >= after and any(f"/{code}/" in name for name in entry["ids"]):
            return at
    return None


def healthy(cluster: Cluster, node: str) -> dict[str, Any]:
    """The agent's condition of a Node."""
    conditions = cluster.get("node", node)["status"]["conditions"]
    found: dict[str, Any] = next(one for one in conditions if one["type"] == "rlguard.io/Healthy")
    return found
