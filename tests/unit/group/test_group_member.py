"""The member's core: it converges to the newest order, and to nothing older."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from group_rig import fatal
from group_rig import member as pod

from rlguard.group import facts, member, member_facts
from rlguard.group.member_facts import LauncherState, RankSeen, SlotSeen
from rlguard.messages import FlushOrder, FlushResult, Order, Ranks, StageOrder, StageResult, Want
from rlguard.model import CheckpointId, Incarnation, World
from rlguard.policy import FAIL_OPEN, SUSPECT, T_SELF

X1, X2 = Incarnation(1, 1), Incarnation(1, 2)
WORLD = World((pod(0), pod(1)))
NONE = LauncherState(None, Ranks.NONE, None, None, "", None, terminating=False, stuck=(), idle=False)


class Pod:
    """The second member of a world of two, its launcher and its pages in the test's hands."""

    def __init__(self) -> None:
        self.now = 100.0
        self.view = member.begin(pod(1), self.now)
        self.tell(member_facts.LauncherHeard(self.now, NONE))
        self.tell(member_facts.CoordinatorLink(self.now, True))  # noqa: FBT003 - open

    def tell(self, fact: Any) -> None:
        """One fact."""
        self.view = member.fold(self.view, fact)

    def actions(self, kind: type) -> list[Any]:
        """What is to be done now, of one kind."""
        decision = member.decide(self.view, self.now)
        if any(isinstance(action, facts.Advance) for action in decision.actions):
            self.tell(facts.Ticked(self.now))
            decision = member.decide(self.view, self.now)
        return [action for action in decision.actions if isinstance(action, kind)]

    def report(self) -> Any:
        """What the coordinator is told."""
        return self.actions(member_facts.PublishMember)[0].report

    def order(self, incarnation: Incarnation, want: Want = Want.RUN, **more: Any) -> None:
        """An order arrives."""
        plain = Order(incarnation, want, WORLD, 29500, None, None, None, None, 2.0)
        self.tell(member_facts.OrderHeard(self.now, replace(plain, **more)))

    def launcher(self, incarnation: Incarnation | None, ranks: Ranks, **more: Any) -> None:
        """The launcher says something new."""
        self.tell(member_facts.LauncherHeard(self.now, replace(NONE, incarnation=incarnation, ranks=ranks, **more)))

    def pages(self, step: int | None, *slots: CheckpointId | None, order: int = 0, result: Any = None) -> None:
        """The rank's page and the slots were read."""
        rank = RankSeen(0, 1, X1, step, 0.2, order, 0, 0, result, hook=True, reshardable=True, nan=False)
        seen = tuple(SlotSeen(index, checkpoint) for index, checkpoint in enumerate(slots))
        self.tell(member_facts.PagesRead(self.now, (rank,), seen))


def test_it_starts_ranks_with_the_exact_world_and_its_own_place_in_it() -> None:
    it = Pod()
    it.order(X1)
    start = it.actions(member_facts.StartRanks)[0]
    assert (start.nnodes, start.node_rank, start.master_addr, start.master_port) == (2, 1, "10.0.0.1", 29500)
    assert it.report().ranks is Ranks.UNKNOWN, "a start under way is not absent"
    it.launcher(X1, Ranks.RUNNING)
    assert it.actions(member_facts.StartRanks) == []
    assert it.report().ranks is Ranks.RUNNING


def test_it_resumes_from_its_own_slot_only_with_exactly_that_checkpoint() -> None:
    it = Pod()
    wanted = CheckpointId(X1, 80)
    it.pages(None, CheckpointId(X1, 90), wanted)
    it.order(X2, resume=wanted, resume_directory="steps/80@1.1")
    assert it.actions(member_facts.StartRanks)[0].slot == 1
    it.pages(None, CheckpointId(X1, 90), None)
    start = it.actions(member_facts.StartRanks)[0]
    assert (start.slot, start.directory, start.resume) == (None, "steps/80@1.1", wanted)


def test_old_ranks_are_stopped_before_new_ones_start() -> None:
    it = Pod()
    it.launcher(X1, Ranks.RUNNING)
    it.order(X2)
    assert it.actions(member_facts.StopRanks)[0].incarnation == X1
    assert it.actions(member_facts.StartRanks) == []
    it.launcher(X1, Ranks.GONE)
    assert it.actions(member_facts.StartRanks)[0].incarnation == X2


def test_an_order_of_an_older_incarnation_is_refused() -> None:
    it = Pod()
    it.order(X2)
    it.order(X1)
    assert it.report().incarnation == X2
    assert it.actions(member_facts.StartRanks)[0].incarnation == X2


def test_a2_what_was_ordered_to_stop_is_never_started_afterwards() -> None:
    it = Pod()
    it.order(X1, Want.STOP)
    assert it.report().ranks is Ranks.NONE
    it.order(X1, Want.RUN)
    assert it.actions(member_facts.StartRanks) == []


