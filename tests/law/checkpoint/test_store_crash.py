# ruff: noqa: D102 # methods that stand in for those of Files and Store do what those say
"""Whatever operation a coordinator dies at, the newest valid checkpoint is the old or the new one, whole.

Each law is also tried on stores that break one rule on purpose, and must notice.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from memoryfiles import After, Crash, MemoryFiles, crash_at

from rlguard.checkpoint.lineage import Parent, choose_parent
from rlguard.checkpoint.outcomes import Committed, Whole
from rlguard.checkpoint.records import Claim, Manifest, Record
from rlguard.io.store import Store, _dump
from rlguard.model import CheckpointId, Incarnation, World

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlguard.checkpoint.names import TmpName

ROOT = Path("/mnt/root")
FIRST, SECOND = Incarnation(1, 1), Incarnation(1, 2)
OLD, NEW = CheckpointId(FIRST, 100), CheckpointId(FIRST, 120)


class PublishesInPlace(Store):
    """Breaks C1: the file is there before its content is."""

    def _publish_file(self, path: Path, content: dict[str, Any]) -> bool:
        try:
            self._write_new(path, _dump(content))
        except FileExistsError:
            return False
        self.files.sync_dir(path.parent)
        return True


class NeverSyncsFiles(Store):
    """Breaks C6: contents are left to the kernel."""

    def __init__(self, root: Path, files: MemoryFiles) -> None:
        super().__init__(root, files)
        files.fsync = lambda _descriptor: None  # type: ignore[method-assign]


class NeverSyncsFolders(Store):
    """Breaks C6: names are left to the kernel."""

    def __init__(self, root: Path, files: MemoryFiles) -> None:
        super().__init__(root, files)
        files.sync_dir = lambda _path: None  # type: ignore[method-assign]


class RenamesBeforeTheManifest(Store):
    """Breaks C6: the folder gets its name first."""

    def _write_manifest(self, tmp: TmpName, manifest: Manifest) -> None:
        self._move_into_place(tmp)
        self._write_new(self.path_of(tmp.checkpoint) / "rlguard.json", _dump(manifest.to_json()))

    def _move_into_place(self, tmp: TmpName) -> None:
        if self.files.entry(self.path_of_tmp(tmp)) is not None:
            super()._move_into_place(tmp)


class ReplacesWhatIsThere(Store):
    """Breaks C5: makes room before looking whether what is there is whole."""

    def _move_into_place(self, tmp: TmpName) -> None:
        self.remove_tree(self.path_of(tmp.checkpoint))
        super()._move_into_place(tmp)

    def verify(self, checkpoint: CheckpointId, *, deep: bool) -> Any:
        return None if deep else super().verify(checkpoint, deep=deep)


def mounted() -> MemoryFiles:
    """An empty mounted volume that holds the source of a checkpoint."""
    files = MemoryFiles()
    for folder in ("/mnt", "/mnt/root", "/shm"):
        files.mkdir(Path(folder))
    descriptor = files.create(Path("/shm/image"))
    files.write(descriptor, memoryview(b"state of all ranks"))
    files.fsync(descriptor)
    files.close(descriptor)
    for folder in ("/shm", "/mnt", "/"):
        files.sync_dir(Path(folder))
    return files


def start(store: Store, nonce: str, parent: CheckpointId | None) -> Incarnation:
    own = store.claim_next(1, "leader", nonce).incarnation
    store.record(Record(own, "job", "leader", nonce, World(()), parent))
    return own


def commit(store: Store, checkpoint: CheckpointId, nonce: str) -> object:
    tmp = store.begin(checkpoint, "pod", nonce)
    entry = store.put_file(tmp, "__0_0.distcp", Path("/shm/image"))
    return store.commit(tmp, Manifest(checkpoint, 1, "job", "leader", (entry,), "0.1.0"))


def resumed(store: Store, expected: CheckpointId | None) -> CheckpointId | None:
    """What a coordinator would resume from: choose, verify, and go lower only past what is visibly broken."""
    scan, broken = store.scan(), set[CheckpointId]()
    assert not scan.unreadable
    assert not scan.problems
    while True:
        choice = choose_parent(scan.records, scan.committed, expected, broken, scan.unreadable)
        assert isinstance(choice, Parent), choice
        if choice.checkpoint is None or isinstance(store.verify(choice.checkpoint, deep=True), Whole):
            assert not broken
            return choice.checkpoint
        broken.add(choice.checkpoint)


def run_until(kind: type[Store], number: int, work: Callable[[Store], object]) -> tuple[MemoryFiles, object]:
    """With OLD committed, do `work` until operation `number`. Returns what is left and the result (None: died)."""
    files = mounted()
    store = kind(ROOT, files)
    start(store, "n1", None)
    commit(store, OLD, "t0")
    crash_at(files, number)
    try:
        result: object = work(store)
    except Crash:
        result = None
    files.before = lambda _operation: None
    return files, result


def for_every_operation(kind: type[Store], work: Callable[[Store], object], judge: Callable[..., None]) -> int:
    """Judge what is left after each operation of `work` and each kind of crash. Returns how many there were."""
    for number in range(1000):
        files, result = run_until(kind, number, work)
        for how in After:
            judge(Store(ROOT, files.after(how)), result)
        if result is not None:
            return number
    raise AssertionError("the work never ends")


def judge_commit(store: Store, result: object) -> None:
    found = resumed(store, NEW if result == Committed(NEW) else OLD)
    assert found in {OLD, NEW}
    assert start(store, "n2", found) == SECOND
    later = CheckpointId(SECOND, 130)
    assert commit(store, later, "t2") == Committed(later)
    assert resumed(store, later) == later


def commit_new(store: Store) -> object:
    return commit(store, NEW, "t1")


def commit_new_twice(store: Store) -> object:
    commit(store, NEW, "t1")
    return commit(store, NEW, "t2")


def claim_and_record(store: Store) -> object:
    return start(store, "mine", OLD)


def judge_claim(store: Store, result: object) -> None:
    assert resumed(store, OLD) == OLD
    own = start(store, "another", OLD)
    assert own > (result or FIRST)
    assert max(store.scan().records) == own


def test_c6_a_commit_killed_at_any_operation_leaves_the_old_or_the_new_checkpoint_whole() -> None:
    assert for_every_operation(Store, commit_new, judge_commit) > 20


def test_c5_a_second_try_of_the_same_step_killed_at_any_operation_keeps_the_first() -> None:
    def judge(store: Store, result: object) -> None:
        judge_commit(store, result)

    assert for_every_operation(Store, commit_new_twice, judge) > 40


def test_c1_a_claim_and_record_killed_at_any_operation_leave_no_half_file() -> None:
    assert for_every_operation(Store, claim_and_record, judge_claim) > 15


def test_c5_a_commit_killed_at_any_operation_can_be_taken_up_again() -> None:
    for number in range(1000):
        files = mounted()
        store = Store(ROOT, files)
        start(store, "n1", None)
        tmp = store.begin(NEW, "pod", "t1")
        entry = store.put_file(tmp, "__0_0.distcp", Path("/shm/image"))
        manifest = Manifest(NEW, 1, "job", "leader", (entry,), "0.1.0")
        crash_at(files, number)
        try:
            store.commit(tmp, manifest)
        except Crash:
            files.before = lambda _operation: None
            assert store.commit(tmp, manifest) == Committed(NEW)
        else:
            return
    raise AssertionError("the commit never ends")


@pytest.mark.parametrize(
    ("mutant", "work", "judge"),
    [
        (PublishesInPlace, claim_and_record, judge_claim),
        (NeverSyncsFiles, commit_new, judge_commit),
        (NeverSyncsFolders, commit_new, judge_commit),
        (RenamesBeforeTheManifest, commit_new, judge_commit),
    ],
)
def test_a_store_that_breaks_a_rule_is_found_out(
    mutant: type[Store], work: Callable[[Store], object], judge: Callable[..., None]
) -> None:
    with pytest.raises(AssertionError):
        for_every_operation(mutant, work, judge)


def test_c5_a_store_that_makes_room_first_loses_a_committed_checkpoint() -> None:
    def work(store: Store) -> object:
        return commit(store, OLD, "t2")

    def judge(store: Store, _result: object) -> None:
        assert resumed(store, OLD) == OLD

    for_every_operation(Store, work, judge)
    with pytest.raises(AssertionError):
        for_every_operation(ReplacesWhatIsThere, work, judge)


def test_a_claim_of_the_same_nonce_after_a_crash_is_the_same_claim() -> None:
    for number in range(1000):
        files, result = run_until(Store, number, lambda store: store.claim_next(1, "leader", "mine"))
        store = Store(ROOT, files.after(After.PROCESS_DIED))
        assert store.claim_next(1, "leader", "mine") == Claim(SECOND, "leader", "mine")
        if result is not None:
            return
