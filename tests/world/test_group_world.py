"""The group's cores in the simulated world: nothing that must not happen happens, and planted bugs are caught."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from rlguard.group import attempts, coordinator, coordinator_facts, faults, member, member_report, rules, saving, view
from rlguard.group.member_view import MemberView
from rlguard.messages import Ranks, StageResult
from rlguard.model import CheckpointId, Incarnation
from rlguard_chaos.world import SimWorld
from rlguard_chaos.world_disk import ViolationError
from rlguard_chaos.world_faults import FAULTS, cut_node, hang, kill_rank, tell_notice

SEEDS = 60
"""Each is some minutes of a group's life with a fault every 18 s, until it trains again."""


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_breaks_the_group_keeps_its_rules_and_trains_again(seed: int) -> None:
    counted = SimWorld(seed, FAULTS).run()
    assert counted["steps"] > 0
    assert counted["attempts"] > 0


def test_the_same_seed_is_the_same_run() -> None:
    assert SimWorld(7, FAULTS).run() == SimWorld(7, FAULTS).run()


# ---------------------------------------------------------------- planted bugs

Plant = Callable[[pytest.MonkeyPatch], None]


def _claims_without_waiting(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(view.View, "down", lambda known, uid: uid in known.members)


def _takes_an_unanswered_stop_for_done(patch: pytest.MonkeyPatch) -> None:
    def down(known: view.View, uid: str) -> bool:
        return uid in known.members and known.members[uid].report.ranks is not Ranks.RUNNING

    patch.setattr(view.View, "down", down)


def _overwrites_the_confirmed_slot(patch: pytest.MonkeyPatch) -> None:
    original = member.choose_slot
    patch.setattr(member, "choose_slot", lambda slots, _confirmed, read, loading: original(slots, None, read, loading))


def _overwrites_a_slot_under_a_flush(patch: pytest.MonkeyPatch) -> None:
    original = member.choose_slot
    patch.setattr(
        member, "choose_slot", lambda slots, confirmed, _read, loading: original(slots, confirmed, [], loading)
    )


def _confirms_what_one_member_staged(patch: pytest.MonkeyPatch) -> None:
    def watch(known: view.View, attempt: view.Attempt, plan: view.StagePlan, now: float) -> view.View:
        told = view.reports(known, attempt.world).values()
        answers = [item.stage.result for item in told if item.stage is not None and item.stage.order == plan.order]
        if StageResult.STAGED in answers:
            return saving._confirm(known, attempt, plan)
        return original(known, attempt, plan, now)

    original = saving._watch_stage
    patch.setattr(saving, "_watch_stage", watch)


def _resumes_what_one_member_holds(patch: pytest.MonkeyPatch) -> None:
    def held_by_any(known: view.View, world: Any) -> set[CheckpointId]:
        return {slot.checkpoint for item in view.reports(known, world).values() for slot in item.slots}

    patch.setattr(attempts, "in_memory", held_by_any)


def _resumes_the_highest_step(patch: pytest.MonkeyPatch) -> None:
    def highest(_records: Any, candidates: Any, *_rest: Any) -> attempts.Parent:
        return attempts.Parent(max(candidates, key=lambda checkpoint: checkpoint.step, default=None))

    patch.setattr(attempts, "choose_parent", highest)


def _trusts_an_empty_listing(patch: pytest.MonkeyPatch) -> None:
    original = attempts.choose_parent

    def trusting(records: Any, candidates: Any, _expected: Any, *rest: Any) -> Any:
        choice = original(records, candidates, None, *rest)
        return choice if isinstance(choice, attempts.Parent) else attempts.Parent(None)

    patch.setattr(attempts, "choose_parent", trusting)


def _chooses_from_an_old_listing(patch: pytest.MonkeyPatch) -> None:
    original = attempts.take_scan

    def stale(known: view.View, scan: coordinator_facts.LineageScan, now: float) -> view.View:
        old = known.scan.visible if known.scan is not None else scan.visible
        return original(known, replace(scan, visible=old), now)

    patch.setattr(attempts, "take_scan", stale)
    patch.setattr(coordinator, "take_scan", stale)
    patch.setattr(coordinator, "newest_committed", lambda known, _tip: known.attempt.parent if known.attempt else None)
    patch.setitem(
        coordinator.ABSORB,
        coordinator_facts.Committed,
        lambda known, fact: replace(coordinator._committed(known, fact), newest=None),
    )


def _a_cut_worker_goes_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(member, "T_SELF", 1e9)


def _stops_without_saving(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rules, "save_done", lambda _known, _save, _now: True)


def _ignores_other_leaders(patch: pytest.MonkeyPatch) -> None:
    def forge(taken: Any, generation: int) -> Incarnation:
        mine = [item for item in taken if item.generation == generation]
        return Incarnation(generation, max(mine, default=Incarnation(generation, 0)).attempt + 1)

    patch.setattr(attempts, "fenced_by", lambda _known, _scan: None)
    patch.setattr(coordinator, "fenced_by", lambda _known, _scan: None)
    patch.setattr(attempts, "next_incarnation", forge)


def _takes_a_void_commit_for_good(patch: pytest.MonkeyPatch) -> None:
    def commit(known: view.View, fact: coordinator_facts.Voided) -> view.View:
        return coordinator._committed(known, coordinator_facts.Committed(fact.at, fact.checkpoint, ""))

    patch.setitem(coordinator.ABSORB, coordinator_facts.Voided, commit)


def _never_gives_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(faults, "exhausted", lambda _failures, _timing, _now: None)


def _says_that_a_start_under_way_is_absent(patch: pytest.MonkeyPatch) -> None:
    original = member_report._ranks

    def ranks(known: MemberView) -> Ranks:
        said = original(known)
        pending = known.order is not None and known.launcher is not None
        begun = pending and known.launcher.incarnation == known.order.incarnation
        return said if begun or said is Ranks.STUCK else Ranks.NONE

    patch.setattr(member_report, "_ranks", ranks)


def _sees_no_stall(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(faults, "_stall", lambda _known, _attempt, _now: None)


def _waits_for_ever_for_a_stage(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rules, "GRACE_PLANNED", 0.0)
    patch.setattr(rules, "SAVE_LIMIT", 1e9)
    patch.setattr(saving, "save_done", lambda _known, _save, _now: False)
    patch.setattr(rules, "save_done", lambda _known, _save, _now: False)


PLANTED = (
    _claims_without_waiting,
    _takes_an_unanswered_stop_for_done,
    _overwrites_the_confirmed_slot,
    _overwrites_a_slot_under_a_flush,
    _confirms_what_one_member_staged,
    _resumes_what_one_member_holds,
    _resumes_the_highest_step,
    _trusts_an_empty_listing,
    _chooses_from_an_old_listing,
    _a_cut_worker_goes_on,
    _stops_without_saving,
    _ignores_other_leaders,
    _takes_a_void_commit_for_good,
    _never_gives_up,
    _says_that_a_start_under_way_is_absent,
    _sees_no_stall,
    _waits_for_ever_for_a_stage,
)


FOCUS: dict[Plant, Sequence[Callable[[SimWorld], None]]] = {
    _a_cut_worker_goes_on: (cut_node,),
    _ignores_other_leaders: (cut_node,),
    _takes_a_void_commit_for_good: (cut_node,),
    _sees_no_stall: (hang,),
    _waits_for_ever_for_a_stage: (tell_notice,),
    _overwrites_a_slot_under_a_flush: (kill_rank, tell_notice),
}
"""Faults that a bug needs more often than they come in the mixture, because other rules stand behind it."""


@pytest.mark.parametrize("plant", PLANTED, ids=[plant.__name__.strip("_") for plant in PLANTED])
def test_a_planted_bug_is_caught(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(ViolationError):
        _run_all(FOCUS.get(plant, FAULTS))


def _run_all(chosen: Sequence[Callable[[SimWorld], None]]) -> None:
    for seed in range(SEEDS):
        SimWorld(seed, chosen).run()
