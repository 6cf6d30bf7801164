"""What lab tests share: kubectl, waiting, a guarded job and its Guard, and what is on the shared folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from rlguard_chaos.faults import KILL_RANK, KILL_SIDECAR
from rlguard_chaos.lab import control, layout, processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rlguard_chaos.lab import Lab

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SYSTEM = "rlguard-system"
CALL_S = 60.0
QUICK: dict[str, Any] = {
    "elastic": {"minMembers": 1},
    "checkpoint": {"stageIntervalSeconds": 1, "flushIntervalSeconds": 3},
}
"""A policy for tests: stages each second, commits every three."""
STEP_S = 0.3


def eventually(look: Callable[[], Any], limit_s: float = 60.0, what: Callable[[], Any] = lambda: "") -> Any:
    """The first true answer within the limit; `what` is shown when there is none."""
    deadline = time.monotonic() + limit_s
    while not (seen := look()):
        assert time.monotonic() < deadline, f"not within {limit_s:g} s: {what()}"
        time.sleep(0.25)
    return seen


@dataclass(frozen=True)
class Cluster:
    """The running lab with rlguard installed."""

    lab: Lab

    def call(self, *words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Kubectl, however it ends."""
        command = [str(self.lab.binaries / "kubectl"), f"--kubeconfig={self.lab.kubeconfig}", *words]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=CALL_S)

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """Output of kubectl, which must succeed."""
        done = self.call(*words, stdin=stdin)
        assert done.returncode == 0, f"kubectl {' '.join(words[:6])}: {done.stderr}"
        return done.stdout

    def get(self, *words: str) -> dict[str, Any]:
        """An object or a list."""
        value: dict[str, Any] = json.loads(self.kubectl("get", *words, "-o", "json"))
        return value


def ppo(*arguments: str, guarded: bool = True, size: int = 2) -> dict[str, Any]:
    """The PPO example's LWS with these arguments of the script."""
    file = EXAMPLES / "ppo" / ("job.yaml" if guarded else "bare.yaml")
    job: dict[str, Any] = yaml.safe_load(file.read_text())
    container = trainer_of(job)
    job["spec"]["leaderWorkerTemplate"]["size"] = size
    script = next(i for i, word in enumerate(container["command"]) if word.endswith("train.py"))
    container["command"] = [*container["command"][: script + 1], *arguments]
    return job


def trainer_of(job: dict[str, Any]) -> dict[str, Any]:
    """The trainer container of an LWS with one template."""
    container: dict[str, Any] = job["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"][0]
    return container


@dataclass(frozen=True)
class Job:
    """A job in a namespace of its own."""

    cluster: Cluster
    namespace: str
    name: str

    @property
    def root(self) -> Path:
        """Its checkpoint root."""
        return layout.SHARED_FOLDER / ".rlguard" / self.namespace / self.name / "0"

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """Kubectl in the job's namespace."""
        return self.cluster.kubectl("--namespace", self.namespace, *words, stdin=stdin)

    def get(self, *words: str) -> dict[str, Any]:
        """An object or a list of the job's namespace."""
        return self.cluster.get("--namespace", self.namespace, *words)

    def guard(self) -> dict[str, Any]:
        """The Guard; empty while there is none."""
        done = self.cluster.call("--namespace", self.namespace, "get", "guard", self.name, "-o", "json")
        value: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
        return value

    def group(self) -> dict[str, Any]:
        """Status of group 0; empty while there is none."""
        groups = self.guard().get("status", {}).get("groups") or [{}]
        group: dict[str, Any] = groups[0]
        return group

    def story(self) -> str:
        """What a failed wait shows."""
        group = self.group()
        told = {name: group.get(name) for name in ("phase", "why", "generation", "attempt", "step", "newest")}
        incidents = [(item["fault"], item["decision"], item["detail"]) for item in group.get("incidents", [])]
        return f"{told}, {incidents}\n{self._surroundings()}"

    def _surroundings(self) -> str:
        """All pods, what this job's own last said, and the newest events of its namespace."""
        said = [self.cluster.call("get", "pods", "-A", "-o", "wide").stdout]
        for pod in self.pods():
            words = ("-n", self.namespace, "logs", pod, "-c", "rlguard-sidecar", "--tail=8")
            done = self.cluster.call(*words)
            said.append(f"{pod}: {done.stdout}{done.stderr}")
        events = self.cluster.call("-n", self.namespace, "get", "events", "--sort-by=.lastTimestamp").stdout
        return "\n".join([*said, *events.splitlines()[-15:]])

    def condition(self, kind: str) -> dict[str, Any]:
        """A condition of the Guard; empty while it is not there."""
        conditions = self.guard().get("status", {}).get("conditions", [])
        return next((condition for condition in conditions if condition["type"] == kind), {})

    def pods(self) -> dict[str, dict[str, Any]]:
        """The job's pods by name."""
        selector = f"leaderworkerset.sigs.k8s.io/name={self.name}"
        return {pod["metadata"]["name"]: pod for pod in self.get("pods", "-l", selector)["items"]}

    def run(self, pod: str, script: str, container: str = "trainer") -> str:
        """Output of a Python script run in a container."""
        return self.kubectl("exec", pod, "-c", container, "--", "python3", "-c", script)

    def kill_rank(self, pod: str) -> None:
        """SIGKILL a training process."""
        assert "killed rank process" in self.run(pod, KILL_RANK)

    def kill_rank_unasked(self, node: str) -> int:
        """SIGKILL a training process from outside the cluster, no API server needed; its step is not known."""
        mine = f".{self.namespace}".encode()
        for pid in sorted(processes.members(node)):
            environment = _environment(pid)
            if b"LOCAL_RANK" in environment and environment.get(b"LWS_LEADER_ADDRESS", b"").endswith(mine):
                os.kill(pid, signal.SIGKILL)
                return pid
        raise AssertionError(f"no training process of {self.name} on {node}")

    def kill_sidecar(self, pod: str) -> None:
        """SIGKILL the sidecar's process."""
        assert "killed sidecar process" in self.run(pod, KILL_SIDECAR, "rlguard-sidecar")

    def running(self, attempt: int = 0, generation: int = 0, limit_s: float = 90.0) -> dict[str, Any]:
        """Wait until the group runs, in this or a later incarnation, and has stepped if it can tell."""

        def look() -> Any:
            group = self.group()
            late = (group.get("generation", 0), group.get("attempt", 0)) >= (generation, attempt)
            return group if late and group.get("phase") == "Running" else None

        group: dict[str, Any] = eventually(look, limit_s, self.story)
        return group

    def lineage(self) -> list[dict[str, Any]]:
        """All records, oldest first."""
        records = [json.loads(path.read_text()) for path in (self.root / "lineage").glob("*.json")]
        return sorted(records, key=lambda record: [int(part) for part in record["incarnation"].split(".")])


