"""The coordinator's actions on a real checkpoint root, through the real child process."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rlguard.checkpoint.records import Record
from rlguard.group import coordinator_facts, member_facts
from rlguard.io.clock import boottime
from rlguard.messages import FlushOrder
from rlguard.model import CheckpointId, Incarnation, Member, World
from rlguard.train import pages
from rlguard_sidecar.flush import flush
from rlguard_sidecar.root import OK, RootState, RootWatch
from rlguard_sidecar.rootcheck import check, volume_of
from rlguard_sidecar.storeactions import StoreActions, Stores, stores_of

FIRST = Incarnation(1, 1)
CHECKPOINT = CheckpointId(FIRST, 7)
LEADER = Member(0, "uid-0", "ppo-0", "node-0", "127.0.0.1")


class Quiet:
    """A log for nobody."""

    def info(self, *_args: object, **_fields: object) -> None:
        """Say nothing."""

    warning = info


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "volume").mkdir()
    return tmp_path / "volume" / ".rlguard" / "team" / "ppo" / "0"


@pytest.fixture
async def stores(root: Path, tmp_path: Path) -> AsyncIterator[Stores]:
    made = stores_of(str(root), tmp_path)
    yield made
    await made.lineage.close()
    await made.bulk.close()


@pytest.fixture
def actions(stores: Stores) -> StoreActions:
    return StoreActions(stores, "uid-0", lambda: "job", boottime)


def slot(shm: Path, step: int, content: bytes = b"weights") -> None:
    """What a rank stages: one file of its own and one for all."""
    folder = pages.slot_path(shm, 0, 0)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "own.bin").write_bytes(content)
    (folder / "all.bin").write_bytes(b"meta")
    files = (pages.SlotFile("own.bin", len(content), shared=False), pages.SlotFile("all.bin", 4, shared=True))
    pages.write_files_json(folder, files)
    writer = pages.HeaderWriter(folder)
    writer.write(pages.SlotHeader(str(FIRST), step, 1, dirty=False))
    writer.close()


async def claimed(actions: StoreActions) -> coordinator_facts.Claimed:
    answer = await actions.do(coordinator_facts.ClaimAttempt(FIRST, "uid-0"))
    assert isinstance(answer, coordinator_facts.Claimed)
    return answer


async def recorded(actions: StoreActions) -> None:
    nonce = (await claimed(actions)).nonce
    record = Record(FIRST, "job", "uid-0", nonce, World((LEADER,)), None)
    assert isinstance(await actions.do(coordinator_facts.WriteRecord(record)), coordinator_facts.Recorded)


async def flushed(actions: StoreActions, stores: Stores, shm: Path, *, shared: bool = True) -> member_facts.FlushEnded:
    begun = await actions.do(coordinator_facts.BeginFlush(CHECKPOINT))
    assert isinstance(begun, coordinator_facts.FlushBegun)
    order = FlushOrder(begun.nonce, CHECKPOINT, begun.directory, shared)
    return await flush(stores.bulk, shm, member_facts.RunFlush(order, 0), 1, boottime)


async def test_a_claim_is_answered_with_what_was_listed_after_it(actions: StoreActions) -> None:
    answer = await claimed(actions)
    assert answer.scan.claims == ((FIRST, "uid-0"),)


async def test_a_claim_whose_answer_got_lost_is_its_own(actions: StoreActions) -> None:
    assert (await claimed(actions)).nonce == (await claimed(actions)).nonce


async def test_another_leaders_generation_is_refused(actions: StoreActions, stores: Stores) -> None:
    await claimed(actions)
    late = StoreActions(stores, "uid-other", lambda: "job", boottime)
    answer = await late.do(coordinator_facts.ClaimAttempt(Incarnation(1, 2), "uid-other"))
    assert isinstance(answer, coordinator_facts.ClaimRefused)
    assert answer.scan.claims == ((FIRST, "uid-0"),)


async def test_an_attempt_that_is_taken_is_refused(actions: StoreActions, stores: Stores) -> None:
    await claimed(actions)
    restarted = StoreActions(stores, "uid-0", lambda: "job", boottime)
    assert isinstance(
        await restarted.do(coordinator_facts.ClaimAttempt(FIRST, "uid-0")), coordinator_facts.ClaimRefused
    )


async def test_a_flush_is_committed_and_verified(
    actions: StoreActions, stores: Stores, tmp_path: Path, root: Path
) -> None:
    await recorded(actions)
    slot(tmp_path / "shm", 7)
    ended = await flushed(actions, stores, tmp_path / "shm")
    assert ended.done, ended.detail
    begun = next((root / "tmp").iterdir())
    nonce = begun.name.rpartition(".")[2]
    commit = coordinator_facts.Commit(CHECKPOINT, FIRST, nonce, str(begun), "job", 1, ended.files)
    answer = await actions.do(commit)
    assert isinstance(answer, coordinator_facts.Committed)
    assert (root / "steps" / "7@1.1" / "own.bin").read_bytes() == b"weights"
    seen = await actions.do(coordinator_facts.VerifyCheckpoint(CHECKPOINT))
    assert isinstance(seen, coordinator_facts.Verified)
    assert (seen.whole, seen.directory, seen.world_size) == (True, answer.directory, 1)
    (root / "steps" / str(CHECKPOINT) / "own.bin").write_bytes(b"rottens")
    fresh = StoreActions(stores, "uid-0", lambda: "job", boottime)
    rotten = await fresh.do(coordinator_facts.VerifyCheckpoint(CHECKPOINT))
    assert isinstance(rotten, coordinator_facts.Verified)
    assert not rotten.whole
    assert "own.bin" in rotten.detail


async def test_a_flush_that_outlives_its_attempt_is_void_only_by_anothers_claim(
    actions: StoreActions, stores: Stores, tmp_path: Path
) -> None:
    await recorded(actions)
    slot(tmp_path / "shm", 7)
    first, second = Incarnation(1, 2), Incarnation(2, 1)
    assert isinstance(await actions.do(coordinator_facts.ClaimAttempt(first, "uid-0")), coordinator_facts.Claimed)
    begun = await actions.do(coordinator_facts.BeginFlush(CHECKPOINT))
    assert isinstance(begun, coordinator_facts.FlushBegun)
    order = FlushOrder(begun.nonce, CHECKPOINT, begun.directory, shared=True)
    ended = await flush(stores.bulk, tmp_path / "shm", member_facts.RunFlush(order, 0), 1, boottime)
    commit = coordinator_facts.Commit(CHECKPOINT, first, begun.nonce, begun.directory, "job", 1, ended.files)
    assert isinstance(await actions.do(commit), coordinator_facts.Committed)
    other = StoreActions(stores, "uid-new", lambda: "job", boottime)
    assert isinstance(await other.do(coordinator_facts.ClaimAttempt(second, "uid-new")), coordinator_facts.Claimed)
    void = await actions.do(commit)
    assert isinstance(void, coordinator_facts.Voided)
    assert (void.newer, void.newer_leader) == (second, "uid-new")


async def test_a_member_that_is_not_told_to_leaves_the_shared_files_out(
    actions: StoreActions, stores: Stores, tmp_path: Path
) -> None:
    await recorded(actions)
    slot(tmp_path / "shm", 7)
    ended = await flushed(actions, stores, tmp_path / "shm", shared=False)
    assert [file.name for file in ended.files] == ["own.bin"]


async def test_a_slot_that_holds_another_step_is_not_flushed(
    actions: StoreActions, stores: Stores, tmp_path: Path
) -> None:
    await recorded(actions)
    slot(tmp_path / "shm", 9)
    ended = await flushed(actions, stores, tmp_path / "shm")
    assert not ended.done
    assert "7@1.1" in ended.detail


async def test_a_file_shorter_than_its_list_says_is_a_torn_slot(
    actions: StoreActions, stores: Stores, tmp_path: Path
) -> None:
    await recorded(actions)
    slot(tmp_path / "shm", 7)
    (tmp_path / "shm" / "slot-0-0" / "own.bin").write_bytes(b"w")
    ended = await flushed(actions, stores, tmp_path / "shm")
    assert not ended.done
    assert "TornReadError" in ended.detail


async def test_a_dirty_slot_is_not_flushed(actions: StoreActions, stores: Stores, tmp_path: Path) -> None:
    await recorded(actions)
    slot(tmp_path / "shm", 7)
    writer = pages.HeaderWriter(tmp_path / "shm" / "slot-0-0")
    writer.write(pages.SlotHeader(str(FIRST), 7, 2, dirty=True))
    writer.close()
    assert not (await flushed(actions, stores, tmp_path / "shm")).done


async def test_completion_is_marked_under_the_own_claim_also_after_a_restart(
    actions: StoreActions, stores: Stores, root: Path
) -> None:
    await claimed(actions)
    restarted = StoreActions(stores, "uid-0", lambda: "job", boottime)
    assert isinstance(await restarted.do(coordinator_facts.MarkComplete(None, "job")), coordinator_facts.MarkedComplete)
    assert json.loads((root / "completed.json").read_text())["job_uid"] == "job"
    seen = await restarted.do(coordinator_facts.LookAtDisk())
    assert isinstance(seen, coordinator_facts.DiskSeen)
    assert seen.scan.completed
    other_job = StoreActions(stores, "uid-0", lambda: "another", boottime)
    seen = await other_job.do(coordinator_facts.LookAtDisk())
    assert isinstance(seen, coordinator_facts.DiskSeen)
    assert not seen.scan.completed


async def test_what_the_root_refuses_is_an_answer_in_words(tmp_path: Path) -> None:
    (tmp_path / ".rlguard").write_text("no folder")
    stores = stores_of(str(tmp_path / ".rlguard"), tmp_path)
    failing = StoreActions(stores, "uid-0", lambda: "job", boottime)
    answer = await failing.do(coordinator_facts.ClaimAttempt(FIRST, "uid-0"))
    assert isinstance(answer, coordinator_facts.StoreFailed)
    assert answer.operation is coordinator_facts.Operation.CLAIM
    assert str(tmp_path / ".rlguard") in answer.detail
    await stores.lineage.close()


async def test_where_no_volume_is_mounted_no_lineage_begins(tmp_path: Path) -> None:
    root = tmp_path / "nowhere" / ".rlguard" / "team"
    stores = stores_of(str(root), tmp_path)
    answer = await StoreActions(stores, "uid-0", lambda: "job", boottime).do(
        coordinator_facts.ClaimAttempt(FIRST, "uid-0")
    )
    assert isinstance(answer, coordinator_facts.StoreFailed)
    assert "not mounted" in answer.detail
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - a plain call, nothing to wait for


async def test_without_a_root_the_lineage_is_kept_and_nothing_is_flushed(tmp_path: Path) -> None:
    stores = stores_of(None, tmp_path)
    private = StoreActions(stores, "uid-0", lambda: "job", boottime)
    await recorded(private)
    answer = await private.do(coordinator_facts.BeginFlush(CHECKPOINT))
    assert isinstance(answer, coordinator_facts.StoreFailed)
    assert "no checkpoint root" in answer.detail
    await stores.lineage.close()


async def test_a_port_is_free(actions: StoreActions) -> None:
    answer = await actions.do(coordinator_facts.ReservePort(FIRST))
    assert isinstance(answer, coordinator_facts.PortReserved)
    assert answer.port > 0


async def look(root: str, stores: Stores) -> RootState:
    told: list[RootState] = []
    watch = RootWatch(root, stores.lineage, lambda: None, told.append, Quiet())
    await watch._look()
    return watch.state


async def test_a_fresh_volume_is_ok_and_without_lineage(root: Path, stores: Stores) -> None:
    assert await look(str(root), stores) == RootState(OK, 0, lineage=False, completed=False)


async def test_a_used_volume_tells_its_newest_generation(root: Path, stores: Stores, actions: StoreActions) -> None:
    await claimed(actions)
    assert await look(str(root), stores) == RootState(OK, 1, lineage=True, completed=False)


async def test_a_volume_that_is_not_there_is_named(tmp_path: Path, stores: Stores) -> None:
    state = await look(str(tmp_path / "nowhere" / ".rlguard" / "team"), stores)
    assert state.state.startswith("not mounted")
    assert str(tmp_path / "nowhere") in state.state
    assert not state.readable


def test_the_volume_is_what_comes_before_our_folder() -> None:
    assert volume_of("/checkpoints/run/.rlguard/team/ppo/0") == Path("/checkpoints/run")


async def test_a_volume_without_room_is_full() -> None:
    # /proc is a file system that has no free block and cannot be written.
    assert (await check(Path("/proc"))).split(":")[0] in {"full", "read-only"}
