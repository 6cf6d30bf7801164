"""The store on a real folder: each rule of the checkpoint root, and what it says when the folder refuses."""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from storekit import WORLD, QuickFiles, ckpt, committed, inc, started, written

from rlguard.checkpoint.outcomes import Absent, Broken, Committed, Void, Whole
from rlguard.checkpoint.records import Claim, Completed, Record
from rlguard.errors import BadWireError, FencedError, StoreError, StoreState, TornReadError
from rlguard.io import storeprune
from rlguard.io.store import Store
from rlguard.model import CheckpointId
from rlguard.train.pages import HeaderWriter, SlotHeader

if TYPE_CHECKING:
    from pathlib import Path


def test_c1_a_claim_taken_by_another_is_refused_by_name(store: Store) -> None:
    store.claim(Claim(inc("1.1"), "leader-a", "n1"))
    store.claim(Claim(inc("1.1"), "leader-a", "n1"))
    with pytest.raises(FencedError, match="leader-a"):
        store.claim(Claim(inc("1.1"), "leader-b", "n2"))
    assert store.scan().claims == {inc("1.1"): Claim(inc("1.1"), "leader-a", "n1")}


def test_c1_the_next_claim_is_the_next_attempt_and_repeating_it_is_harmless(store: Store) -> None:
    assert store.claim_next(1, "leader", "n1").incarnation == inc("1.1")
    assert store.claim_next(1, "leader", "n1").incarnation == inc("1.1")
    assert store.claim_next(1, "leader", "n2").incarnation == inc("1.2")
    assert store.claim_next(2, "other", "n3").incarnation == inc("2.1")


def test_c1_another_leader_in_my_generation_or_a_newer_one_fences_me(store: Store) -> None:
    store.claim_next(1, "leader-a", "n1")
    with pytest.raises(FencedError, match="leader-a"):
        store.claim_next(1, "leader-b", "n2")
    store.claim_next(2, "leader-b", "n2")
    with pytest.raises(FencedError, match=r"2\.1"):
        store.claim_next(1, "leader-a", "n3")


def test_c1_a_claim_that_the_listing_hides_still_fences(store: Store, files: QuickFiles) -> None:
    store.claim(Claim(inc("1.1"), "leader", "n1"))
    files.listdir = lambda _path: []  # type: ignore[method-assign] # a stale directory cache
    assert store.claim_next(1, "leader", "n2").incarnation == inc("1.2")


def test_c2_a_record_without_its_own_claim_is_refused(store: Store) -> None:
    store.claim(Claim(inc("1.1"), "leader", "theirs"))
    with pytest.raises(FencedError, match="theirs"):
        store.record(Record(inc("1.1"), "job", "leader", "mine", WORLD, None))
    with pytest.raises(FencedError, match="claim, then record"):
        store.record(Record(inc("1.2"), "job", "leader", "mine", WORLD, None))


def test_c2_a_record_under_a_newer_claim_is_refused(store: Store) -> None:
    store.claim(Claim(inc("1.1"), "leader", "n1"))
    store.claim(Claim(inc("2.1"), "other", "n2"))
    with pytest.raises(FencedError, match=r"2\.1"):
        store.record(Record(inc("1.1"), "job", "leader", "n1", WORLD, None))


def test_c1_a_second_different_record_of_one_incarnation_is_refused(store: Store) -> None:
    started(store, "1.1")
    started(store, "1.1")
    record = store.scan().records[inc("1.1")]
    with pytest.raises(FencedError, match="another record"):
        store.record(replace(record, job_uid="other job"))


def test_c2_a_commit_under_a_newer_claim_reports_void(store: Store) -> None:
    started(store, "1.1")
    tmp, manifest = written(store, "120@1.1")
    store.claim(Claim(inc("2.1"), "other", "n"))
    assert store.commit(tmp, manifest) == Void(ckpt("120@1.1"), inc("2.1"))
    assert store.scan().committed == {ckpt("120@1.1")}


def test_c2_a_claim_that_comes_just_after_the_rename_is_seen(store: Store, files: QuickFiles) -> None:
    started(store, "1.1")
    tmp, manifest = written(store, "120@1.1")
    rename = files.rename

    def rename_and_claim(source: Path, target: Path) -> None:
        rename(source, target)
        Store(store.root).claim(Claim(inc("1.2"), "leader", "later"))

    files.rename = rename_and_claim  # type: ignore[method-assign]
    assert store.commit(tmp, manifest) == Void(ckpt("120@1.1"), inc("1.2"))


