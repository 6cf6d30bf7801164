"""The store behind its killable process: every operation passes through, and a hang costs a child, not the caller."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from rlguard.checkpoint.outcomes import Absent, Broken, Committed, Void, Whole
from rlguard.checkpoint.records import Completed, Manifest, Record
from rlguard.errors import BadWireError, FencedError, StoreError, StoreHungError, StoreState, TornReadError
from rlguard.io import storeclient
from rlguard.io.storeclient import StoreClient
from rlguard.model import CheckpointId, Incarnation, Member, World
from rlguard.train.pages import SlotHeader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

WORLD = World((Member(0, "u0", "p0", "n0", "10.0.0.1"),))
OWN = Incarnation(1, 1)
CHECKPOINT = CheckpointId(OWN, 100)

SCRIPT = """
import sys, time
from pathlib import Path
from rlguard.io import storechild
from rlguard.io.files import Files
{body}
sys.exit(storechild.main())
"""

HANGS = """
def listdir(self, path):
    if Path(sys.argv[1], "hang").exists():
        time.sleep(600)
    return real(self, path)
real, Files.listdir = Files.listdir, listdir
"""

CRAWLS = """
from rlguard.io import storecopy
storecopy.CHUNK_BYTES = 1
storechild.PROGRESS_S = 0.0
def write(self, descriptor, data):
    time.sleep(0.05)
    real(self, descriptor, data)
real, Files.write = Files.write, write
"""


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[StoreClient]:
    made = StoreClient(tmp_path / "root")
    yield made
    await made.close()


def scripted(tmp_path: Path, body: str) -> StoreClient:
    """Answer with a child whose file system behaves as `body` says."""
    (tmp_path / "root").mkdir()
    return StoreClient(tmp_path / "root", (sys.executable, "-c", SCRIPT.format(body=body)))


async def test_every_operation_passes_through_the_pipe_unchanged(client: StoreClient, tmp_path: Path) -> None:
    claim = await client.claim_next(1, "leader", "n1")
    record = Record(claim.incarnation, "job", "leader", "n1", WORLD, None)
    await client.record(record)
    (tmp_path / "source").write_bytes(b"weights")
    tmp = await client.begin(CHECKPOINT, "pod", "t1")
    entry = await client.put_file(tmp, "__0_0.distcp", tmp_path / "source", size=7)
    manifest = Manifest(CHECKPOINT, 1, "job", "leader", (entry,), "0.1.0")
    assert await client.commit(tmp, manifest) == Committed(CHECKPOINT)
    assert await client.verify(CHECKPOINT, deep=True) == Whole(manifest)
    assert await client.verify(CheckpointId(OWN, 1), deep=True) == Absent()
    await client.complete(OWN, Completed(CHECKPOINT, "job"))
    await client.incident("i-1", {"rank-0.log": b"\0\xff"})
    assert await client.prune(OWN, 2) == ()
    assert await client.trash() == ()
    await client.purge(OWN, ())
    await client.discard(await client.begin(CHECKPOINT, "pod", "t2"))
    scan = await client.scan()
    assert scan.claims == {OWN: claim}
    assert scan.records == {OWN: record}
    assert scan.committed == {CHECKPOINT}
    assert scan.completed == Completed(CHECKPOINT, "job")
    assert (client.path_of(CHECKPOINT) / "__0_0.distcp").read_bytes() == b"weights"
    await client.claim_next(2, "other", "n2")
    assert await client.commit(tmp, manifest) == Void(CHECKPOINT, Incarnation(2, 1))
    (client.path_of(CHECKPOINT) / "__0_0.distcp").unlink()
    assert isinstance(await client.verify(CHECKPOINT, deep=False), Broken)


async def test_errors_keep_their_kind_and_state(client: StoreClient, tmp_path: Path) -> None:
    await client.claim_next(2, "leader", "n1")
    with pytest.raises(FencedError, match=r"2\.1"):
        await client.claim_next(1, "leader", "n1")
    with pytest.raises(StoreError) as caught:
        await client.restore(CHECKPOINT)
    assert caught.value.state is StoreState.MISSING
    tmp = await client.begin(CHECKPOINT, "pod", "t1")
    (tmp_path / "source").write_bytes(b"weights")
    with pytest.raises(TornReadError):
        await client.put_file(tmp, "x", tmp_path / "source", held=SlotHeader("1.1", 1, 2, dirty=False))
    with pytest.raises(BadWireError, match="no request"):
        await client.call("format_disk")
    with pytest.raises(StoreError, match="internal error"):
        await client.call("verify", {})
    assert (await client.scan()).exists


async def test_c9_a_hung_file_system_costs_a_child_and_the_next_call_gets_a_new_one(tmp_path: Path) -> None:
    client = scripted(tmp_path, HANGS)
    (tmp_path / "root" / "hang").touch()
    with pytest.raises(StoreHungError, match="'scan'") as caught:
        await client.scan(silence_s=0.7)
    assert caught.value.state is StoreState.HUNG
    (tmp_path / "root" / "hang").unlink()
    assert (await client.scan()).exists
    await client.close()


async def test_c9_a_copy_that_moves_on_is_slow_and_not_hung(tmp_path: Path) -> None:
    client = scripted(tmp_path, CRAWLS)
    (tmp_path / "source").write_bytes(b"x" * 60)
    tmp = await client.begin(CHECKPOINT, "pod", "t1")
    entry = await client.put_file(tmp, "x", tmp_path / "source", silence_s=2.0)
    assert entry.size == 60
    await client.close()


async def test_c9_children_that_cannot_be_killed_are_not_piled_up(
    client: StoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storeclient, "MOST_STUCK", 0)
    with pytest.raises(StoreHungError, match="no more are started"):
        await client.scan()


async def test_an_answer_without_end_is_an_error_and_the_next_call_gets_a_new_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storeclient, "_LINE_BYTES", 4096)
    client = StoreClient(tmp_path / "root")
    for attempt in range(1, 200):
        await client.claim_next(attempt, "leader", "n")
    for _ in range(2):
        with pytest.raises(StoreError, match="more than 4096 bytes"):
            await client.scan()
    await client.close()


async def test_a_child_that_dies_is_an_error_and_the_next_call_gets_a_new_one(client: StoreClient) -> None:
    await client.scan()
    pid = client._child.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    waiting = asyncio.create_task(client.scan())
    await asyncio.sleep(0)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(StoreError, match="died"):
        await waiting
    assert not (await client.scan()).exists


async def test_a_call_that_was_given_up_leaves_no_answer_for_the_next(client: StoreClient) -> None:
    await client.claim_next(1, "leader", "n1")
    given_up = asyncio.create_task(client.call("trash"))
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    assert (await client.scan()).claimed == {OWN}


async def test_calls_that_come_together_run_one_after_the_other(client: StoreClient) -> None:
    claims = await asyncio.gather(*(client.claim_next(1, "leader", f"n{number}") for number in range(5)))
    assert sorted(claim.incarnation.attempt for claim in claims) == [1, 2, 3, 4, 5]


async def test_importing_the_child_loads_nothing_heavy() -> None:
    code = "import sys, rlguard.io.storechild; print(*sorted(sys.modules))"
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    said, _ = await child.communicate()
    assert not {"asyncio", "aiohttp", "structlog", "torch", "ssl"} & set(said.decode().split())
