# ruff: noqa: D102 # methods that stand in for those of Files and Store do what those say
"""The rules of the lineage over random histories: roll-backs, zombies, resumes from memory, missing records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st
from lineage_kit import newest_valid

from rlguard.checkpoint import lineage
from rlguard.checkpoint.lineage import NotVisible, Parent, choose_parent, on_chain
from rlguard.checkpoint.pruning import what_to_prune
from rlguard.checkpoint.records import Record
from rlguard.model import CheckpointId, Incarnation, World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


@dataclass
class History:
    """What really happened. `past[i]`: the states that the run of incarnation i went through, oldest first.

    Kept apart from the records on purpose: it is what the records must amount to.
    """

    records: dict[Incarnation, Record] = field(default_factory=dict)
    past: dict[Incarnation, list[CheckpointId]] = field(default_factory=dict)
    disk: set[CheckpointId] = field(default_factory=set)

    @property
    def newest(self) -> Incarnation:
        return max(self.records)

    def begin(self, incarnation: Incarnation, parent: CheckpointId | None) -> None:
        self.records[incarnation] = Record(incarnation, "j", "l", "n", World(()), parent)
        before = self.past[parent.incarnation] if parent else []
        self.past[incarnation] = before[: before.index(parent) + 1] if parent else []

    def train(self, incarnation: Incarnation, *, save: bool) -> None:
        before = self.past[incarnation]
        state = CheckpointId(incarnation, before[-1].step + 1 if before else 1)
        before.append(state)
        if save:
            self.disk.add(state)


@st.composite
def histories(draw: st.DrawFn) -> History:
    history = History()
    history.begin(Incarnation(1, 1), None)
    for _ in range(draw(st.integers(0, 25))):
        newest = history.newest
        kind = draw(st.sampled_from(["train", "save", "zombie", "attempt", "generation"]))
        if kind in {"train", "save"}:
            history.train(newest, save=kind == "save")
        elif kind == "zombie":
            history.train(draw(st.sampled_from(sorted(history.records))), save=True)
        else:
            back_to = draw(st.sampled_from([None, *history.past[newest]]))
            nxt = newest._replace(attempt=newest.attempt + 1) if kind == "attempt" else (newest.generation + 1, 1)
            history.begin(Incarnation(*nxt), back_to)
    return history


@given(histories())
def test_c3_on_the_chain_is_exactly_what_the_newest_run_went_through(history: History) -> None:
    for checkpoint in history.disk:
        assert on_chain(history.records, checkpoint) == (checkpoint in history.past[history.newest])


def resumes_right(history: History, newest: Callable[..., CheckpointId | None]) -> bool:
    truth = [state for state in history.past[history.newest] if state in history.disk]
    return newest(history.records, history.disk) == (truth[-1] if truth else None)


@given(histories())
def test_c3_the_newest_valid_is_the_last_saved_state_of_the_newest_run(history: History) -> None:
    assert resumes_right(history, newest_valid)


def by_step_alone(_records: lineage.Records, candidates: Iterable[CheckpointId]) -> CheckpointId | None:
    return max(candidates, key=lambda one: (one.step, one.incarnation), default=None)


def by_name_alone(_records: lineage.Records, candidates: Iterable[CheckpointId]) -> CheckpointId | None:
    return max(candidates, default=None)


def by_ancestor_alone(records: lineage.Records, candidates: Iterable[CheckpointId]) -> CheckpointId | None:
    ancestors = {link.incarnation for link in lineage.chain(records, max(records))}
    return max((one for one in candidates if one.incarnation in ancestors), default=None)


@pytest.mark.parametrize("broken", [by_step_alone, by_name_alone, by_ancestor_alone])
def test_c3_a_choice_that_breaks_the_rule_is_found_out(broken: Callable[..., CheckpointId | None]) -> None:
    find(histories(), lambda history: not resumes_right(history, broken), settings=settings(derandomize=True))


@given(histories(), st.data())
def test_c8_less_than_was_committed_is_never_taken_for_all(history: History, data: st.DataObject) -> None:
    expected = newest_valid(history.records, history.disk)
    hidden = data.draw(st.sets(st.sampled_from(sorted(history.disk)))) if history.disk else set()
    lost = data.draw(st.sets(st.sampled_from(sorted(history.records))))
    records = {one: record for one, record in history.records.items() if one not in lost}
    choice = choose_parent(records, history.disk - hidden, expected)
    if isinstance(choice, Parent) and expected is not None and expected.incarnation not in lost:
        assert choice.checkpoint is not None
        assert choice.checkpoint >= expected or not on_chain(history.records, expected, max(records))
    if expected is not None and not records:
        assert choice == NotVisible(expected, None)


@given(histories(), st.integers(0, 5))
def test_c7_pruning_changes_neither_what_is_resumed_from_nor_the_one_before(history: History, keep: int) -> None:
    own = history.newest
    pruned = what_to_prune(history.records, history.records, own, history.disk, history.disk, keep)
    left = history.disk - set(pruned)
    valid = sorted(one for one in history.disk if on_chain(history.records, one))
    assert set(valid[-2:]) <= left
    assert not {record.parent for record in history.records.values()} & set(pruned)
