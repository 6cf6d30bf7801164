"""Installing rlguard into the lab: the chart, by real helm, as a user would."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rlguard.errors import TransientError
from rlguard_chaos.kubectl import Kubectl
from rlguard_chaos.lab import Lab, fakes
from rlguard_chaos.narrate import Narrator

NAMESPACE: Final = "rlguard-system"
RELEASE: Final = "rlguard"
WITHIN: Final = "120s"
HEALTHY: Final = "rlguard.io/Healthy"
"""The condition by which the agent says what it thinks of its node."""


async def install_chart(lab: Lab, kubectl: Kubectl, root: Path, narrator: Narrator) -> None:
    """`helm upgrade --install` with the lab's values, and wait until every process of rlguard is ready."""
    values = Path(__file__).parent / "lab" / "values.yaml"
    arguments = ["upgrade", "--install", RELEASE, str(root / "charts" / "rlguard"), "--namespace", NAMESPACE]
    arguments += ["--create-namespace", "--values", str(values), "--wait", "--timeout", WITHIN]
    process = await asyncio.create_subprocess_exec(
        str(lab.binaries / "helm"),
        *arguments,
        "--kubeconfig",
        str(lab.kubeconfig),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    if process.returncode != 0:
        raise TransientError(f"helm: {output.decode(errors='replace').strip()[-800:]}")
    await kubectl.run("wait", "--for=condition=Established", "crd/guards.rlguard.io", "--timeout=30s")
    narrator.say("ready", "rlguard installed by helm: controller, injector and an agent on each node")


async def clear(lab: Lab, kubectl: Kubectl, jobs: Sequence[str]) -> None:
    """Remove what an earlier run left: the jobs, their Guards, logs and checkpoints, and the nodes' faults."""
    await kubectl.run("delete", "leaderworkersets", *jobs, "--ignore-not-found", "--wait=false")
    selector = f"leaderworkerset.sigs.k8s.io/name in ({', '.join(jobs)})"
    await kubectl.run("delete", "pods", "-l", selector, "--grace-period=0", "--force", "--ignore-not-found")
    crds = await kubectl.run("get", "crd", "guards.rlguard.io", "--ignore-not-found", "-o", "name")
    if crds.strip():
        await kubectl.run("delete", "guards.rlguard.io", *jobs, "--ignore-not-found")
    for job in jobs:
        for folder in (lab.shared / job, lab.shared / f"{job}-log", lab.shared / ".rlguard" / "default" / job):
            shutil.rmtree(folder, ignore_errors=True)
    await asyncio.to_thread(_mend_nodes, lab, await kubectl.get("nodes"))


def _mend_nodes(lab: Lab, nodes: dict[str, Any]) -> None:
    for node in nodes["items"]:
        conditions = {item["type"]: item["status"] for item in node["status"].get("conditions", [])}
        if conditions.get(HEALTHY) == "False":
            fakes.set_spot_notice(node["metadata"]["name"], None)
            lab.node(node["metadata"]["name"]).kill()
            lab.node(node["metadata"]["name"]).start()
