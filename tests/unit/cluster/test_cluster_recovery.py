"""The controller's decisions, seen in a toy cluster: what happens to a job when something breaks."""

from __future__ import annotations

from cluster_kit import Cluster

from rlguard.cluster.actions import ScaleJob, WriteStatus
from rlguard.messages import Want
from rlguard.model import CheckpointId, Incarnation, Phase, Repair, Rung

ELASTIC = {"elastic": {"minMembers": 1}}


def test_a_new_job_gets_a_guard_a_generation_and_a_world_of_all_members() -> None:
    cluster = Cluster().running()
    assert cluster.group.generation == 1
    assert cluster.group.world_number == 1
    assert cluster.world == ["a", "b"]
    assert {grant.want for grant in cluster.told.values()} == {Want.RUN}
    assert cluster.condition("Guarded") == ("True", "Guarded")


def test_an_undisturbed_job_is_left_alone() -> None:
    cluster = Cluster().running()
    cluster.run(600)
    assert cluster.deleted() == []
    assert cluster.group.world_number == 1
    assert len(cluster.actions(WriteStatus)) < 600 / 4


def test_a_worker_on_a_bad_node_is_replaced_elsewhere_after_saving() -> None:
    cluster = Cluster().running()
    cluster.notice("b")
    cluster.run(2)
    assert cluster.deleted() == []
    cluster.run(8)
    assert cluster.deleted() == ["job-0-1"]
    assert cluster.world == ["a", "c"]
    assert [(entry.node, entry.reason) for entry in cluster.status.avoid] == [("b", "xid-79")]
    assert cluster.group.world_number == 2
    assert cluster.group.phase is Phase.RUNNING


def test_without_a_spare_node_the_group_shrinks_and_grows_back_when_the_node_has_booted_anew() -> None:
    cluster = Cluster(spec=ELASTIC, node_names=("a", "b")).running()
    cluster.notice("b", "spot-reclaim")
    cluster.run(10)
    assert cluster.world == ["a"]
    assert cluster.condition("Degraded")[0] == "True"
    cluster.kill_node("b")
    cluster.run(60)
    assert cluster.world == ["a"]
    cluster.boot_node("b")
    cluster.run(10)
    assert cluster.world == ["a", "b"]
    assert cluster.status.avoid == ()
    assert cluster.condition("Degraded")[0] == "False"
    assert cluster.group.phase is Phase.RUNNING


def test_a_job_that_may_not_shrink_waits_for_a_node_with_a_reason() -> None:
    cluster = Cluster(node_names=("a", "b")).running()
    cluster.notice("b", "spot-reclaim")
    cluster.run(120)
    assert cluster.world == ["a", "b"]
    assert cluster.group.phase is Phase.WAITING
    assert cluster.group.why == "waiting for a replacement of member 1: no node has room"


def test_a_state_that_does_not_load_at_another_size_is_never_shrunk() -> None:
    cluster = Cluster(spec=ELASTIC, node_names=("a", "b"), reshardable=False).running()
    cluster.notice("b", "spot-reclaim")
    cluster.run(120)
    assert cluster.group.world_number == 1


def test_a_node_that_booted_anew_but_is_still_bad_stays_avoided() -> None:
    cluster = Cluster(spec=ELASTIC, node_names=("a", "b")).running()
    cluster.notice("b")
    cluster.run(10)
    cluster.nodes["b"].verdict = cluster.nodes["b"].verdict.UNKNOWN
    cluster.nodes["b"].boot = "another"
    cluster.run(30)
    assert [entry.node for entry in cluster.status.avoid] == ["b"]


def test_a_fault_that_a_reset_mends_is_forgiven_on_the_same_boot() -> None:
    cluster = Cluster(spec=ELASTIC, node_names=("a", "b")).running()
    cluster.notice("b", "xid-95", Repair.RESET_GPU)
    cluster.nodes["b"].verdict = cluster.nodes["b"].verdict.LEAVING
    cluster.run(10)
    assert cluster.world == ["a"]
    cluster.nodes["b"].notices, cluster.nodes["b"].verdict = (), cluster.nodes["b"].verdict.HEALTHY
    cluster.run(10)
    assert cluster.world == ["a", "b"]