def _environment(pid: int) -> dict[bytes, bytes]:
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return {name: value for name, _, value in (entry.partition(b"=") for entry in entries)}


def steps_of(log: Path) -> list[dict[str, Any]]:
    """The whole lines of a rank's step log; a disk that was full may have torn some."""
    if not log.exists():
        return []
    return [line for line in map(_whole, log.read_text().splitlines()) if line is not None]


def _whole(line: str) -> dict[str, Any] | None:
    try:
        value: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    return value


def endless(namespace: str, gpus: int = 8) -> dict[str, Any]:
    """A PPO job that logs its steps and does not end; with fewer than 8 GPUs a pod others fit beside it."""
    job = ppo("--steps=50000", f"--min-step-seconds={STEP_S}", f"--log-dir=/checkpoints/{namespace}")
    trainer_of(job)["resources"]["limits"]["nvidia.com/gpu"] = str(gpus)
    return job


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


def clear_shared(*names: str) -> None:
    """Remove folders of the shared folder."""
    for name in names:
        shutil.rmtree(layout.SHARED_FOLDER / name, ignore_errors=True)


@contextlib.contextmanager
def namespace_for(cluster: Cluster, what: str) -> Iterator[str]:
    """A namespace of `what`'s own with the shared volume in it; jobs and checkpoints go with it."""
    name = f"t{hashlib.sha256(what.encode()).hexdigest()[:6]}"
    delete_namespace(cluster, name)
    eventually(lambda: cluster.call("get", "namespace", name).returncode)
    cluster.kubectl("create", "namespace", name)
    try:
        control.create_shared_volume(name)
        yield name
    finally:
        delete_namespace(cluster, name)


def start(cluster: Cluster, namespace: str, manifest: dict[str, Any], guard: dict[str, Any] | None = None) -> Job:
    """Create a job, and first its Guard if a spec is given."""
    name = manifest["metadata"]["name"]
    job = Job(cluster, namespace, name)
    if guard is not None:
        head = {"apiVersion": "rlguard.io/v1alpha1", "kind": "Guard", "metadata": {"name": name}}
        job.kubectl("apply", "-f", "-", stdin=json.dumps({**head, "spec": guard}))
    job.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
    return job


def delete_namespace(cluster: Cluster, name: str) -> None:
    """Remove it, its pods at once, and its checkpoints."""
    cluster.call("-n", name, "delete", "lws", "--all", "--cascade=foreground", "--wait=false")
    cluster.call("-n", name, "delete", "pods", "--all", "--force", "--grace-period=0")
    cluster.call("delete", "namespace", name, "--wait=false")
    cluster.call("delete", "pv", f"cfs-turbo-{name}-{control.SHARED_CLAIM}", "--wait=false")
    left = ("-n", name, "get", "pods", "-o", "name")
    eventually(lambda: not cluster.call(*left).stdout.strip(), 60, lambda: cluster.call(*left).stdout)
    clear_shared(f".rlguard/{name}", name)


def install(cluster: Cluster) -> None:
    """`helm upgrade --install` with the lab's values, until every process of rlguard is ready."""
    values = ROOT / "chaos" / "rlguard_chaos" / "lab" / "values.yaml"
    command = [str(cluster.lab.binaries / "helm"), f"--kubeconfig={cluster.lab.kubeconfig}", "upgrade", "--install"]
    command += ["rlguard", str(ROOT / "charts" / "rlguard"), "--namespace", SYSTEM, "--create-namespace"]
    command += ["--values", str(values), "--wait", "--timeout", "120s"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
