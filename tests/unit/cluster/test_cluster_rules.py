"""The rules of the protocol that the controller answers for: A3 (written before told), A4 (silence), C10 (identity)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cluster_kit import KEY, Cluster

from rlguard.cluster.actions import DeletePod, TellGrant, WriteStatus
from rlguard.cluster.context import Clock
from rlguard.cluster.decide import decide
from rlguard.cluster.facts import Seen
from rlguard.cluster.group import known_fenced
from rlguard.cluster.silence import Proof, proof_of_loss
from rlguard.cluster.status import GuardStatus, parse_status, status_to_json
from rlguard.cluster.view import View
from rlguard.model import Phase


def leader_proof(cluster: Cluster) -> Proof:
    """What the controller can say of the leader's node now."""
    return proof_of_loss(cluster.view, cluster.view.members(next(iter(cluster.view.groups)))[0], cluster.now)


def test_a3_nothing_is_told_before_it_is_written() -> None:
    cluster = Cluster(refuse_writes=True)
    cluster.run(30)
    assert cluster.actions(WriteStatus)
    assert cluster.actions(TellGrant) == []
    cluster.refuse_writes = False
    cluster.run(3)
    assert cluster.actions(TellGrant)


def test_a3_no_pod_is_deleted_before_that_is_written() -> None:
    cluster = Cluster().running()
    cluster.refuse_writes = True
    cluster.notice("b")
    cluster.run(20)
    assert cluster.deleted() == []
    cluster.refuse_writes = False
    cluster.run(2)
    assert cluster.deleted() == ["job-0-1"]


def test_a3_a_controller_that_takes_over_in_the_middle_finishes_what_was_written() -> None:
    cluster = Cluster().running()
    cluster.notice("b")
    while cluster.group.pending is None:
        cluster.run(1)
    pending = cluster.group.pending
    cluster.start_controller()
    cluster.run(15)
    assert set(pending.uids) <= {action.uid for action in cluster.actions(DeletePod)}
    assert cluster.world == ["a", "c"]
    assert cluster.group.world_number == 2


def test_a3_a_controller_that_takes_over_tells_the_same_world_again() -> None:
    cluster = Cluster().running()
    before = dict(cluster.told)
    cluster.told.clear()
    cluster.start_controller()
    cluster.run(3)
    assert {uid: grant.world for uid, grant in cluster.told.items()} == {uid: g.world for uid, g in before.items()}
    assert cluster.group.generation == 1


def test_a3_a_write_carries_the_version_it_was_made_from() -> None:
    cluster = Cluster().running()
    cluster.notice("b")
    cluster.run(1)
    version = cluster.guard.resource_version if cluster.guard else ""
    writes = [a for a in decide(cluster.view, Clock(cluster.now + 9, 0.0)).actions if isinstance(a, WriteStatus)]
    assert [write.resource_version for write in writes] in ([version], [])


def test_a3_a_watch_event_from_before_the_last_write_does_not_bring_back_an_old_world() -> None:
    cluster = Cluster()
    cluster.run(1)
    old = cluster.guard
    assert old is not None
    cluster.running()
    cluster.tell(Seen(cluster.now, old))
    assert cluster.view.guards[KEY].guard.status.group(0).world_number == 1


def test_a3_a_replaced_pod_is_refused_even_if_it_speaks_again() -> None:
    cluster = Cluster(spec={"elastic": {"minMembers": 1}}).running()
    old = next(toy for toy in cluster.pods.values() if toy.pod.index == 1)
    cluster.remove(old.pod.uid)
    cluster.run(6)
    assert old.pod.uid in cluster.group.refused
    cluster.remove(next(uid for uid, toy in cluster.pods.items() if toy.pod.index == 1))
    cluster.pods[old.pod.uid] = old
    cluster.view = replace(cluster.view, gone_at={})  # as a controller that has just taken over
    cluster.tell(Seen(cluster.now, old.pod))
    cluster.run(40)
    assert cluster.world == ["a"]


def test_a4_silence_counts_from_when_this_controller_took_over() -> None:
    cluster = Cluster().running()
    cluster.nodes["a"].cut = True
    cluster.run(15)
    cluster.start_controller()
    cluster.run(15)
    assert leader_proof(cluster) is Proof.TOO_EARLY


def test_a4_a_pod_never_heard_is_unknown_and_not_lost() -> None:
    cluster = Cluster().running()
    cluster.kill_node("a")
    cluster.kill_node("b")  # no member is left that could miss the leader
    cluster.start_controller()
    cluster.run(120)
    assert leader_proof(cluster) is Proof.NEVER_HEARD
    assert cluster.deleted() == []


def test_a4_a_node_that_died_before_the_takeover_is_lost_by_the_word_of_cluster_and_members() -> None:
    cluster = Cluster().running()
    cluster.kill_node("a")
    cluster.start_controller()
    cluster.run(15)
    assert cluster.deleted() == []
    cluster.run(45)
    assert cluster.deleted()[0] == "job-0!"
    assert cluster.group.phase is Phase.RUNNING


def test_a4_a_kubelet_that_renews_its_lease_vetoes() -> None:
    cluster = Cluster().running()
    cluster.nodes["a"].cut = True
    for toy in cluster.pods.values():
        if toy.pod.index:
            toy.since = cluster.now + 999  # the worker is not heard either: only the Lease speaks
    cluster.run(60)
    assert leader_proof(cluster) is Proof.LEASE_RENEWED
    assert cluster.deleted() == []


def test_a4_a_member_that_hears_the_leader_vetoes() -> None:
    cluster = Cluster().running()
    cluster.nodes["a"].cut = True
    cluster.run(60)
    assert leader_proof(cluster) is Proof.MEMBER_HEARS
    assert cluster.deleted() == []


