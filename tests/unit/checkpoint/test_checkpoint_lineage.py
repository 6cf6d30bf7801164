"""What is valid and what to resume from, case by case: each story of the lineage rules."""

from __future__ import annotations

import pytest
from lineage_kit import newest_valid

from rlguard.checkpoint.lineage import (
    BrokenLineage,
    Link,
    NothingWhole,
    NotVisible,
    Parent,
    Records,
    chain,
    choose_parent,
    is_void,
    next_incarnation,
    on_chain,
)
from rlguard.checkpoint.pruning import ripe, what_to_prune
from rlguard.checkpoint.records import Record
from rlguard.errors import FencedError
from rlguard.model import CheckpointId, Incarnation, World


def inc(text: str) -> Incarnation:
    return Incarnation.parse(text)


def ckpt(text: str) -> CheckpointId:
    return CheckpointId.parse(text)


def ckpts(*texts: str) -> list[CheckpointId]:
    return [ckpt(text) for text in texts]


def lineage(**parents: str | None) -> Records:
    """`lineage(i1_1=None, i1_2="40@1.1")`: records by incarnation, each with its parent."""
    records = {}
    for key, parent in parents.items():
        incarnation = inc(key.removeprefix("i").replace("_", "."))
        records[incarnation] = Record(incarnation, "j", "l", "n", World(()), ckpt(parent) if parent else None)
    return records


ROLLED_BACK = lineage(i1_1=None, i1_2="80@1.1")
"""100@1.1 was poisoned; the group went back to 80."""


def test_c3_a_chain_names_each_ancestor_with_the_step_at_which_it_was_left() -> None:
    records = lineage(i1_1=None, i1_2="80@1.1", i2_1="120@1.2")
    assert chain(records, inc("2.1")) == (Link(inc("2.1"), None), Link(inc("1.2"), 120), Link(inc("1.1"), 80))


def test_c3_a_poisoned_step_is_off_the_chain_after_a_roll_back() -> None:
    assert not on_chain(ROLLED_BACK, ckpt("100@1.1"))
    assert newest_valid(ROLLED_BACK, ckpts("100@1.1", "80@1.1", "60@1.1")) == ckpt("80@1.1")


def test_c3_the_newest_is_by_incarnation_before_step() -> None:
    records = lineage(i1_1=None, i1_2="80@1.1", i1_3="90@1.2")
    assert newest_valid(records, ckpts("80@1.1", "85@1.2")) == ckpt("85@1.2")
    assert newest_valid(lineage(i1_1=None, i1_2="80@1.1"), ckpts("80@1.1", "80@1.2")) == ckpt("80@1.2")


def test_c3_a_zombie_that_renames_after_it_was_left_is_not_resumed_from() -> None:
    assert newest_valid(lineage(i1_1=None, i2_1="100@1.1"), ckpts("100@1.1", "120@1.1")) == ckpt("100@1.1")


def test_c3_files_that_no_record_names_are_not_resumed_from() -> None:
    assert newest_valid(lineage(), ckpts("100@1.1")) is None
    assert newest_valid(lineage(i5_1=None), ckpts("900@1.1", "900@6.1")) is None


def test_c3_an_incarnation_beside_the_chain_does_not_count() -> None:
    records = lineage(i1_1=None, i1_2="10@1.1", i1_3="20@1.1")
    assert not on_chain(records, ckpt("15@1.2"))
    assert on_chain(records, ckpt("15@1.2"), inc("1.2"))


def test_c3_a_chain_that_points_forward_ends_there_instead_of_turning_for_ever() -> None:
    records = lineage(i1_1="10@1.2", i1_2="10@1.1")
    assert chain(records, inc("1.2")) == (Link(inc("1.2"), None), Link(inc("1.1"), 10))


def test_c8_less_than_expected_is_never_resumed_from() -> None:
    records = lineage(i1_1=None)
    assert choose_parent(records, ckpts("80@1.1"), ckpt("100@1.1")) == NotVisible(ckpt("100@1.1"), ckpt("80@1.1"))


def test_c8_an_empty_folder_is_no_first_start_when_something_was_committed() -> None:
    assert choose_parent({}, [], ckpt("100@1.1")) == NotVisible(ckpt("100@1.1"), None)
    assert choose_parent({}, [], None) == Parent(None)


def test_c8_a_record_that_does_not_show_yet_supersedes_nothing() -> None:
    records = lineage(i1_1=None)
    assert choose_parent(records, ckpts("80@1.1"), ckpt("120@2.1")) == NotVisible(ckpt("120@2.1"), ckpt("80@1.1"))


