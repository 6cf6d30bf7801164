"""The job of the TKE documentation, unchanged but for the label."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml
from kit import EXAMPLES, clear_shared, eventually, steps_of

from rlguard_chaos.lab import layout

if TYPE_CHECKING:
    from collections.abc import Callable

    from kit import Job

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]
LOGS = layout.SHARED_FOLDER / "tke"
SCRIPT = "/workspace/train.py"
LEADER_ARGUMENTS = [SCRIPT, "--deepspeed", "--deepspeed_config=/workspace/ds_config.json"]


def saves() -> list[int]:
    """The steps that the script has saved by itself."""
    return sorted(int(path.stem.partition("-")[2]) for path in LOGS.glob("step-*.pt"))


def restarts(pods: dict[str, dict[str, Any]]) -> set[int]:
    """Restart counts of all containers, init containers too."""
    kinds = ("containerStatuses", "initContainerStatuses")
    return {item["restartCount"] for pod in pods.values() for kind in kinds for item in pod["status"][kind]}


@pytest.fixture
def job(apply: Callable[..., Job]) -> Job:
    """The job, running, with a save on disk."""
    clear_shared("tke")
    job = apply(yaml.safe_load((EXAMPLES / "tke" / "job.yaml").read_text()))
    eventually(saves, 120, job.story)
    job.running()
    return job


def test_a_stock_job_recovers_in_place_from_a_killed_rank_and_keeps_its_arguments(job: Job) -> None:
    before = job.pods()
    assert restarts(before) == {0}
    newest = saves()[-1]
    job.kill_rank("pretrain-0-1")
    job.running(attempt=2)
    resumed = eventually(lambda: [line for line in steps_of(LOGS / "steps-rank0.jsonl") if incarnation(line) == "1.2"])
    assert resumed[0]["step"] - 1 in saves()
    assert resumed[0]["step"] - 1 >= newest
    after = job.pods()
    assert {name: pod["metadata"]["uid"] for name, pod in after.items()} == {
        name: pod["metadata"]["uid"] for name, pod in before.items()
    }
    assert restarts(after) == {0}
    record = job.lineage()[-1]
    assert record["incarnation"] == "1.2"
    assert [member["uid"] for member in record["world"]] == [
        before[pod]["metadata"]["uid"] for pod in ("pretrain-0", "pretrain-0-1")
    ]
    assert job.group()["attempt"] == 2
    incident = job.group()["incidents"][-1]
    assert (incident["fault"], incident["decision"]) == ("rank-exited", "in-place")
    assert {tuple(line["argv"]) for line in steps_of(LOGS / "steps-rank0.jsonl")} == {tuple(LEADER_ARGUMENTS)}
    assert {tuple(line["argv"]) for line in steps_of(LOGS / "steps-rank1.jsonl")} == {(SCRIPT,)}
    assert eventually(lambda: job.condition("Fenced").get("status") == "False", 60, job.story)
    assert job.condition("Guarded")["status"] == "True"
    assert job.guard()["spec"] == {}, "nobody wrote a Guard: made with defaults"


def incarnation(line: dict[str, Any]) -> str:
    """The incarnation that wrote this line of a step log."""
    return str(line["environment"].get("RLGUARD_INCARNATION"))
