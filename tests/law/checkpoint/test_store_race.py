# ruff: noqa: D102 # methods that stand in for those of Files and Store do what those say
"""Coordinators of different generations at once, switched at any operation: what one was told is committed stays."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lineage_kit import newest_valid
from memoryfiles import MemoryFiles

from rlguard.checkpoint.lineage import Parent, choose_parent, on_chain
from rlguard.checkpoint.outcomes import CommitResult, Committed, Whole
from rlguard.checkpoint.records import Manifest, Record
from rlguard.errors import FencedError
from rlguard.io.store import Store
from rlguard.model import CheckpointId, World

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlguard.checkpoint.names import TmpName

ROOT = Path("/root")


class Switch:
    """Runs workers as threads of which exactly one moves, by one operation at a time."""

    def __init__(self, works: list[Callable[[Switch, int], None]]) -> None:
        self._go = [threading.Semaphore(0) for _ in works]
        self._came_back = threading.Semaphore(0)
        self._done = [False] * len(works)
        self._threads = [threading.Thread(target=self._run, args=(number, work)) for number, work in enumerate(works)]

    def wait(self, number: int) -> None:
        """Stand before an operation until it is this worker's turn."""
        self._came_back.release()
        self._go[number].acquire()

    def play(self, turns: list[int]) -> None:
        """Give the turns, then let each worker finish."""
        for thread in self._threads:
            thread.start()
            self._came_back.acquire()
        for number in turns:
            self._turn(number)
        for number in range(len(self._threads)):
            while not self._done[number]:
                self._turn(number)
        for thread in self._threads:
            thread.join()

    def _turn(self, number: int) -> None:
        if not self._done[number]:
            self._go[number].release()
            self._came_back.acquire()

    def _run(self, number: int, work: Callable[[Switch, int], None]) -> None:
        self.wait(number)
        try:
            work(self, number)
        finally:
            self._done[number] = True
            self._came_back.release()


@dataclass
class Coordinator:
    """One leader pod's coordinator of one generation: starts, commits one step, and remembers what it was told."""

    generation: int
    kind: type[Store]
    lists_first: bool
    files: MemoryFiles
    results: list[CommitResult] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)

    def run(self, switch: Switch, number: int) -> None:
        self.files.before = lambda _operation: switch.wait(number)
        try:
            self._run(self.kind(ROOT, self.files))
        except FencedError:
            pass
        except BaseException as error:  # noqa: BLE001 # told by the test, in its own thread
            self.errors.append(error)
        self.files.before = lambda _operation: None

    def _run(self, store: Store) -> None:
        scan = store.scan()
        own = store.claim_next(self.generation, f"leader-{self.generation}", "n").incarnation
        if not self.lists_first:
            scan = store.scan()
        choice = choose_parent(scan.records, scan.committed, None, (), scan.unreadable)
        assert isinstance(choice, Parent)
        store.record(Record(own, "job", f"leader-{self.generation}", "n", World(()), choice.checkpoint))
        step = 10 + (choice.checkpoint.step if choice.checkpoint else 0)
        tmp = store.begin(CheckpointId(own, step), "pod", f"t{self.generation}")
        entry = store.put_file(tmp, "f", Path("/image"))
        self.results.append(store.commit(tmp, Manifest(tmp.checkpoint, 1, "job", "l", (entry,), "0")))


class NeverLooksBack(Store):
    """Breaks C2: does not list the claims again after the rename."""

    def commit(self, tmp: TmpName, manifest: Manifest, wait_s: float = 60.0) -> CommitResult:
        super().commit(tmp, manifest, wait_s)
        return Committed(tmp.checkpoint)


def race(kind: type[Store], turns: list[int], *, lists_first: bool = False) -> None:
    """Play three generations and check that nothing that was called committed is lost."""
    first = MemoryFiles()
    first.mkdir(ROOT)
    descriptor = first.create(Path("/image"))
    first.write(descriptor, memoryview(b"state"))
    group = [Coordinator(generation, kind, lists_first, MemoryFiles(first.top)) for generation in (1, 2, 3)]
    Switch([one.run for one in group]).play(turns)
    for one in group:
        assert not one.errors
    after = Store(ROOT, first)
    scan = after.scan()
    told = [result for one in group for result in one.results if isinstance(result, Committed)]
    assert all(on_chain(scan.records, result.checkpoint) for result in told)
    newest = newest_valid(scan.records, scan.committed)
    assert newest is None or isinstance(after.verify(newest, deep=True), Whole)
    for result in told:
        assert newest is not None
        assert newest >= result.checkpoint


@settings(max_examples=80)
@given(st.lists(st.sampled_from([0, 1, 2]), max_size=250))
def test_c2_what_was_told_as_committed_is_on_the_chain_of_whoever_comes_next(turns: list[int]) -> None:
    race(Store, turns)


def second_starts_within_the_first(kind: type[Store], *, lists_first: bool = False) -> None:
    """The first runs to each of its operations; there the second runs through."""
    for first in range(100):
        race(kind, [0] * first + [1] * 200, lists_first=lists_first)


def first_ends_within_the_second(kind: type[Store], *, lists_first: bool = False) -> None:
    """The first stops before its files are copied; it goes on at each operation of the second."""
    for second in range(50):
        race(kind, [0] * 40 + [1] * second + [0] * 200, lists_first=lists_first)


@pytest.mark.parametrize("meeting", [second_starts_within_the_first, first_ends_within_the_second])
def test_c2_every_meeting_of_two_generations_loses_nothing(meeting: Callable[..., None]) -> None:
    meeting(Store)


def test_c2_a_committer_that_does_not_look_back_is_found_out() -> None:
    with pytest.raises(AssertionError):
        second_starts_within_the_first(NeverLooksBack)


def test_c2_a_resumer_that_lists_before_its_claim_is_found_out() -> None:
    with pytest.raises(AssertionError):
        first_ends_within_the_second(Store, lists_first=True)
