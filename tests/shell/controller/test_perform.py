"""What the core decided reaches the API server once, with its precondition, and only while the Lease is ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fakeapi import FakeApi
from waiting import until

from rlguard.cluster.actions import AddTaint, DeletePod, EnsureGuard, Event, RemoveTaint, ScaleJob, WriteStatus
from rlguard.cluster.facts import JobKey, Node, Seen, Taint, Written
from rlguard.cluster.status import GuardStatus
from rlguard.decision import Decision
from rlguard.io.kube import Kube
from rlguard.io.log import configure
from rlguard.model import Phase
from rlguard_controller.links import Links
from rlguard_controller.perform import Performer

KEY = JobKey("ns", "job")
GUARD = "/apis/rlguard.io/v1alpha1/namespaces/ns/guards/job"
NODE = "/api/v1/nodes/a"
THEIRS = {"key": "nvidia.com/gpu", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}
OURS = {"key": "rlguard.io/unhealthy", "value": "xid-79", "effect": "NoSchedule"}
POD = "/api/v1/namespaces/ns/pods/job-0-1"


class Stage:
    """A performer with a clock, a Lease and an ear of its own."""

    def __init__(self, api: FakeApi, kube: Kube) -> None:
        self.api, self.now, self.holding = api, 100.0, True
        self.facts: list[Any] = []
        self.links = Links(lambda: self.now)
        self.performer = Performer(kube, self.links, lambda: self.holding, lambda: self.now, configure("test"))
        self.performer.tell = self.facts.append

    async def do(self, *actions: Any) -> None:
        """Perform and wait until nothing is under way."""
        await self.performer.perform(Decision(actions, {}, None))
        while self.performer._running:
            await asyncio.gather(*self.performer._running.values())
            await asyncio.sleep(0)

    def asked(self, method: str) -> list[tuple[str, Any]]:
        """The calls with this method."""
        return [(path, body) for called, path, body in self.api.calls if called == method]


@pytest.fixture
async def stage(api: FakeApi, kube: Kube) -> AsyncIterator[Stage]:
    """A performer on a fake API server."""
    stage = Stage(api, kube)
    yield stage
    await stage.performer.close()


def written(stage: Stage, version: str | None = None) -> WriteStatus:
    """A write of the phase Running to the stored Guard."""
    meta = stage.api.put(GUARD, {"spec": {}})["metadata"]
    status = GuardStatus(phase=Phase.RUNNING, job_uid="l1")
    return WriteStatus(KEY, meta["uid"], "l1", version or meta["resourceVersion"], status, (Event("Why", "because"),))


async def test_a3_a_write_is_told_back_with_its_new_version_and_then_its_events_are_sent(stage: Stage) -> None:
    action = written(stage)
    await stage.do(action)
    version = stage.api.objects[GUARD]["metadata"]["resourceVersion"]
    assert stage.facts == [Written(100.0, KEY, version, action.status)]
    assert stage.api.objects[GUARD]["status"]["phase"] == "Running"
    about = [body["involvedObject"]["kind"] for path, body in stage.asked("POST") if path.endswith("/events")]
    assert about == ["Guard", "LeaderWorkerSet"]


async def test_a3_a_write_from_an_old_version_is_refused_and_the_guard_read_again(stage: Stage) -> None:
    action = written(stage, version="1")
    stage.api.put(GUARD, {"spec": {}})
    await stage.do(action)
    assert [type(fact) for fact in stage.facts] == [Seen]
    assert "status" not in stage.api.objects[GUARD]
    assert not [path for path, _ in stage.asked("POST") if path.endswith("/events")]


async def test_a3_a_deletion_carries_the_uid_and_spares_another_life(stage: Stage) -> None:
    stage.api.put(POD, {"metadata": {"uid": "new"}})
    await stage.do(DeletePod("ns", "job-0-1", "old", force=True, foreground=False))
    assert POD in stage.api.objects
    assert stage.asked("DELETE")[0][1]["preconditions"] == {"uid": "old"}
    assert stage.asked("DELETE")[0][1]["gracePeriodSeconds"] == 0


async def test_a_leader_is_deleted_with_what_it_owns_and_in_its_own_time(stage: Stage) -> None:
    stage.api.put(POD, {"metadata": {"uid": "u"}})
    await stage.do(DeletePod("ns", "job-0-1", "u", force=False, foreground=True))
    body = stage.asked("DELETE")[0][1]
    assert body["propagationPolicy"] == "Foreground"
    assert "gracePeriodSeconds" not in body


async def test_a_pod_with_nothing_to_save_is_not_waited_for(stage: Stage) -> None:
    stage.api.put(POD, {"metadata": {"uid": "u"}})
    await stage.do(DeletePod("ns", "job-0-1", "u", force=False, foreground=False, nothing_to_save=True))
    assert stage.asked("DELETE")[0][1]["gracePeriodSeconds"] == 1


async def test_without_the_lease_nothing_is_written_or_deleted(stage: Stage) -> None:
    stage.holding = False
    await stage.do(written(stage), DeletePod("ns", "job-0-1", "u", force=False, foreground=False))
    assert stage.asked("PATCH") == stage.asked("DELETE") == []


async def test_what_failed_is_not_tried_again_at_once(stage: Stage) -> None:
    stage.api.down = True
    action = EnsureGuard(KEY, "l1")
    await stage.do(action)
    await stage.do(action)
    assert len(stage.asked("POST")) == 1
    stage.api.down, stage.now = False, 102.0
    await stage.do(action)
    assert stage.api.objects[GUARD]["metadata"]["ownerReferences"][0]["uid"] == "l1"


async def test_a_guard_that_a_person_made_in_between_stays_as_it_is(stage: Stage) -> None:
    stage.api.put(GUARD, {"spec": {"onGiveUp": "release"}})
    await stage.do(EnsureGuard(KEY, "l1"))
    assert stage.api.objects[GUARD]["spec"] == {"onGiveUp": "release"}


async def test_a_job_is_scaled_only_in_the_version_that_was_judged(stage: Stage) -> None:
    path = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/ns/leaderworkersets/job"
    version = stage.api.put(path, {"spec": {"replicas": 1}})["metadata"]["resourceVersion"]
    await stage.do(ScaleJob(KEY, 0, "0"))
    assert stage.api.objects[path]["spec"]["replicas"] == 1
    stage.now += 5
    await stage.do(ScaleJob(KEY, 0, version))
    assert stage.api.objects[path]["spec"]["replicas"] == 0


def taint(stage: Stage, *there: dict[str, str], version: str | None = None, node: str = "a") -> AddTaint:
    """A taint for a node that has these."""
    path = NODE.removesuffix("a") + node
    stored = stage.api.put(path, {"spec": {"taints": list(there)} if there else {}})["metadata"]["resourceVersion"]
    return AddTaint(node, version or stored, "xid-79", first=not there, reason="xid-79")


def taints(stage: Stage, node: str = "a") -> list[Any]:
    """What the node has now."""
    return list(stage.api.objects[NODE.removesuffix("a") + node]["spec"].get("taints", []))


@pytest.mark.parametrize("there", [(), (THEIRS,)], ids=["first", "beside-another"])
async def test_a_taint_is_added_behind_those_of_others_and_told_back(stage: Stage, there: tuple[Any, ...]) -> None:
    await stage.do(taint(stage, *there))
    assert taints(stage) == [*there, OURS]
    ((told,), expected) = (stage.facts, Taint("rlguard.io/unhealthy", "xid-79", "NoSchedule"))
    assert isinstance(told, Seen)
    assert isinstance(told.thing, Node)
    assert told.thing.taints[-1] == expected
    assert told.thing.resource_version == stage.api.objects[NODE]["metadata"]["resourceVersion"]


async def test_only_our_taint_is_taken_off(stage: Stage) -> None:
    other = {"key": "b", "effect": "NoExecute"}
    version = stage.api.put(NODE, {"spec": {"taints": [THEIRS, OURS, other]}})["metadata"]["resourceVersion"]
    await stage.do(RemoveTaint("a", version, 1, "its agent says healthy"))
    assert taints(stage) == [THEIRS, other]


async def test_a_taint_that_is_not_ours_is_not_taken_off_whatever_its_place(stage: Stage) -> None:
    version = stage.api.put(NODE, {"spec": {"taints": [OURS, THEIRS]}})["metadata"]["resourceVersion"]
    await stage.do(RemoveTaint("a", version, 1, "its agent says healthy"))
    assert taints(stage) == [OURS, THEIRS]


async def test_a_node_that_has_changed_meanwhile_is_not_touched(stage: Stage) -> None:
    await stage.do(taint(stage, THEIRS, version="0"))
    assert taints(stage) == [THEIRS]
    stage.now += 5
    await stage.do(RemoveTaint("a", "0", 0, "its agent says healthy"), RemoveTaint("gone", "0", 0, "so does that one"))
    assert taints(stage) == [THEIRS]
    assert stage.facts == []


def another_is_added(stage: Stage) -> None:
    """The taint of another node is on its way, and stays so."""
    stage.performer._running["add taint", "another"] = asyncio.create_task(asyncio.sleep(3600))


async def test_a_taint_waits_until_those_of_an_earlier_decision_are_on(stage: Stage) -> None:
    action = taint(stage)
    another_is_added(stage)
    await stage.performer.perform(Decision((action,), {}, None))
    await stage.performer.close()
    assert taints(stage) == []
    stage.performer._running.clear()
    await stage.do(action)
    assert taints(stage) == [OURS]


async def test_the_taints_of_one_decision_go_together(stage: Stage) -> None:
    await stage.do(taint(stage, node="a"), taint(stage, node="b"))
    assert taints(stage, "a") == taints(stage, "b") == [OURS]


async def test_a_taint_is_taken_off_also_while_others_are_put_on(stage: Stage) -> None:
    version = stage.api.put(NODE, {"spec": {"taints": [OURS]}})["metadata"]["resourceVersion"]
    another_is_added(stage)
    await stage.performer.perform(Decision((RemoveTaint("a", version, 0, "well"),), {}, None))
    await until(lambda: not taints(stage))