def test_c3_a_committed_checkpoint_verifies_byte_for_byte(store: Store) -> None:
    started(store, "1.1")
    committed(store, "120@1.1", os.urandom(100_000))
    found = store.verify(ckpt("120@1.1"), deep=True)
    assert isinstance(found, Whole)
    assert found.manifest.files[0].size == 100_000
    assert store.verify(ckpt("121@1.1"), deep=True) == Absent()


@pytest.mark.parametrize("deep", [True, False])
def test_c3_a_short_a_missing_and_an_unlisted_folder_are_broken(store: Store, *, deep: bool) -> None:
    started(store, "1.1")
    for step in (1, 2, 3, 4):
        committed(store, f"{step}@1.1")
    (store.path_of(ckpt("1@1.1")) / "__0_0.distcp").write_bytes(b"weight")
    (store.path_of(ckpt("2@1.1")) / "__0_0.distcp").unlink()
    (store.path_of(ckpt("3@1.1")) / "rlguard.json").write_bytes(b"{")
    store.path_of(ckpt("4@1.1")).rename(store.path_of(ckpt("5@1.1")))
    for step, says in ((1, "6 bytes instead of 7"), (2, "missing"), (3, "rlguard.json"), (5, "4@1.1")):
        found = store.verify(CheckpointId(inc("1.1"), step), deep=deep)
        assert isinstance(found, Broken)
        assert says in found.reason


def test_c3_a_flipped_bit_is_found_by_reading(store: Store) -> None:
    started(store, "1.1")
    committed(store, "120@1.1")
    (store.path_of(ckpt("120@1.1")) / "__0_0.distcp").write_bytes(b"weighTs")
    assert isinstance(store.verify(ckpt("120@1.1"), deep=False), Whole)
    assert isinstance(store.verify(ckpt("120@1.1"), deep=True), Broken)


def test_c5_a_try_never_uses_a_name_again(store: Store) -> None:
    tmp, _ = written(store, "120@1.1")
    with pytest.raises(StoreError, match="EEXIST"):
        store.begin(tmp.checkpoint, tmp.pod_uid, tmp.nonce)
    with pytest.raises(StoreError, match="EEXIST"):
        store.put_file(tmp, "__0_0.distcp", store.root.parent / "source")


def test_c5_the_second_try_of_a_whole_checkpoint_is_committed(store: Store) -> None:
    started(store, "1.1")
    committed(store, "100@1.1", b"first", "t1")
    committed(store, "100@1.1", b"second", "t2")
    assert (store.path_of(ckpt("100@1.1")) / "__0_0.distcp").read_bytes() == b"first"
    assert os.listdir(store.root / "tmp") == []  # noqa: PTH208 # names


def test_c5_what_is_torn_under_the_name_is_set_aside(store: Store) -> None:
    started(store, "1.1")
    committed(store, "100@1.1", b"first", "t1")
    (store.path_of(ckpt("100@1.1")) / "__0_0.distcp").write_bytes(b"torn!")
    committed(store, "100@1.1", b"second", "t2")
    assert (store.path_of(ckpt("100@1.1")) / "__0_0.distcp").read_bytes() == b"second"
    assert storeprune.trash(store) == ("1.1/100@1.1.pod.t2",)
    assert store.scan().trashed == {}


def test_c5_a_commit_that_was_killed_after_its_rename_may_be_called_again(store: Store) -> None:
    started(store, "1.1")
    tmp, manifest = written(store, "100@1.1")
    assert store.commit(tmp, manifest) == store.commit(tmp, manifest) == Committed(ckpt("100@1.1"))


def test_c5_a_whole_checkpoint_that_takes_the_name_at_the_last_moment_stays(store: Store, files: QuickFiles) -> None:
    started(store, "1.1")
    tmp, manifest = written(store, "100@1.1", b"mine", "t1")
    rename = files.rename

    def rename_after_the_deputy(source: Path, target: Path) -> None:
        files.rename = rename  # type: ignore[method-assign]
        committed(Store(store.root), "100@1.1", b"the deputy's", "t2")
        rename(source, target)

    files.rename = rename_after_the_deputy  # type: ignore[method-assign]
    assert store.commit(tmp, manifest) == Committed(ckpt("100@1.1"))
    assert (store.path_of(ckpt("100@1.1")) / "__0_0.distcp").read_bytes() == b"the deputy's"
    assert storeprune.trash(store) == ()


