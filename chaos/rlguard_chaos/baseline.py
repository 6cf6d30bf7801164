"""The same job without rlguard, under LWS and torchrun alone: what a user has today, measured in the same run."""

from __future__ import annotations

import asyncio
import copy
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rlguard.errors import TransientError
from rlguard.model import GUARD_LABEL
from rlguard_chaos import steplog
from rlguard_chaos.faults import KILL_RANK
from rlguard_chaos.kubectl import Kubectl

LOOK_EVERY: Final = 0.25
START_WITHIN: Final = 300.0
"""Stock torchrun whose leader looks up its own name before DNS knows it waits two minutes and is started again."""
RECOVER_WITHIN: Final = 120.0
LEADER_WATCHED: Final = 90.0
"""How long the bare job is watched after its leader's node died."""
STAMP: Final = 'date +%s.%N >> "$0"; exec "$@"'
"""Notes when the command starts, then becomes the command."""


@dataclass(frozen=True, slots=True)
class Bare:
    """A bare twin of a job. `log` is its ranks' step log, `starts` where each start of the command is noted."""

    name: str
    manifest: dict[str, Any]
    log: Path
    starts: Path


def bare_twin(job: dict[str, Any], name: str, shared: Path, nodes: tuple[str, str] | None = None) -> Bare:
    """The job without the label, without the devices (so that it fits beside the guarded one), with its own log.

    `nodes`: where leader and worker must run. `shared` is the folder the pods see as /checkpoints.
    """
    manifest = copy.deepcopy(job)
    manifest["metadata"] = {"name": name, "namespace": job["metadata"].get("namespace", "default")}
    template = manifest["spec"]["leaderWorkerTemplate"]
    template.setdefault("leaderTemplate", copy.deepcopy(template["workerTemplate"]))
    for index, role in enumerate(("leaderTemplate", "workerTemplate")):
        _strip(template[role], name, nodes[index] if nodes else None)
    folder = shared / name
    return Bare(name, manifest, folder / "steps-rank0.jsonl", folder / "starts")


def _strip(template: dict[str, Any], name: str, node: str | None) -> None:
    template.setdefault("metadata", {}).setdefault("labels", {}).pop(GUARD_LABEL, None)
    spec = template["spec"]
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    for container in spec["containers"]:
        container.pop("resources", None)
        command = [*container["command"], *container.get("args", [])]
        container["command"] = ["sh", "-c", STAMP, f"/checkpoints/{name}/starts"]
        container["args"] = [_own_log(item, name) for item in command]


def _own_log(item: str, name: str) -> str:
    return item.replace("/checkpoints/ppo-log", f"/checkpoints/{name}")


async def start(kubectl: Kubectl, bare: Bare, manifest_text: str) -> float:
    """Start the job and return the seconds from the start of the later member's command to the first step."""
    bare.log.parent.mkdir(parents=True, exist_ok=True)
    begun = time.time()
    await kubectl.run("apply", "-f", "-", stdin=manifest_text)
    first = await _step_after(bare, begun, START_WITHIN)
    if first is None:
        raise TransientError(f"the bare job {bare.name} made no step within {START_WITHIN:.0f} s")
    return first.at - latest_start(bare.starts, begun, first.at)


async def kill_a_rank(kubectl: Kubectl, bare: Bare) -> tuple[float | None, float | None]:
    """SIGKILL a rank of the worker: seconds to the first new step, and from the command's new start to it."""
    killed = time.time()
    await kubectl.run("exec", f"{bare.name}-0-1", "-c", "trainer", "--", "python3", "-c", KILL_RANK)
    await asyncio.sleep(1.0)  # what the other rank still logs of the step under way is no recovery
    first = await _step_after(bare, time.time(), RECOVER_WITHIN)
    if first is None:
        return None, None
    return first.at - killed, first.at - latest_start(bare.starts, killed, first.at)


async def watch_leader_lost(bare: Bare, killed: float) -> float | None:
    """Seconds from the death of the leader's node to a new step, None if there is none within LEADER_WATCHED."""
    first = await _step_after(bare, killed + 1.0, max(0.0, killed + LEADER_WATCHED - time.time()))
    return None if first is None else first.at - killed


async def stop(kubectl: Kubectl, bare: Bare) -> None:
    """Delete the job and wait until its pods are gone."""
    await kubectl.run("delete", "leaderworkerset", bare.name, "--ignore-not-found", "--wait=false")
    selector = f"leaderworkerset.sigs.k8s.io/name={bare.name}"
    await kubectl.run("delete", "pods", "-l", selector, "--grace-period=0", "--force", "--ignore-not-found")


def latest_start(starts: Path, after: float, before: float) -> float:
    """The last start noted between two moments (Unix seconds); `after` itself if none was."""
    lines = starts.read_text().split() if starts.exists() else []
    return max((at for at in map(float, lines) if after <= at <= before), default=after)


async def _step_after(bare: Bare, moment: float, within: float) -> steplog.LoggedStep | None:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        first = steplog.first_after(steplog.read(bare.log), moment)
        if first is not None:
            return first
        await asyncio.sleep(LOOK_EVERY)
    return None