def test_c8_what_a_roll_back_left_behind_is_not_waited_for() -> None:
    assert choose_parent(ROLLED_BACK, ckpts("80@1.1"), ckpt("100@1.1")) == Parent(ckpt("80@1.1"))


def test_c8_a_missing_link_does_not_turn_an_expected_checkpoint_into_a_roll_back() -> None:
    records = lineage(i1_1=None, i1_2="100@1.1", i1_3="150@1.2")
    del records[inc("1.2")]  # type: ignore[attr-defined] # a plain dict behind the read-only type
    assert choose_parent(records, [], ckpt("100@1.1")) == NotVisible(ckpt("100@1.1"), None)
    assert choose_parent(records, [], None) == BrokenLineage(inc("1.2"))


def test_c8_goes_lower_only_past_a_visible_one_that_failed_verification() -> None:
    records, seen = lineage(i1_1=None), ckpts("80@1.1", "100@1.1")
    assert choose_parent(records, seen, ckpt("100@1.1")) == Parent(ckpt("100@1.1"))
    assert choose_parent(records, seen, ckpt("100@1.1"), broken=ckpts("100@1.1")) == Parent(ckpt("80@1.1"))
    assert choose_parent(records, ckpts("80@1.1"), ckpt("100@1.1"), broken=ckpts("100@1.1")) == NotVisible(
        ckpt("100@1.1"), ckpt("80@1.1")
    )


def test_c8_when_all_are_broken_step_0_is_not_the_answer() -> None:
    seen = ckpts("80@1.1", "100@1.1")
    assert choose_parent(lineage(i1_1=None), seen, None, broken=seen) == NothingWhole(tuple(seen))


def test_an_unreadable_newest_record_is_not_skipped() -> None:
    records = lineage(i1_1=None)
    assert choose_parent(records, ckpts("80@1.1"), None, unreadable=[inc("1.2")]) == BrokenLineage(inc("1.2"))
    assert choose_parent(lineage(i1_3=None), [], None, unreadable=[inc("1.2")]) == Parent(None)


def test_c1_the_next_attempt_is_one_above_all_that_were_claimed() -> None:
    assert next_incarnation([], 3) == inc("3.1")
    assert next_incarnation([inc("2.9")], 3) == inc("3.1")
    assert next_incarnation([inc("3.1"), inc("3.4")], 3) == inc("3.5")


def test_c1_a_generation_that_is_over_gets_no_attempt() -> None:
    with pytest.raises(FencedError, match=r"4\.1"):
        next_incarnation([inc("3.1"), inc("4.1")], 3)


def test_c2_a_newer_claim_makes_a_rename_void() -> None:
    assert is_void([inc("1.1"), inc("2.1")], inc("1.1")) == inc("2.1")
    assert is_void([inc("1.1")], inc("1.1")) is None
    assert is_void([], inc("1.1")) is None


def test_c7_parents_and_the_last_two_valid_stay() -> None:
    records = lineage(i1_1=None, i1_2="20@1.1")
    committed = ckpts("10@1.1", "20@1.1", "30@1.1", "30@1.2", "40@1.2", "50@1.2")
    assert what_to_prune(records, [inc("1.2")], inc("1.2"), committed, committed, keep=1) == tuple(
        ckpts("10@1.1", "30@1.1", "30@1.2")
    )
    assert what_to_prune(records, [inc("1.2")], inc("1.2"), committed, committed, keep=3) == tuple(
        ckpts("10@1.1", "30@1.1")
    )


def test_c7_a_pruner_stops_on_a_newer_claim() -> None:
    with pytest.raises(FencedError, match=r"2\.1"):
        what_to_prune(lineage(i1_1=None), [inc("1.1"), inc("2.1")], inc("1.1"), ckpts("1@1.1"), ckpts("1@1.1"), keep=2)


def test_c7_nothing_goes_before_the_own_record_says_what_is_off_the_chain() -> None:
    committed = ckpts("1@1.1", "2@1.1", "3@1.1")
    assert what_to_prune(lineage(i1_1=None), [inc("2.1")], inc("2.1"), committed, committed, keep=2) == ()


def test_c7_a_broken_checkpoint_does_not_count_as_one_of_the_last_two() -> None:
    committed = ckpts("1@1.1", "2@1.1", "3@1.1", "4@1.1")
    whole = ckpts("1@1.1", "2@1.1", "4@1.1")
    assert what_to_prune(lineage(i1_1=None), [inc("1.1")], inc("1.1"), committed, whole, keep=2) == (ckpt("1@1.1"),)


def test_c7_trash_is_emptied_an_hour_after_it_was_first_seen() -> None:
    assert ripe({"a": 0.0, "b": 1.0}, 3600.0) == ("a",)