def test_a2_a_start_that_the_launcher_may_not_have_read_is_not_absent() -> None:
    it = Pod()
    it.order(X1)
    it.now += 0.1
    it.order(X1, Want.STOP)
    assert it.report().ranks is Ranks.STOPPING
    assert it.actions(member_facts.StopRanks)[0].incarnation == X1
    it.now += 3
    it.tell(member_facts.LauncherHeard(it.now, NONE))
    assert it.report().ranks is Ranks.NONE


def test_a_member_outside_the_world_does_not_run() -> None:
    it = Pod()
    it.launcher(X1, Ranks.RUNNING)
    it.order(X2, world=World((pod(0),)))
    assert it.actions(member_facts.StopRanks)
    it.launcher(X1, Ranks.GONE)
    assert it.actions(member_facts.StartRanks) == []


def test_a5_only_the_loss_of_both_links_for_t_self_stops_the_ranks() -> None:
    it = Pod()
    it.order(X1)
    it.launcher(X1, Ranks.RUNNING)
    it.tell(facts.ControllerLink(it.now, True))  # noqa: FBT003 - open
    it.tell(member_facts.CoordinatorLink(it.now, False))  # noqa: FBT003 - closed
    it.now += 100
    assert it.actions(member_facts.StopRanks) == [], "the controller still relays"
    it.tell(facts.ControllerLink(it.now, False))  # noqa: FBT003 - closed
    it.now += T_SELF - SUSPECT - 0.1
    assert it.actions(member_facts.StopRanks) == []
    it.now += 0.2
    assert it.actions(member_facts.StopRanks)[0].incarnation == X1
    it.launcher(X1, Ranks.GONE)
    it.tell(member_facts.CoordinatorLink(it.now, True))  # noqa: FBT003 - open
    it.order(X1)
    assert it.report().ranks is Ranks.GONE
    assert it.actions(member_facts.StartRanks) == [], "the same incarnation never runs twice"


def test_a5_a_cut_member_starts_nothing() -> None:
    it = Pod()
    it.order(X1)
    it.tell(member_facts.CoordinatorLink(it.now, False))  # noqa: FBT003 - closed
    it.now += T_SELF
    assert it.actions(member_facts.StartRanks) == []


def test_a9_it_fails_open_only_with_a_readable_root_that_holds_no_lineage() -> None:
    for readable, lineage, completed, opens in (
        (True, False, False, True),
        (False, False, False, False),
        (True, True, False, False),
        (True, False, True, False),
    ):
        it = Pod()
        it.tell(member_facts.RootSeen(it.now, readable, lineage, completed))
        it.now += FAIL_OPEN - 1
        assert it.actions(member_facts.RunUntouched) == []
        it.now += 1
        assert bool(it.actions(member_facts.RunUntouched)) is opens
        assert it.report().untouched is opens


def test_a9_once_a_controller_or_an_order_was_heard_it_stays_guarded() -> None:
    it = Pod()
    it.tell(member_facts.RootSeen(it.now, readable=True, lineage=False, completed=False))
    it.tell(facts.ControllerLink(it.now, True))  # noqa: FBT003 - open
    it.tell(facts.ControllerLink(it.now, False))  # noqa: FBT003 - closed
    it.now += FAIL_OPEN * 3
    assert it.actions(member_facts.RunUntouched) == []


def test_a9_ordered_to_run_untouched_it_stops_its_guarded_ranks_first() -> None:
    it = Pod()
    it.launcher(X1, Ranks.RUNNING)
    it.order(X1, Want.UNTOUCHED, world=None)
    assert it.actions(member_facts.RunUntouched) == []
    assert it.actions(member_facts.StopRanks)
    it.launcher(X1, Ranks.GONE)
    assert it.actions(member_facts.RunUntouched)


def test_m1_the_slot_of_the_confirmed_checkpoint_and_one_under_a_flush_are_never_chosen() -> None:
    it = Pod()
    older, confirmed = CheckpointId(X1, 10), CheckpointId(X1, 20)
    it.order(X1)
    it.launcher(X1, Ranks.RUNNING)
    it.pages(22, older, confirmed)
    it.order(X1, stage=StageOrder(3, 30, confirmed))
    assert it.actions(member_facts.WriteControl)[0].slot == 0
    it = Pod()
    it.order(X1)
    it.launcher(X1, Ranks.RUNNING)
    it.pages(22, older, confirmed)
    it.order(X1, flush=FlushOrder("n", older, "tmp/x", shared=True))
    assert it.actions(member_facts.RunFlush)[0].slot == 0
    it.order(X1, stage=StageOrder(3, 30, confirmed), flush=FlushOrder("n", older, "tmp/x", shared=True))
    assert it.actions(member_facts.WriteControl) == []
    assert it.report().stage.result is StageResult.SKIPPED


def test_m1_the_slot_that_ranks_still_load_from_is_not_overwritten() -> None:
    it = Pod()
    resume = CheckpointId(Incarnation(1, 0), 20)
    it.order(X1, resume=resume)
    it.launcher(X1, Ranks.RUNNING)
    it.pages(None, resume, None)
    it.order(X1, resume=resume, stage=StageOrder(1, 30, None))
    assert it.actions(member_facts.WriteControl)[0].slot == 1