@pytest.mark.parametrize(("pod_uid", "nonce"), [("a/b", "n"), ("a", ""), ("a", "../n"), ("a.b", "n")])
def test_c5_a_try_cannot_be_named_outside_its_folder(store: Store, pod_uid: str, nonce: str) -> None:
    with pytest.raises(BadWireError):
        store.begin(ckpt("1@1.1"), pod_uid, nonce)


def test_c6_files_of_other_nodes_are_waited_for_by_name_and_size(store: Store, files: QuickFiles) -> None:
    started(store, "1.1")
    tmp, manifest = written(store, "100@1.1")
    late = replace(manifest.files[0], name="__1_0.distcp")
    path = store.path_of_tmp(tmp) / late.name
    files.while_waiting = lambda: path.write_bytes(b"weights"[: int(files.time)]) and None
    assert store.commit(tmp, replace(manifest, files=(*manifest.files, late))) == Committed(ckpt("100@1.1"))
    assert 7 <= files.time < 8


def test_c6_without_all_files_nothing_is_committed_and_the_wait_ends(store: Store, files: QuickFiles) -> None:
    started(store, "1.1")
    tmp, manifest = written(store, "100@1.1")
    late = replace(manifest.files[0], name="__1_0.distcp")
    with pytest.raises(StoreError, match=r"1 of 2 files \(__1_0.distcp\)") as caught:
        store.commit(tmp, replace(manifest, files=(*manifest.files, late)), wait_s=20)
    assert caught.value.state is StoreState.NOT_VISIBLE
    assert 20 <= files.time < 21
    assert store.scan().committed == frozenset()


def test_a_manifest_of_another_step_is_refused(store: Store) -> None:
    tmp, manifest = written(store, "100@1.1")
    with pytest.raises(BadWireError, match="101@"):
        store.commit(tmp, replace(manifest, checkpoint=ckpt("101@1.1")))


def test_foreign_and_damaged_files_are_no_reason_to_fail(store: Store) -> None:
    started(store, "1.1")
    committed(store, "1@1.1")
    for path in ("lineage/notes.txt", "lineage/01.1.json", "steps/lost+found", "trash/x", "tmp/y"):
        (store.root / path).write_bytes(b"\xff")
    (store.root / "lineage/1.2.json").write_bytes(b"")
    (store.root / "lineage/1.3.claim").write_bytes(b"[" * 100_000)
    (store.root / "lineage/1.4.json").write_bytes((store.root / "lineage/1.1.json").read_bytes())
    (store.root / "completed.json").write_bytes(b"{}")
    scan = store.scan()
    assert scan.claimed == {inc("1.1"), inc("1.2"), inc("1.3"), inc("1.4")}
    assert set(scan.records) == {inc("1.1")}
    assert scan.unreadable == {inc("1.2"), inc("1.4")}
    assert scan.committed == {ckpt("1@1.1")}
    assert len(scan.problems) == 4


def test_what_is_no_plain_file_is_no_reason_to_fail_or_to_wait(store: Store) -> None:
    started(store, "1.1")
    committed(store, "1@1.1")
    lineage, manifest = store.root / "lineage", store.path_of(ckpt("1@1.1")) / "rlguard.json"
    os.mkfifo(lineage / "2.1.claim")
    (lineage / "2.2.claim").symlink_to(lineage / "1.1.claim")
    (lineage / "2.3.claim").mkdir()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(lineage / "2.4.claim"))
    scan = store.scan()
    assert set(scan.claims) == {inc("1.1")}
    assert {inc(f"2.{number}") for number in range(1, 5)} < scan.claimed
    assert len(scan.problems) == 4
    manifest.unlink()
    os.mkfifo(manifest)
    assert isinstance(store.verify(ckpt("1@1.1"), deep=True), Broken)


def test_a_source_that_is_no_plain_file_is_refused_without_waiting(store: Store) -> None:
    tmp = store.begin(ckpt("1@1.1"), "pod", "t1")
    source = store.root.parent / "source"
    os.mkfifo(source)
    with pytest.raises(StoreError, match="no plain file"):
        store.put_file(tmp, "__0_0.distcp", source)
    assert list(store.path_of_tmp(tmp).iterdir()) == []


def test_a_root_that_is_not_there_is_told_from_an_empty_one(store: Store) -> None:
    assert not store.scan().exists
    store.prepare()
    assert store.scan().exists