def test_a_dead_worker_node_is_left_by_force_and_the_worker_replaced() -> None:
    cluster = Cluster().running()
    cluster.kill_node("b")
    cluster.run(19)
    assert cluster.deleted() == []
    cluster.run(12)
    assert cluster.deleted() == ["job-0-1!"]
    assert cluster.world == ["a", "c"]
    assert [entry.reason for entry in cluster.status.avoid] == ["node-lost"]


def test_a_dead_leader_node_costs_the_group_which_resumes_elsewhere() -> None:
    cluster = Cluster().running()
    cluster.run(20)
    before = cluster.group
    cluster.kill_node("a")
    cluster.run(45)
    assert cluster.deleted()[0] == "job-0!"
    assert cluster.group.generation == before.generation + 1
    assert sorted(cluster.world) == ["b", "c"]
    assert cluster.group.phase is Phase.RUNNING
    incident = cluster.group.incidents[-1]
    assert (incident.fault, incident.decision) == ("node-lost", Rung.RECREATE)
    assert str(incident.resumed) == "20@1.1"
    assert incident.lost_steps is not None
    assert 0 <= incident.lost_steps < 10
    assert incident.first_step_at is not None
    assert set(before.world_uids) <= set(cluster.group.refused)


def test_a_worker_left_on_the_dead_leaders_node_does_not_block_the_recreation() -> None:
    cluster = Cluster(size=3, node_names=("a", "b", "c", "d", "e")).running()
    cluster.kill_node("a")
    cluster.kill_node("b")
    cluster.run(60)
    assert {"job-0!", "job-0-1!"} <= set(cluster.deleted())
    assert sorted(cluster.world) == ["c", "d", "e"]
    assert cluster.group.phase is Phase.RUNNING


def test_a_notice_on_the_leaders_node_saves_first_and_then_recreates_elsewhere() -> None:
    cluster = Cluster().running()
    cluster.notice("a")
    cluster.run(2)
    assert cluster.deleted() == []
    assert any(grant.save_within for grant in cluster.told.values())
    cluster.run(15)
    assert cluster.deleted() == ["job-0"]
    assert "a" not in cluster.world
    assert cluster.group.phase is Phase.RUNNING


def test_a_group_that_lws_recreates_as_a_whole_is_recreated_by_its_leader() -> None:
    cluster = Cluster(isolated=False).running()
    cluster.notice("b")
    cluster.run(15)
    assert cluster.deleted() == ["job-0"]
    assert "b" not in cluster.world
    assert cluster.group.generation == 2


def test_a_worker_that_somebody_deleted_rejoins_as_another_pod() -> None:
    cluster = Cluster().running()
    old = cluster.group.world[1].uid
    cluster.remove(old)
    cluster.run(6)
    assert cluster.group.world_number == 2
    assert cluster.group.world[1].uid != old
    assert old in cluster.group.refused


def test_when_all_is_done_the_job_is_complete_and_scaled_to_zero() -> None:
    cluster = Cluster().running()
    for toy in cluster.pods.values():
        toy.finished = True
    cluster.run(3)
    assert cluster.status.phase is Phase.COMPLETED
    assert "Completed" in cluster.events
    assert [action.replicas for action in cluster.actions(ScaleJob)][:1] == [0]
    cluster.run(30)
    assert cluster.status.phase is Phase.COMPLETED


