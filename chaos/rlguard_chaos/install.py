"""Installing rlguard into the lab: the chart, by real helm, as a user would."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from rlguard.errors import TransientError
from rlguard_chaos.kubectl import Kubectl
from rlguard_chaos.lab import Lab
from rlguard_chaos.narrate import Narrator

NAMESPACE: Final = "rlguard-system"
RELEASE: Final = "rlguard"
WITHIN: Final = "120s"


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