def test_completion_is_written_by_the_newest_incarnation_alone(store: Store) -> None:
    started(store, "1.1")
    store.complete(inc("1.1"), Completed(ckpt("9@1.1"), "job"))
    assert store.scan().completed == Completed(ckpt("9@1.1"), "job")
    store.claim(Claim(inc("2.1"), "other", "n"))
    with pytest.raises(FencedError):
        store.complete(inc("1.1"), Completed(None, "job"))


def test_an_incident_keeps_what_each_member_wrote(store: Store) -> None:
    folder = store.incident("i-1", {"rank-0.log": b"a"})
    store.incident("i-1", {"rank-1.log": b"b"})
    assert sorted(path.name for path in folder.iterdir()) == ["rank-0.log", "rank-1.log"]
    with pytest.raises(BadWireError):
        store.incident("..", {})


def slot_of(folder: Path, header: SlotHeader) -> Path:
    folder.mkdir()
    writer = HeaderWriter(folder)
    writer.write(header)
    writer.close()
    (folder / "image").write_bytes(b"state")
    return folder / "image"


def test_m2_a_slot_that_changed_while_it_was_read_leaves_no_file(store: Store, files: QuickFiles) -> None:
    header = SlotHeader("1.1", 90, 4, dirty=False)
    source = slot_of(store.root.parent / "slot-0-0", header)
    tmp = store.begin(ckpt("90@1.1"), "pod", "t1")
    fine = store.put_file(tmp, "whole", source, size=5, held=header)
    write = files.write

    def write_while_it_changes(descriptor: int, data: memoryview) -> None:
        write(descriptor, data)
        writer = HeaderWriter(source.parent)
        writer.write(replace(header, step=110, sequence=5))
        writer.close()

    files.write = write_while_it_changes  # type: ignore[method-assign]
    with pytest.raises(TornReadError, match="110"):
        store.put_file(tmp, "torn", source, size=5, held=header)
    files.write = None  # type: ignore[assignment,method-assign] # a slot that is lost already is not copied at all
    with pytest.raises(TornReadError):
        store.put_file(tmp, "old", source, size=5, held=header)
    assert fine.size == 5
    assert os.listdir(store.path_of_tmp(tmp)) == ["whole"]  # noqa: PTH208 # names


def test_m2_a_dirty_slot_and_a_short_image_are_refused(store: Store) -> None:
    dirty = SlotHeader("1.1", 90, 4, dirty=True)
    source = slot_of(store.root.parent / "slot-0-0", dirty)
    tmp = store.begin(ckpt("90@1.1"), "pod", "t1")
    with pytest.raises(TornReadError):
        store.put_file(tmp, "image", source, held=dirty)
    with pytest.raises(TornReadError, match="5 bytes instead of 6"):
        store.put_file(tmp, "image", source, size=6)
    assert os.listdir(store.path_of_tmp(tmp)) == []  # noqa: PTH208 # names


@pytest.mark.parametrize(
    ("code", "state", "advice"),
    [
        (errno.ENOSPC, StoreState.FULL, "free space"),
        (errno.EDQUOT, StoreState.QUOTA, "quota"),
        (errno.EROFS, StoreState.READ_ONLY, "read-write"),
        (errno.ESTALE, StoreState.STALE, "mount it again"),
        (errno.EIO, StoreState.IO_ERROR, "server"),
        (errno.EACCES, StoreState.DENIED, "permission"),
    ],
)
def test_a_refusal_names_path_errno_and_what_to_do(
    store: Store, files: QuickFiles, code: int, state: StoreState, advice: str
) -> None:
    tmp, _ = written(store, "1@1.1")

    def fail(_descriptor: int, _data: memoryview) -> None:
        raise OSError(code, os.strerror(code))

    files.write = fail  # type: ignore[method-assign]
    with pytest.raises(StoreError, match=advice) as caught:
        store.put_file(tmp, "other", store.root.parent / "source")
    assert caught.value.state is state
    assert errno.errorcode[code] in str(caught.value)
    assert str(store.path_of_tmp(tmp) / "other") in str(caught.value)
    assert os.listdir(store.path_of_tmp(tmp)) == ["__0_0.distcp"]  # noqa: PTH208 # names


def test_a_file_system_without_hard_links_is_named(store: Store, files: QuickFiles) -> None:
    def fail(_source: Path, _target: Path) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    files.link = fail  # type: ignore[method-assign]
    with pytest.raises(StoreError) as caught:
        store.claim(Claim(inc("1.1"), "leader", "n"))
    assert caught.value.state is StoreState.NO_HARD_LINKS
    assert os.listdir(store.root / "lineage") == []  # noqa: PTH208 # names