def test_pods_of_a_completed_job_idle_when_they_are_made_anew() -> None:
    cluster = Cluster().running()
    for toy in cluster.pods.values():
        toy.finished = True
    cluster.job_version = "newer"  # somebody else writes the LWS all the time: it is never scaled
    cluster.run(3)
    old = set(cluster.told)
    for uid in list(cluster.pods):
        cluster.remove(uid)
    cluster.run(10)
    fresh = set(cluster.told) - old
    assert fresh
    assert {cluster.told[uid].want for uid in fresh} == {Want.IDLE}
    assert cluster.group.phase is Phase.COMPLETED


def test_c10_a_job_made_anew_under_the_name_of_a_completed_one_trains() -> None:
    cluster = Cluster(completed_by="the UID of an earlier LWS", disk_generation=3).running()
    assert cluster.group.generation == 4
    assert cluster.actions(ScaleJob) == []


def test_c10_a_job_whose_guard_was_lost_after_it_completed_stays_completed() -> None:
    cluster = Cluster(completed_by="lws-1", disk_generation=3)
    cluster.run(10)
    assert cluster.status.phase is Phase.COMPLETED


def test_a_leader_that_went_without_our_doing_is_an_incident_and_counts() -> None:
    cluster = Cluster(spec={"restart": {"recreations": 1}}).running()
    for _ in range(2):
        for uid in list(cluster.pods):
            cluster.remove(uid)
        cluster.run(10)
    assert cluster.group.incidents[0].fault == "leader-replaced"
    assert cluster.group.incidents[0].first_step_at is not None
    assert cluster.group.phase is Phase.GAVE_UP
    assert {cluster.told[uid].want for uid in cluster.pods} == {Want.IDLE}


def test_when_the_budget_is_spent_it_gives_up_and_holds_the_pods() -> None:
    cluster = Cluster(spec={"restart": {"recreations": 1}}).running()
    cluster.kill_node("a")
    cluster.run(45)
    cluster.boot_node("a")
    cluster.notice(cluster.group.world[0].node)
    cluster.run(15)
    assert cluster.status.phase is Phase.GAVE_UP
    assert cluster.condition("GaveUp")[0] == "True"
    assert cluster.actions(ScaleJob) == []
    assert {cluster.told[uid].want for uid in cluster.pods} == {Want.IDLE}


def test_giving_up_releases_the_nodes_if_the_policy_says_so() -> None:
    cluster = Cluster(spec={"restart": {"recreations": 0}, "onGiveUp": "release"}).running()
    cluster.notice("a")
    cluster.run(10)
    assert cluster.replicas == 0


def test_the_budget_is_a_window_and_not_for_ever() -> None:
    cluster = Cluster(spec={"restart": {"recreations": 1, "windowSeconds": 100}}).running()
    cluster.notice("a")
    cluster.run(120)
    cluster.boot_node("a")
    cluster.run(2)
    cluster.notice(cluster.group.world[0].node)
    cluster.run(15)
    assert cluster.group.generation == 3


def test_an_unreadable_root_blocks_with_its_reason() -> None:
    cluster = Cluster(root_state="/checkpoints: Input/output error", disk_generation=None)
    cluster.run(10)
    assert cluster.group.generation == 0
    assert cluster.condition("NoCheckpointRoot") == ("True", "Unreadable")
    cluster.run(130)
    assert cluster.group.phase is Phase.BLOCKED
    assert "Input/output error" in cluster.group.why
    cluster.root_state, cluster.disk_generation = "ok", 4
    cluster.run(5)
    assert cluster.group.generation == 5


def test_a_job_without_a_root_trains_and_says_so() -> None:
    cluster = Cluster(root_state="none", disk_generation=None).running()
    assert cluster.condition("NoCheckpointRoot") == ("True", "NoVolume")


def test_a_member_that_failed_open_leaves_the_whole_group_untouched() -> None:
    cluster = Cluster()
    cluster.run(1)
    for toy in cluster.pods.values():
        toy.untouched = True
    cluster.run(5)
    assert cluster.group.phase is Phase.UNGUARDED
    assert cluster.condition("Guarded") == ("False", "FailedOpen")
    assert {grant.want for grant in cluster.told.values()} == {Want.UNTOUCHED}


