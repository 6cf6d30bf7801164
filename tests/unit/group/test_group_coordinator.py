"""The coordinator's core: each rule by its name, each behaviour in a sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest
from group_rig import TIMING, Rig, fatal, member, record, report

from rlguard.group import coordinator_facts, facts
from rlguard.group.view import Mode
from rlguard.messages import Ranks, Want
from rlguard.model import CheckpointId, Incarnation, Phase, Rung

X1, X2 = Incarnation(1, 1), Incarnation(1, 2)


def test_a_first_start_claims_records_and_orders_everybody_to_run_from_step_0() -> None:
    rig = Rig().started()
    orders = rig.orders()
    assert [order.want for order in orders.values()] == [Want.RUN, Want.RUN]
    assert {order.incarnation for order in orders.values()} == {X1}
    assert {order.resume for order in orders.values()} == {None}
    assert {order.master_port for order in orders.values()} == {29500}
    kinds = [type(action) for action in rig.did]
    assert kinds.index(coordinator_facts.ClaimAttempt) < kinds.index(coordinator_facts.WriteRecord)
    assert rig.report().phase is Phase.RUNNING


def test_a1_a_crash_is_recovered_in_place_with_nobody_outside_the_group() -> None:
    rig = Rig().started()
    rig.train(40)
    rig.tell(facts.ControllerLink(rig.now, False))  # noqa: FBT003 - closed
    confirmed = rig.view.confirmed
    assert confirmed is not None
    rig.crash(1)
    rig.settle()
    assert rig.view.mode is Mode.RUNNING
    orders = rig.orders()
    assert {order.incarnation for order in orders.values()} == {X2}
    assert {order.resume for order in orders.values()} == {confirmed}
    incident = rig.report().incidents[-1]
    assert (incident.fault, incident.decision) == ("rank-exited", Rung.IN_PLACE)
    assert "RuntimeError: boom" in incident.detail
    assert incident.lost_steps == 41 - confirmed.step
    assert incident.first_step_at is None
    rig.pass_time(1)
    rig.steps(confirmed.step + 1)
    assert rig.report().incidents[-1].first_step_at == pytest.approx(rig.now + 4000.0)


def test_a_rank_that_dies_is_acted_on_while_its_launcher_still_takes_the_others_down() -> None:
    rig = Rig().started()
    rig.train(10)
    rig.change(1, ranks=Ranks.STOPPING, signal=9)
    assert rig.view.mode is Mode.STOPPING
    assert rig.report().incidents[-1].fault == "rank-exited"


def test_ranks_that_are_taken_down_without_a_death_are_waited_for() -> None:
    rig = Rig().started()
    rig.train(10)
    rig.change(1, ranks=Ranks.STOPPING)
    assert rig.view.mode is Mode.RUNNING


def test_a1_a_changed_world_needs_the_controllers_word() -> None:
    rig = Rig().started()
    rig.train(10)
    rig.silent.add(rig.members[1].uid)
    rig.crash(0)
    rig.pass_time(60)
    assert rig.claims == [X1], "nobody starts without the silent member on its own account"
    assert rig.report().phase is Phase.WAITING
    assert [(item.uid, item.leaving) for item in rig.report().exclude] == [(rig.members[1].uid, False)]


def test_a2_nothing_is_claimed_before_every_member_says_that_its_ranks_are_gone() -> None:
    rig = Rig().started()
    rig.train(4)
    uid = rig.members[1].uid
    rig.crash(0)
    rig.silent.add(uid)
    for ranks in (Ranks.RUNNING, Ranks.STOPPING, Ranks.UNKNOWN, Ranks.STUCK):
        rig.tell(coordinator_facts.MemberHeard(rig.now, replace(rig.reports[uid], ranks=ranks)))
        rig.settle()
        assert rig.claims == [X1], ranks
    rig.tell(coordinator_facts.MemberHeard(rig.now, replace(rig.reports[uid], ranks=Ranks.GONE)))
    rig.settle()
    assert rig.claims == [X1, X2]


def test_a2_absent_ranks_in_an_answer_to_an_older_order_do_not_count() -> None:
    rig = Rig()
    rig.granted()
    rig.tell(coordinator_facts.DiskSeen(rig.now, coordinator_facts.LineageScan(claims=((X1, rig.members[0].uid),))))
    for who in rig.members:
        rig.tell(coordinator_facts.MemberHeard(rig.now, report(who)))
    assert not any(isinstance(action, coordinator_facts.ClaimAttempt) for action in rig.decide().actions)
    assert {order.incarnation for order in rig.orders().values()} == {X1}
    for who in rig.members:
        rig.tell(coordinator_facts.MemberHeard(rig.now, report(who, X1)))
    assert any(isinstance(action, coordinator_facts.ClaimAttempt) for action in rig.decide().actions)


def test_a2_a_grant_that_excludes_a_silent_member_lets_the_others_start() -> None:
    rig = Rig(3).started()
    rig.train(40)
    rig.silent.add(rig.members[2].uid)
    rig.crash(0)
    rig.pass_time(10)
    rig.granted(rig.members[:2], number=2)
    rig.pass_time(70)
    assert rig.claims == [X1, X2]
    assert rig.report().world == (rig.members[0].uid, rig.members[1].uid)


def test_a2_a_restarted_coordinator_adopts_what_runs_only_if_it_is_the_newest_claim() -> None:
    rig = Rig().started()
    rig.train(4)
    rig.restarted()
    rig.pass_time(2)
    assert rig.view.mode is Mode.RUNNING
    assert rig.claims == [X1]
    rig.scan = replace(rig.scan, claims=(*rig.scan.claims, (X2, rig.members[0].uid)))
    rig.restarted()
    rig.pass_time(3)
    assert rig.claims == [X1, Incarnation(1, 3)], "superseded, not adopted"


def test_a2_a_run_without_a_record_is_never_adopted() -> None:
    rig = Rig().started()
    rig.scan = replace(rig.scan, records=())
    rig.restarted()
    rig.pass_time(3)
    assert rig.claims[-1] == X2


def test_a4_a_silent_member_alone_stops_nothing() -> None:
    rig = Rig().started()
    rig.train(4)
    rig.silent.add(rig.members[1].uid)
    rig.pass_time(30)
    assert rig.view.mode is Mode.RUNNING
    assert rig.report().heard == (rig.members[0].uid,)


def test_a4_a_coordinator_that_was_frozen_itself_takes_nobody_for_silent() -> None:
    rig = Rig().started()
    rig.train(30)
    rig.now += 50
    rig.granted(save_within=60.0)
    rig.decide()
    assert rig.view.mode is Mode.RUNNING
    assert rig.report().phase is Phase.SAVING


def test_a7_every_decision_says_when_to_ask_again() -> None:
    rig = Rig()
    for _ in range(5):
        decision = rig.decide()
        assert decision.wake_at is not None
        assert rig.now < decision.wake_at <= rig.now + 1.0
        rig.now = decision.wake_at


def test_a7_a_group_that_gets_no_changed_world_goes_on_in_the_one_it_has() -> None:
    rig = Rig().started()
    rig.train(30)
    rig.change(1, notices=(fatal(),))
    rig.pass_time(20)
    rig.train(10)
    rig.pass_time(100)
    assert rig.report().phase is Phase.WAITING
    rig.pass_time(60)
    assert rig.view.mode is Mode.RUNNING
    assert rig.view.attempt is not None
    assert rig.view.attempt.incarnation == X2


def test_a_fault_that_was_over_and_comes_again_is_acted_on_again() -> None:
    rig = Rig().started()
    rig.train(30)
    rig.change(1, notices=(fatal(),))
    rig.pass_time(20)
    rig.train(10)
    rig.pass_time(160)
    assert rig.view.mode is Mode.RUNNING, "the controller left it where it is"
    rig.change(1, notices=())
    rig.train(60)  # half a minute
    rig.change(1, notices=(fatal(),))
    rig.train(5)
    assert rig.report().phase is Phase.RUNNING, "an agent that was restarted needs a moment to see what it saw"
    rig.change(1, notices=())
    rig.train(140)
    rig.change(1, notices=(fatal(),))
    assert rig.report().phase is Phase.SAVING


def test_a9_a_member_that_runs_untouched_makes_everybody_run_untouched() -> None:
    rig = Rig(controller=False)
    rig.reports[rig.members[1].uid] = report(rig.members[1], ranks=Ranks.RUNNING, untouched=True)
    rig.beat()
    assert {order.want for order in rig.orders().values()} == {Want.UNTOUCHED}
    assert rig.report().phase is Phase.UNGUARDED


def test_a9_without_a_controller_and_members_and_with_nothing_to_resume_it_fails_open() -> None:
    rig = Rig(controller=False)
    rig.silent.add(rig.members[1].uid)
    rig.pass_time(149)
    assert rig.report().phase is Phase.PENDING
    rig.pass_time(2)
    assert rig.report().phase is Phase.UNGUARDED


@pytest.mark.parametrize("scan", [
    coordinator_facts.LineageScan(claims=((X1, "somebody"),)),
    coordinator_facts.LineageScan(records=(record(X1, [member(0)]),)),
    None,
])  # fmt: skip
def test_a9_it_never_fails_open_over_a_lineage_or_an_unread_root(scan: coordinator_facts.LineageScan | None) -> None:
    rig = Rig(controller=False)
    if scan is None:
        rig.broken.add(coordinator_facts.Operation.LOOK)
    else:
        rig.scan = scan
    rig.silent.add(rig.members[1].uid)
    rig.pass_time(400)
    assert rig.report().phase is Phase.PENDING


def test_c2_a_newer_claim_of_another_leader_fences_for_ever() -> None:
    rig = Rig().started()
    rig.train(4)
    rig.tell(coordinator_facts.Voided(rig.now, CheckpointId(X1, 2), Incarnation(2, 1), "another-leader"))
    rig.pass_time(5)
    assert rig.view.mode is Mode.FENCED
    assert {order.want for order in rig.orders().values()} == {Want.STOP}
    rig.granted(number=9)
    rig.pass_time(5)
    assert rig.claims == [X1]


def test_c3_memory_off_the_chain_is_not_resumed() -> None:
    rig = Rig()
    stray = CheckpointId(Incarnation(0, 7), 900)
    for who in rig.members:
        rig.reports[who.uid] = report(who, slots=(facts_slot(stray),))
    rig.granted()
    rig.pass_time(2)
    assert {order.resume for order in rig.orders().values()} == {None}


def test_c4_a_step_that_only_one_member_holds_in_memory_is_not_resumed() -> None:
    rig = Rig().started()
    rig.train(40)
    confirmed = rig.view.confirmed
    assert confirmed is not None
    newest = CheckpointId(X1, confirmed.step + 1)
    uid = rig.members[1].uid
    rig.reports[uid] = replace(rig.reports[uid], slots=(*rig.reports[uid].slots[-1:], facts_slot(newest)))
    rig.crash(1)
    rig.settle()
    assert {order.resume for order in rig.orders().values()} == {confirmed}


def test_c8_a_checkpoint_that_the_controller_knows_is_waited_for_then_blocks() -> None:
    rig = Rig()
    old = Incarnation(0, 1)
    rig.scan = coordinator_facts.LineageScan(claims=((old, "x"),), records=(record(old, rig.members),))
    rig.granted(expected=CheckpointId(old, 80))
    rig.pass_time(50)
    assert rig.report().phase is Phase.STARTING
    rig.pass_time(20)
    assert rig.report().phase is Phase.BLOCKED
    assert rig.report().why == (
        "CheckpointNotVisible: 80@0.1 was committed, but none is there; "
        "bring the files back, or mount the volume that has them"
    )
    rig.scan = replace(rig.scan, visible=(CheckpointId(old, 80),))
    rig.pass_time(30)
    assert {order.resume for order in rig.orders().values()} == {CheckpointId(old, 80)}


def facts_slot(checkpoint: CheckpointId):  # noqa: ANN201 - a message
    """Slot 0 holding a checkpoint."""
    from rlguard.messages import Slot  # noqa: PLC0415 - only here

    return Slot(0, checkpoint)


def test_the_same_failure_at_the_same_step_gives_up_with_the_reason() -> None:
    rig = Rig().started()
    for _ in range(TIMING.same_step_limit):
        rig.train(7 - ((rig.view.attempt.slowest if rig.view.attempt else None) or 0))
        rig.crash(1)
        rig.settle()
    assert rig.report().phase is Phase.GAVE_UP
    assert "step 7" in rig.report().why
    assert {order.want for order in rig.orders().values()} == {Want.IDLE}


def test_too_many_failures_within_the_window_give_up() -> None:
    rig = Rig().started()
    for failure in range(TIMING.attempts + 1):
        assert rig.report().phase is not Phase.GAVE_UP
        rig.train(3 + failure)
        rig.crash(1, code=2)
        rig.settle()
    assert rig.report().phase is Phase.GAVE_UP


def test_no_new_step_for_the_stall_limit_is_a_fault() -> None:
    rig = Rig().started()
    rig.train(5)
    rig.pass_time(TIMING.stall_limit + 2)
    assert rig.report().incidents[-1].fault == "stalled"
    assert rig.claims == [X1, X2]


def test_ranks_that_ended_well_everywhere_complete_the_job() -> None:
    rig = Rig().started()
    rig.crash(0, code=0)
    assert rig.view.mode is Mode.RUNNING
    rig.crash(1, code=0)
    rig.settle()
    assert rig.report().phase is Phase.COMPLETED
    assert {order.want for order in rig.orders().values()} == {Want.IDLE}


def test_a_completed_job_is_not_started_again() -> None:
    rig = Rig()
    rig.scan = coordinator_facts.LineageScan(completed=True)
    rig.granted()
    rig.pass_time(3)
    assert rig.report().phase is Phase.COMPLETED
    assert rig.claims == []


def test_a_job_without_the_training_hook_starts_crashes_and_starts_again_unfenced() -> None:
    rig = Rig()
    rig.granted()
    rig.beat()
    rig.pass_time(40)
    assert (rig.report().phase, rig.report().fenced) == (Phase.RUNNING, False)
    rig.pass_time(60)
    rig.crash(1)
    rig.settle()
    assert rig.claims == [X1, X2]
    rig.change(1, notices=(fatal(),))
    rig.settle()
    assert rig.report().saved, "there is nothing of ours to save"


def test_without_a_checkpoint_root_a_crash_is_recovered_from_memory() -> None:
    rig = Rig(root=False).started()
    rig.train(40)
    confirmed = rig.view.confirmed
    assert confirmed is not None
    rig.crash(1)
    rig.settle()
    assert {order.resume for order in rig.orders().values()} == {confirmed}
    assert rig.commits == []


def test_c2_while_an_attempt_is_being_started_a_commit_is_made_in_the_name_of_the_one_before() -> None:
    rig = Rig().started()
    rig.broken.add(coordinator_facts.Operation.COMMIT)
    rig.train(10)
    assert rig.view.flush is not None
    rig.broken = {coordinator_facts.Operation.RECORD}
    rig.crash(1)
    rig.pass_time(5)
    assert rig.view.mode is Mode.RECORDING
    assert rig.commits, "a flush outlives the attempt that it began in"
    assert {commit.incarnation for commit in rig.commits} == {X1}


def test_c2_a_commit_that_the_own_claim_made_void_counts_if_the_new_record_names_it() -> None:
    rig = Rig().started()
    rig.train(12)
    confirmed = rig.view.confirmed
    assert confirmed is not None
    rig.broken.add(coordinator_facts.Operation.RECORD)
    rig.crash(1)
    rig.settle()
    rig.tell(coordinator_facts.Voided(rig.now, confirmed, X2, rig.members[0].uid))
    assert rig.view.mode is Mode.RECORDING
    rig.broken.clear()
    rig.pass_time(2)
    assert rig.report().newest == confirmed
