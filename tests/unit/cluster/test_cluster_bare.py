"""Pods that the injector missed: made anew while that costs next to nothing, else left alone."""

from __future__ import annotations

from cluster_kit import Cluster

from rlguard.cluster.actions import DeletePod
from rlguard.cluster.bare import BARE_TRIES
from rlguard.model import Phase


def test_a9_a_pod_that_the_injector_missed_does_not_train_beside_a_guarded_group() -> None:
    cluster = Cluster().running()
    cluster.injector = False
    cluster.notice("b")
    cluster.run(14)
    assert cluster.condition("Guarded") == ("False", "NotInjected")
    cluster.injector = True
    cluster.run(20)
    assert cluster.world == ["a", "c"]
    assert cluster.condition("Guarded") == ("True", "Guarded")


def test_a9_a_leader_that_the_injector_missed_is_created_anew_instead_of_beginning_at_step_0() -> None:
    cluster = Cluster().running()
    cluster.injector = False
    cluster.notice("a")
    cluster.run(12)
    cluster.injector = True
    cluster.run(20)
    assert cluster.group.generation == 2
    assert cluster.group.phase is Phase.RUNNING


def test_an_injector_that_never_answers_does_not_stop_training_for_ever() -> None:
    cluster = Cluster().running()
    cluster.injector = False
    cluster.notice("b")
    cluster.run(60)
    uids = {action.uid for action in cluster.actions(DeletePod)}
    assert len(uids) == 1 + BARE_TRIES
    cluster.run(200)
    assert {action.uid for action in cluster.actions(DeletePod)} == uids


def test_a_pod_that_cannot_be_guarded_is_left_as_it_is() -> None:
    cluster = Cluster().running()
    cluster.injector, cluster.refused = False, True
    cluster.notice("b")
    cluster.run(60)
    assert len({action.uid for action in cluster.actions(DeletePod)}) == 1


def test_pods_from_before_the_controller_keep_training() -> None:
    cluster = Cluster(injector=False)
    cluster.lws()
    cluster.start_controller()
    cluster.injector = True
    cluster.run(60)
    assert cluster.deleted() == []
    assert cluster.condition("Guarded") == ("False", "NotInjected")


def test_a_job_whose_first_pods_the_injector_missed_is_guarded_all_the_same() -> None:
    cluster = Cluster(injector=False)
    cluster.run(3)
    cluster.injector = True
    cluster.run(20)
    assert cluster.group.phase is Phase.RUNNING
    assert cluster.condition("Guarded") == ("True", "Guarded")


def test_a_job_whose_leader_alone_the_injector_missed_is_guarded_all_the_same() -> None:
    cluster = Cluster(injector=False)
    cluster.create(0)
    cluster.injector = True
    cluster.run(30)
    assert cluster.group.phase is Phase.RUNNING
    assert cluster.world == ["a", "b"]


def test_a_job_that_trained_unguarded_for_long_is_not_ended_by_a_controller_that_could_not_act() -> None:
    cluster = Cluster(injector=False)
    cluster.lws()
    cluster.now += 3600  # it saw the pods appear, and led an hour later
    cluster.injector = True
    cluster.run(30)
    assert cluster.deleted() == []


def test_a_job_that_no_injector_ever_answers_for_trains_in_the_end() -> None:
    cluster = Cluster(injector=False)
    cluster.run(120)
    uids = {action.uid for action in cluster.actions(DeletePod)}
    cluster.run(200)
    assert {action.uid for action in cluster.actions(DeletePod)} == uids
    assert len(cluster.pods) == cluster.size