def test_a_bad_spec_is_named_and_the_defaults_hold() -> None:
    cluster = Cluster(spec={"restart": {"recreations": "many"}}).running()
    assert cluster.condition("Guarded") == ("False", "BadSpec")


def test_when_most_nodes_are_silent_at_once_nothing_is_deleted() -> None:
    cluster = Cluster(node_names=("a", "b", "c", "d", "e")).running()
    for name in ("a", "b", "c"):
        cluster.kill_node(name)
    cluster.run(60)
    assert cluster.deleted() == []
    assert cluster.condition("Held")[0] == "True"
    for name in ("b", "c"):
        cluster.boot_node(name)
    cluster.run(45)
    assert cluster.condition("Held")[0] == "False"
    assert "job-0!" in cluster.deleted()


def test_a_pending_pod_with_an_old_avoid_list_is_made_anew() -> None:
    cluster = Cluster(spec=ELASTIC, node_names=("a", "b")).running()
    cluster.notice("b", "spot-reclaim")
    cluster.run(10)
    pending = next(toy.pod for toy in cluster.pods.values() if toy.pod.index == 1)
    assert pending.avoid == ("b",)
    cluster.boot_node("b")
    cluster.run(10)
    assert pending.uid not in cluster.pods


def test_a_group_grows_to_at_most_twice_its_members_at_once() -> None:
    cluster = Cluster(size=5, spec=ELASTIC, node_names=("a", "b", "c", "d", "e")).running()
    for name in ("b", "c", "d", "e"):
        cluster.notice(name, "spot-reclaim")
    cluster.run(12)
    assert cluster.world == ["a"]
    for name in ("b", "c", "d", "e"):
        cluster.boot_node(name)
    sizes = []
    for _ in range(30):
        cluster.run(1)
        sizes.append(len(cluster.world))
    assert list(dict.fromkeys(sizes)) == [1, 2, 4, 5]


def test_while_actions_are_held_no_pod_is_ended_by_force() -> None:
    cluster = Cluster(node_names=("a", "b", "c", "d", "e")).running()
    for name in ("b", "c", "d"):
        cluster.kill_node(name)
    cluster.end(next(toy for toy in cluster.pods.values() if toy.pod.index == 1), force=False)
    cluster.run(60)
    assert cluster.condition("Held")[0] == "True"
    assert cluster.deleted() == []


def test_a_pod_that_hangs_terminating_on_a_dead_node_is_ended_by_force() -> None:
    cluster = Cluster().running()
    cluster.kill_node("b")
    cluster.end(next(toy for toy in cluster.pods.values() if toy.pod.index == 1), force=False)
    cluster.run(40)
    assert cluster.deleted() == ["job-0-1!"]
    assert cluster.world == ["a", "c"]


def test_the_last_step_of_a_leader_that_went_with_the_controller_is_known_by_the_members() -> None:
    cluster = Cluster().running()
    cluster.run(15)
    leader = next(toy for toy in cluster.pods.values() if toy.pod.index == 0)
    cluster.kill_node("a")
    stored = cluster.group.step or 0
    leader.step = stored + 4  # done, and told to the controller that is gone
    cluster.start_controller()
    cluster.run(120)
    assert cluster.group.generation == 2
    incident = cluster.group.incidents[-1]
    assert incident.decision is Rung.RECREATE
    assert incident.resumed == CheckpointId(Incarnation(1, 1), 10)
    assert incident.lost_steps == leader.step - 10


def test_a_recreated_group_with_nothing_committed_lost_all_its_steps() -> None:
    cluster = Cluster().running()
    cluster.run(3)
    leader = next(toy for toy in cluster.pods.values() if toy.pod.index == 0)
    cluster.kill_node("a")
    cluster.run(120)
    incident = cluster.group.incidents[-1]
    assert incident.decision is Rung.RECREATE
    assert (incident.resumed, incident.lost_steps) == (None, leader.step)