def test_a_stage_is_staged_when_every_rank_says_so_and_the_slot_is_whole() -> None:
    it = Pod()
    it.order(X1)
    it.launcher(X1, Ranks.RUNNING)
    it.pages(5, None, None)
    it.order(X1, stage=StageOrder(1, 7, None))
    assert it.report().stage.result is StageResult.PENDING
    it.pages(7, None, None, order=1, result=StageResult.STAGED)
    assert it.report().stage.result is StageResult.PENDING
    it.pages(7, CheckpointId(X1, 7), None, order=1, result=StageResult.STAGED)
    assert it.report().stage.result is StageResult.STAGED
    it.pages(9, CheckpointId(X1, 7), None, order=1, result=StageResult.PAST)
    assert (it.report().stage.result, it.report().stage.furthest) == (StageResult.PAST, 9)


def test_a_flush_is_run_once_reported_and_cancelled_when_nobody_wants_it() -> None:
    it = Pod()
    held = CheckpointId(X1, 10)
    it.order(X1)
    it.pages(12, held, None)
    it.order(X1, flush=FlushOrder("n1", held, "tmp/x", shared=False))
    assert it.report().flush.result is FlushResult.RUNNING
    it.order(X1, flush=None)
    assert it.actions(member_facts.RunFlush) == []
    assert it.actions(member_facts.CancelFlush)[0].nonce == "n1"
    it.tell(member_facts.FlushEnded(it.now, "n1", done=False, detail="cancelled", files=()))
    it.order(X1, flush=FlushOrder("n2", held, "tmp/y", shared=False))
    it.tell(member_facts.FlushEnded(it.now, "n2", done=True, detail="", files=()))
    assert (it.report().flush.nonce, it.report().flush.result) == ("n2", FlushResult.DONE)
    it.order(X1, flush=FlushOrder("n3", CheckpointId(X1, 11), "tmp/z", shared=False))
    assert it.report().flush.result is FlushResult.FAILED


def test_a6_a_deadline_travels_as_seconds_left() -> None:
    it = Pod()
    it.tell(member_facts.NoticesHeard(it.now, (fatal("spot-reclaim", 120.0),)))
    it.now += 30.4
    assert it.report().notices[0].seconds_left == pytest.approx(89.0)


def test_pages_of_an_earlier_incarnation_say_nothing_of_the_ordered_one() -> None:
    it = Pod()
    it.launcher(X1, Ranks.EXITED, code=1)
    it.pages(238, None, None)
    assert it.report().step == 238
    it.order(X2)
    assert it.report().step is None
    assert it.report().code is None


def test_a_nan_is_told_as_a_notice() -> None:
    it = Pod()
    it.launcher(X1, Ranks.RUNNING)
    rank = RankSeen(0, 1, X1, 7, 0.2, 0, 0, 0, None, hook=True, reshardable=True, nan=True)
    it.tell(member_facts.PagesRead(it.now, (rank,), ()))
    assert it.report().notices[0].code == "nan"


def ending(it: Pod, ranks: Ranks = Ranks.RUNNING) -> None:
    it.order(X1)
    it.launcher(X1, Ranks.RUNNING)
    it.launcher(X1, ranks, terminating=True)


def test_a_pod_that_is_being_deleted_goes_on_until_its_coordinator_has_saved() -> None:
    it = Pod()
    ending(it)
    it.now += 10 * SUSPECT
    assert it.actions(member_facts.StopRanks) == []


def test_a_pod_that_is_being_deleted_while_its_leader_is_gone_does_not_wait_out_its_grace() -> None:
    it = Pod()
    ending(it)
    it.tell(member_facts.CoordinatorLink(it.now, False))  # noqa: FBT003 - closed
    assert it.actions(member_facts.StopRanks) == [], "a coordinator that restarts is back within moments"
    it.now += SUSPECT
    assert [action.incarnation for action in it.actions(member_facts.StopRanks)] == [X1]
    it.launcher(X1, Ranks.GONE, terminating=True)
    assert [action.incarnation for action in it.actions(member_facts.StopRanks)] == [X1], "the launcher may end"


def test_a_pod_that_is_being_deleted_with_its_ranks_down_ends_once_nobody_wants_its_memory() -> None:
    it = Pod()
    ending(it, Ranks.EXITED)
    saved = CheckpointId(X1, 80)
    it.pages(80, saved)
    it.order(X1, Want.STOP, flush=FlushOrder("n1", saved, "tmp/x", shared=True))
    it.now += 2 * SUSPECT
    assert it.actions(member_facts.StopRanks) == []
    it.tell(member_facts.FlushEnded(it.now, "n1", True, "", ()))  # noqa: FBT003 - done
    it.order(X1, Want.STOP)
    assert it.actions(member_facts.StopRanks) == []
    it.now += SUSPECT
    assert [action.incarnation for action in it.actions(member_facts.StopRanks)] == [X1]
