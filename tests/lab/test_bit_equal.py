"""A run that was killed and resumed ends bit-equal to one that nothing disturbed, without rlguard."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from kit import eventually, ppo, steps_of, trainer_of

from rlguard_chaos.lab import layout

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kit import Job

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]
STEPS = 25
CHANCE = random.Random(7)  # noqa: S311  # which step and rank are hit, the same in every run


def job_of(namespace: str, guarded: bool) -> tuple[dict[str, Any], Path]:
    """The job, and the folder of its logs and digests."""
    folder = f"{namespace}/{'guarded' if guarded else 'bare'}"
    options = (f"--steps={STEPS}", "--min-step-seconds=0.5", f"--log-dir=/checkpoints/{folder}")
    job = ppo(*options, f"--digest=/checkpoints/{folder}/digest", guarded=guarded)
    trainer_of(job)["resources"]["limits"]["nvidia.com/gpu"] = "4"  # half a node: both jobs run at once
    return job, layout.SHARED_FOLDER / folder


def digests(folder: Path) -> tuple[str, ...]:
    """The final hash of each rank: weights, optimizer, generators, environments; empty while one is missing."""
    found = [folder / f"digest.rank{rank}" for rank in range(2)]
    return tuple(path.read_text() for path in found) if all(path.exists() for path in found) else ()


def test_a_killed_run_ends_bit_equal_to_an_undisturbed_one_without_rlguard(
    apply: Callable[..., Job], namespace: str
) -> None:
    manifest, bare = job_of(namespace, guarded=False)
    undisturbed = apply(manifest)
    manifest, guarded = job_of(namespace, guarded=True)
    job = apply(manifest, {"checkpoint": {"stageIntervalSeconds": 1, "flushIntervalSeconds": 5}})
    at, rank = CHANCE.randrange(8, 18), CHANCE.randrange(2)
    log = guarded / f"steps-rank{rank}.jsonl"
    eventually(lambda: any(line["step"] >= at for line in steps_of(log)), 120, job.story)
    job.kill_rank(job.group()["world"][rank]["pod"])
    # While it runs: kubelet starts a container that has ended anew.
    eventually(lambda: "running without rlguard" in log_of_container(undisturbed), 120, undisturbed.pods)
    # Stock torchrun whose leader looks up its own name too early waits two minutes for itself and is started again.
    expected = eventually(lambda: digests(bare), 300, undisturbed.pods)
    assert expected[0] != expected[1], "ranks have generators and environments of their own"
    assert eventually(lambda: digests(guarded), 120, job.story) == expected
    eventually(lambda: job.group().get("phase") == "Completed", 60, job.story)
    incident = job.group()["incidents"][-1]
    assert incident["decision"] == "in-place"
    assert int(incident["resumed"].partition("@")[0]) > 0
    assert next(line["incarnation"] for line in steps_of(log)) == "1.1"
    assert [line["incarnation"] for line in steps_of(log)][-1] == "1.2"


def log_of_container(job: Job) -> str:
    """What the leader's training container printed, if there is one yet."""
    return job.cluster.call("-n", job.namespace, "logs", f"{job.name}-0", "-c", "trainer").stdout
