"""The coordinator's core: when state is staged, flushed and committed, and what is saved before ranks are stopped."""

from __future__ import annotations

from group_rig import Rig, fatal, member, report

from rlguard.group import coordinator_facts
from rlguard.group.view import Mode
from rlguard.messages import StageResult, StageState, Want
from rlguard.model import Incarnation, Phase, Rung

X1, X2 = Incarnation(1, 1), Incarnation(1, 2)


def test_stages_come_at_the_interval_and_flushes_commit_what_all_hold() -> None:
    rig = Rig().started()
    rig.train(200)
    assert len(rig.commits) >= 3
    steps = [commit.checkpoint.step for commit in rig.commits]
    assert steps == sorted(set(steps))
    assert all(len(commit.files) == 2 for commit in rig.commits)
    assert rig.report().newest == rig.commits[-1].checkpoint


def test_a_stage_that_came_too_late_is_ordered_again_further_ahead() -> None:
    rig = Rig().started()
    first = rig.orders()[rig.members[0].uid].stage
    assert first is not None
    rig.change(0, stage=StageState(first.order, first.step, StageResult.PAST, 9), step=9, heartbeat_age=0.0)
    second = rig.orders()[rig.members[0].uid].stage
    assert second is not None
    assert second.order > first.order
    assert second.step > 10


def test_a_root_that_fails_is_told_and_training_goes_on() -> None:
    rig = Rig().started()
    rig.broken.add(coordinator_facts.Operation.COMMIT)
    rig.train(100)
    assert rig.view.mode is Mode.RUNNING
    assert rig.commits == []
    assert "no space left on device" in rig.report().why
    rig.broken.clear()
    rig.train(120)
    assert rig.commits


def test_a_fatal_notice_on_a_worker_saves_then_stops_and_asks_for_another_world() -> None:
    rig = Rig().started()
    rig.train(3)
    rig.change(1, notices=(fatal(),))
    assert rig.report().phase is Phase.SAVING
    assert not rig.report().saved
    rig.train(6)
    rig.settle()
    assert rig.report().phase is Phase.WAITING
    assert rig.report().saved
    assert rig.commits[-1].checkpoint.step >= 4
    assert [(item.uid, item.code, item.leaving) for item in rig.report().exclude] == [
        (rig.members[1].uid, "xid-79", True)
    ]
    rig.members[1] = member(1, "b")
    rig.reports[rig.members[1].uid] = report(rig.members[1])
    rig.granted(rig.members, number=2)
    rig.pass_time(3)
    assert rig.view.mode is Mode.RUNNING
    orders = rig.orders()
    assert orders[rig.members[1].uid].resume == rig.commits[-1].checkpoint
    assert orders[rig.members[1].uid].resume_directory == f"steps/{rig.commits[-1].checkpoint}"
    assert rig.report().exclude == ()
    assert rig.report().incidents[-1].decision is Rung.REPLACE


def test_a_deadline_stops_the_ranks_even_unsaved() -> None:
    rig = Rig().started()
    rig.broken.add(coordinator_facts.Operation.BEGIN_FLUSH)
    rig.train(3)
    rig.change(1, notices=(fatal("spot-reclaim", 20.0),))
    rig.train(20)
    assert rig.view.mode is Mode.RUNNING
    rig.train(12)
    assert rig.report().phase is Phase.WAITING


def test_a_notice_on_the_leader_saves_and_asks_for_recreation() -> None:
    rig = Rig().started()
    rig.train(3)
    rig.change(0, notices=(fatal(),))
    rig.train(6)
    rig.settle()
    assert rig.report().phase is Phase.RECREATING
    assert rig.report().recreate is not None
    assert rig.report().saved


def test_a_group_to_be_recreated_saves_and_holds_still() -> None:
    rig = Rig().started()
    rig.train(3)
    rig.granted(save_within=60.0)
    rig.train(6)
    rig.settle()
    assert (rig.report().phase, rig.report().saved) == (Phase.RECREATING, True)
    assert {order.want for order in rig.orders().values()} == {Want.STOP}


def test_a_larger_world_is_entered_only_once_it_is_there_and_everything_saved() -> None:
    rig = Rig(3)
    rig.silent.add(rig.members[2].uid)
    rig.granted(rig.members[:2])
    rig.beat()
    rig.pass_time(1)
    rig.steps(1)
    rig.train(3)
    rig.granted(rig.members, number=2)
    rig.train(5)
    assert rig.view.save is None, "the new member has not been heard"
    rig.silent.clear()
    rig.beat()
    assert rig.report().phase is Phase.SAVING
    rig.train(6)
    rig.settle()
    assert rig.commits
    assert len(rig.report().world) == 3
    assert rig.report().incidents[-1].decision is Rung.GROW
