"""The lab is a real cluster, does not flatter, breaks as told, and leaves nothing."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from listing import newcomers, processes, things

from rlguard.errors import BadConfigError
from rlguard_chaos import lab as labs
from rlguard_chaos.lab import api, fakes, layout
from rlguard_chaos.lab import processes as lab_processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rlguard_chaos.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]
NUMBERS = itertools.count(time.time_ns())
TELLTALES = (
    "kube",
    "containerd",
    "etcd",
    "coredns",
    "lws-manager",
    "/pause",
    "rlguard_chaos.lab",
    "sleep 4321",
)
RLGUARD = [sys.executable, "-m", "rlguard_chaos"]


def kubectl(lab: Lab, *words: str, stdin: str | None = None) -> str:
    """Output of kubectl, which must succeed."""
    command = [str(lab.binaries / "kubectl"), f"--kubeconfig={lab.kubeconfig}", *words]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def eventually(look: Callable[[], Any], limit_s: float = 60.0) -> Any:
    """The first true answer within the limit."""
    deadline = time.monotonic() + limit_s
    while not (seen := look()):
        assert time.monotonic() < deadline, look
        time.sleep(0.2)
    return seen


def ready(node: str) -> bool:
    """Whether Kubernetes holds the node for Ready."""
    return api.is_ready(api.nodes()[node])


def answers(node: str) -> bool:
    """Whether the node's kubelet takes a connection."""
    with socket.socket() as line:
        line.settimeout(2)
        return line.connect_ex((layout.node_address(node), 10250)) == 0


def pod(name: str, image: str, script: str, **spec: Any) -> str:
    """A pod that runs a shell script once."""
    mounts = [{"name": "fakes", "mountPath": layout.FAKES}]
    container = {"name": "main", "image": image, "command": ["sh", "-c", script], "volumeMounts": mounts}
    volumes = [{"name": "fakes", "hostPath": {"path": layout.FAKES}}]
    body = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container], "volumes": volumes}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": body | spec})


@pytest.fixture
def run(lab: Lab) -> Iterator[Callable[..., str]]:
    """Run a script in a pod of an image and return what it printed."""
    made: list[str] = []

    def finished(name: str) -> bool:
        return kubectl(lab, "get", "pod", name, "-o", "jsonpath={.status.phase}") in {"Succeeded", "Failed"}

    def run(image: str, script: str, **spec: Any) -> str:
        name = f"probe-{next(NUMBERS)}"
        kubectl(lab, "apply", "-f", "-", stdin=pod(name, image, script, **spec))
        made.append(name)
        eventually(lambda: finished(name))
        return kubectl(lab, "logs", name)

    yield run
    for name in made:
        kubectl(lab, "delete", "pod", name, "--force", "--grace-period=0")


def test_every_node_is_ready_and_advertises_its_devices(lab: Lab) -> None:
    for node in lab.nodes():
        eventually(lambda name=node.name: ready(name))
        seen = api.nodes()[node.name]
        assert seen["status"]["capacity"]["nvidia.com/gpu"] == "8"
        assert seen["status"]["allocatable"]["rdma/rdma_shared_device_a"] == "1"
        assert seen["metadata"]["labels"]["kubernetes.io/hostname"] == node.name


def test_up_on_a_running_lab_changes_nothing(lab: Lab) -> None:
    before = lab_processes.running()
    labs.up(len(lab.nodes()))
    assert lab_processes.running() == before


def test_up_mends_a_lab_that_lost_a_part(lab: Lab) -> None:
    os.kill(lab_processes.running()["coredns"], signal.SIGKILL)
    labs.up(len(lab.nodes()))
    assert "coredns" in lab_processes.running()