def test_a4_a_controller_that_hears_nobody_proves_nothing() -> None:
    cluster = Cluster().running()
    for node in cluster.nodes.values():
        node.cut = True
    cluster.kubelets_renew = False
    cluster.run(60)
    assert leader_proof(cluster) is Proof.NOBODY_HEARD
    assert cluster.deleted() == []


def test_a4_a_living_agent_means_the_node_is_not_lost() -> None:
    cluster = Cluster().running()
    leader = next(toy for toy in cluster.pods.values() if toy.pod.index == 0)
    leader.since = cluster.now + 999  # its sidecar says nothing more
    cluster.run(60)
    assert leader_proof(cluster) is Proof.ALIVE
    assert cluster.deleted() == []


def test_a7_a_leader_that_stays_silent_on_a_living_node_costs_the_group_in_the_end() -> None:
    cluster = Cluster().running()
    leader = next(toy for toy in cluster.pods.values() if toy.pod.index == 0)
    leader.since = cluster.now + 999
    leader.pod = replace(leader.pod, deleting=False)
    cluster.alive = lambda toy: toy is not leader and Cluster.alive(cluster, toy)  # type: ignore[method-assign]
    cluster.run(115)
    assert cluster.deleted() == []
    cluster.run(15)
    assert cluster.deleted() == ["job-0"]


def test_a7_a_worker_that_nobody_hears_on_a_living_node_is_replaced_in_the_end() -> None:
    cluster = Cluster().running()
    worker = next(toy for toy in cluster.pods.values() if toy.pod.index == 1)
    cluster.alive = lambda toy: toy is not worker and Cluster.alive(cluster, toy)  # type: ignore[method-assign]
    cluster.run(115)
    assert cluster.deleted() == []
    cluster.run(20)
    assert cluster.deleted() == ["job-0-1"]
    assert cluster.group.phase is Phase.RUNNING
    assert cluster.status.avoid == ()


def test_a7_a_pod_whose_sidecar_never_speaks_blocks_the_start_with_its_name() -> None:
    cluster = Cluster()
    cluster.alive = lambda toy: toy.pod.index == 0 and Cluster.alive(cluster, toy)  # type: ignore[method-assign]
    cluster.run(320)
    assert cluster.group.phase is Phase.BLOCKED
    assert "job-0-1 runs on b but its sidecar is not heard" in cluster.group.why


def test_c10_another_lws_of_the_same_name_keeps_the_generation_and_nothing_else() -> None:
    cluster = Cluster(spec={"restart": {"recreations": 0}}).running()
    cluster.notice("a")
    cluster.run(15)
    assert cluster.status.phase is Phase.GAVE_UP
    cluster.nodes["a"].notices = ()
    for uid in list(cluster.pods):
        cluster.remove(uid)
    cluster.job_uid, cluster.job_version = "lws-2", str(next(cluster.versions))
    cluster.disk_generation = 0
    cluster.tell(Seen(cluster.now, cluster.job()))
    cluster.run(8)
    assert cluster.status.job_uid == "lws-2"
    assert cluster.group.generation == 2
    assert cluster.group.recreations == ()
    assert cluster.group.phase is Phase.RUNNING


def test_c10_nothing_is_told_from_the_status_of_another_lws() -> None:
    cluster = Cluster().running()
    cluster.job_uid = "lws-2"
    cluster.tell(Seen(cluster.now, cluster.job()))
    cluster.log.clear()
    cluster.refuse_writes = True
    cluster.run(3)
    assert cluster.actions(TellGrant) == []


def test_the_generation_is_above_what_the_disk_knows() -> None:
    cluster = Cluster(disk_generation=7).running()
    assert cluster.group.generation == 8


def test_nothing_is_decided_before_every_kind_of_object_was_listed() -> None:
    assert decide(View(), Clock(1.0, 1.0)).actions == ()


def test_a_status_survives_its_trip_through_json() -> None:
    cluster = Cluster().running()
    cluster.kill_node("a")
    while cluster.group.pending is None:
        cluster.run(1)
    stored = status_to_json(cluster.status)
    assert status_to_json(parse_status(stored)) == stored
    assert stored["groups"][0]["pendingDelete"]["kind"] == "recreate"


@pytest.mark.parametrize("garbage", [None, 7, "x", {"groups": 3, "avoid": [1], "phase": "?"}, {"groups": [{}, None]}])
def test_a_status_that_makes_no_sense_reads_as_an_empty_one(garbage: object) -> None:
    assert parse_status(garbage) == GuardStatus()


def test_a_group_that_waits_for_members_says_in_kubernetes_words_what_they_wait_for() -> None:
    cluster = Cluster(node_names=("a",))
    cluster.run(5)
    assert cluster.group.phase is Phase.PENDING
    assert cluster.group.why == "waiting for members 1; job-0-1 waits: no node is free"
    nowhere = Cluster(node_names=())
    nowhere.run(5)
    assert nowhere.group.why == "leader pod job-0 has not been heard yet: no node is free"


def test_whether_a_job_is_fenced_is_unknown_until_its_ranks_run() -> None:
    cluster = Cluster().running()
    said = cluster.coordinate(next(toy for toy in cluster.pods.values() if toy.pod.index == 0))
    assert said is not None
    unhooked = replace(said, fenced=False)
    nothing_known = replace(cluster.group, fenced=None)
    assert known_fenced(nothing_known, replace(unhooked, phase=Phase.STARTING)) is None
    assert known_fenced(nothing_known, unhooked) is False
    assert known_fenced(cluster.group, replace(unhooked, phase=Phase.STARTING)) is True