def test_another_lab_is_refused_with_the_reason(lab: Lab) -> None:
    done = subprocess.run([*RLGUARD, "lab", "up", "--nodes", "2"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "nodes: 3 there, 2 wanted" in done.stderr
    assert done.stderr.count("\n") == 1
    assert ready("node0")
    assert lab.state.exists()


def test_a_users_image_has_torch_and_no_rlguard(run: Callable[..., str]) -> None:
    script = (
        "python3 -c 'import torch; print(torch.__name__)'; python3 -c 'import rlguard'; which torchrun; ls /workspace"
    )
    said = run(layout.USER_IMAGES[0], f"({script}) 2>&1")
    assert said.startswith("torch\n")
    assert "No module named 'rlguard'" in said
    assert "bin/torchrun" in said
    assert "train.py" in said


def test_the_image_of_a_stock_job_is_the_users_image_under_another_name(run: Callable[..., str]) -> None:
    look = "which python3 torchrun; ls /workspace"
    assert run(layout.USER_IMAGES[1], look) == run(layout.USER_IMAGES[0], look)


def test_the_product_image_has_rlguard_and_no_torch(run: Callable[..., str]) -> None:
    script = "python3 -c 'import rlguard, kubernetes_asyncio; print(rlguard.__name__)'; python3 -c 'import torch'"
    said = run(layout.PRODUCT_IMAGE, f"({script}) 2>&1")
    assert said.startswith("rlguard\n")
    assert "No module named 'torch'" in said


def test_a_node_does_not_know_cluster_names_but_its_pods_do(run: Callable[..., str]) -> None:
    look = "getent hosts kubernetes.default.svc.cluster.local || echo unknown"
    assert run(layout.PRODUCT_IMAGE, look, hostNetwork=True) == "unknown\n"
    assert "10.78.0.1" in run(layout.PRODUCT_IMAGE, look)


def test_a_kernel_line_reaches_a_pod_on_its_node_alone(lab: Lab, run: Callable[..., str]) -> None:
    line = f"NVRM: Xid (PCI:0000:3b:00): 79, mark {next(NUMBERS)}"
    fakes.write_kernel_line("node1", line)
    script = f"""python3 -c '
import socket
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.settimeout(1)
s.connect("{layout.FAKES}/kmsg.sock")
try:
    while True: print(s.recv(8192).decode(), end="")
except TimeoutError: pass'"""
    assert f";{line}\n" in run(layout.PRODUCT_IMAGE, script, nodeName="node1")
    assert line not in run(layout.PRODUCT_IMAGE, script, nodeName="node2")
    assert len(lab.nodes()) == 3


def test_a_spot_notice_is_told_by_its_nodes_metadata_server_alone(lab: Lab, run: Callable[..., str]) -> None:
    url = "http://metadata.tencentyun.com/latest/meta-data/spot/termination-time"
    script = f"""python3 -c '
import urllib.request, urllib.error
try: print(urllib.request.urlopen("{url}").read().decode())
except urllib.error.HTTPError as error: print(error.code)'"""
    fakes.set_spot_notice("node1", 120)
    try:
        told = run(layout.PRODUCT_IMAGE, script, nodeName="node1", hostNetwork=True).strip()
        assert run(layout.PRODUCT_IMAGE, script, nodeName="node2", hostNetwork=True).strip() == "404"
    finally:
        fakes.set_spot_notice("node1", None)
    assert abs(time.mktime(time.strptime(told, "%Y-%m-%d %H:%M:%S")) - time.mktime(time.gmtime()) - 8 * 3600 - 120) < 60
    assert lab.node("node1").state == "running"


def test_a_killed_node_goes_not_ready_and_comes_back_with_another_boot_id(lab: Lab) -> None:
    node = lab.node("node2")
    first = api.nodes()["node2"]["status"]["nodeInfo"]["bootID"]
    node.kill()
    assert node.state == "stopped"
    with pytest.raises(BadConfigError, match="node2 does not run"):
        fakes.write_kernel_line("node2", "no one hears this")
    eventually(lambda: not ready("node2"))
    node.start()
    assert ready("node2")
    assert api.nodes()["node2"]["status"]["nodeInfo"]["bootID"] != first
    assert api.nodes()["node2"]["status"]["capacity"]["nvidia.com/gpu"] == "8"


def test_a_cut_and_a_frozen_node_are_mended_by_up(lab: Lab) -> None:
    lab.node("node1").cut()
    lab.node("node2").freeze()
    assert [node.state for node in lab.nodes()] == ["running", "cut", "frozen"]
    labs.up(len(lab.nodes()))
    assert [node.state for node in lab.nodes()] == ["running"] * 3
    eventually(lambda: ready("node1") and ready("node2"))


def test_a_cut_node_cannot_be_reached_and_works_on(lab: Lab) -> None:
    node = lab.node("node1")
    assert answers("node1")
    node.cut()
    try:
        assert not answers("node1")
        assert "node1-kubelet" in lab_processes.running()
    finally:
        node.heal()
    eventually(lambda: ready("node1"))


@pytest.mark.skipif(os.environ.get("RLGUARD_LAB_REUSE") == "1", reason="it would take the reused lab away")
@pytest.mark.usefixtures("machine")
def test_down_leaves_nothing_of_a_lab_with_running_pods() -> None:
    labs.down()
    bystander = subprocess.Popen(["sleep", "300"])
    try:
        before, running_before = things(), processes()
        lab = labs.up(3)
        kubectl(lab, "apply", "-f", "-", stdin=pod("stays", layout.PRODUCT_IMAGE, "sleep 4321"))
        eventually(lambda: kubectl(lab, "get", "pod", "stays", "-o", "jsonpath={.status.phase}") == "Running")
        lab.node("node1").freeze()
        labs.down()
        assert newcomers(running_before, TELLTALES) == {}
        assert things() == before
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.skipif(os.environ.get("RLGUARD_LAB_REUSE") == "1", reason="it would take the reused lab away")
@pytest.mark.usefixtures("machine")
def test_down_leaves_nothing_of_a_start_killed_at_any_moment() -> None:
    labs.down()
    before, running_before = things(), processes()
    for moment in (0.4, 1.2, 2.5, 5.0):
        starting = subprocess.Popen([*RLGUARD, "lab", "up"], stdout=subprocess.DEVNULL)
        time.sleep(moment)
        starting.kill()
        starting.wait()
        labs.down()
        assert newcomers(running_before, TELLTALES) == {}
        assert things() == before, moment


@pytest.mark.skipif(os.environ.get("RLGUARD_LAB_REUSE") == "1", reason="it would take the reused lab away")
@pytest.mark.usefixtures("machine")
def test_up_builds_anew_over_what_a_killed_start_left() -> None:
    labs.down()
    starting = subprocess.Popen([*RLGUARD, "lab", "up"], stdout=subprocess.DEVNULL)
    time.sleep(3)
    starting.kill()
    starting.wait()
    labs.up(3, shared_mib=2048)
    assert all(api.is_ready(node) for node in api.nodes().values())
