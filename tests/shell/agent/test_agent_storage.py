"""The mounts of pods, probed by real child processes: some answer, some hang, some die, some lie."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rlguard.health.assess import CannotLook, Fact, Observed
from rlguard.health.storage import Hung, NotProbed, Refused, Space
from rlguard.io.mounts import MountProbe
from rlguard_agent import storage
from rlguard_agent.storage import Places, StorageSource

CAN_MOUNT = os.geteuid() == 0 and shutil.which("unshare") is not None and Path("/dev/fuse").exists()
SOURCE = "10.0.0.9:/cfs"
PROBE = """\
import sys, time, pathlib
for _ in sys.stdin:
    mood = pathlib.Path({mood!r}).read_text()
    if mood == "hang":
        open({fifo!r}).read()
    if mood == "die":
        sys.exit(1)
    print(mood, flush=True)
"""


class Node:
    """A folder of pods, a mount table, and a probe that does what `mood` says."""

    def __init__(self, folder: Path) -> None:
        self.pods, self.table, self._mood = folder / "pods", folder / "mountinfo", folder / "mood"
        os.mkfifo(folder / "fifo")
        script = PROBE.format(mood=str(self._mood), fifo=str(folder / "fifo"))
        self.told: list[Fact] = []
        self.guarded = {"uid-1"}
        self.pods.mkdir()
        self.mount("uid-1")
        self.mood("ok 100 50 100 50")
        places = Places(self.table, self.pods, (sys.executable, "-c", script))
        self.source = StorageSource(places, lambda: self.guarded, self.told.append)

    def mount(self, pod: str, options: str = "rw", device: str = "0:52", source: str = SOURCE) -> None:
        """The one mount of the node."""
        self.table.write_text(f"90 22 {device} / {self.pods}/{pod}/volumes/nfs/d rw - nfs4 {source} {options}\n")

    def mood(self, text: str) -> None:
        """What the probe does from now on: `hang`, `die`, or write this line."""
        self._mood.write_text(text)

    async def codes(self) -> list[str] | str:
        """The faults told by one look, or why there was none."""
        self.told.clear()
        await self.source.look()
        fact = self.told[-1]
        assert isinstance(fact, Observed | CannotLook)
        return fact.reason if isinstance(fact, CannotLook) else [fault.code for fault in fact.faults]


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    monkeypatch.setattr(storage, "ANSWER_WITHIN", 1.0)
    made = Node(tmp_path)
    yield made
    made.table.write_text("")
    await made.source.look()
    assert made.source._probes == {}


async def test_a_file_system_that_answers_has_nothing_wrong(node: Node) -> None:
    assert await node.codes() == []
    assert await node.codes() == []


async def test_a_file_system_that_hangs_is_told_and_is_over_when_it_answers(node: Node) -> None:
    node.mood("hang")
    assert await node.codes() == ["storage-hung"]
    assert await node.codes() == ["storage-hung"]
    node.mood("ok 100 50 100 50")
    assert await node.codes() == []


async def test_a_hung_file_system_delays_nobody_else(node: Node) -> None:
    node.mood("hang")
    looking = asyncio.create_task(node.source.look())
    ticks = 0
    while not looking.done():
        await asyncio.sleep(0.01)
        ticks += 1
    assert ticks > 20


async def test_gone_full_and_read_only_are_told(node: Node) -> None:
    node.mood("error ESTALE")
    assert await node.codes() == ["storage-gone"]
    node.mood("ok 100 1 100 50")
    assert await node.codes() == ["storage-full"]
    node.mood("ok 100 50 100 50")
    node.mount("uid-1", "ro")
    assert await node.codes() == ["storage-read-only"]
    node.mount("uid-1", "rw")
    assert await node.codes() == []


@pytest.mark.parametrize("mood", ["die", "nonsense", "error EACCES", "x" * 100_000])
async def test_a_probe_that_fails_is_blind_and_no_fault(node: Node, mood: str) -> None:
    node.mood(mood)
    assert SOURCE in await node.codes()
    assert [type(fact) for fact in node.told] == [CannotLook], "nothing was seen, so nothing is told as seen"
    node.mood("ok 100 50 100 50")
    assert await node.codes() == []


async def test_pods_that_are_not_guarded_are_not_looked_at(node: Node) -> None:
    node.mood("hang")
    node.guarded = set()
    assert await node.codes() == []


async def test_without_the_folder_of_pods_the_source_is_blind_and_says_what_to_set(node: Node) -> None:
    node.pods.rmdir()
    assert "agent.hostPaths" in await node.codes()


async def test_without_a_mount_table_the_source_is_blind(node: Node) -> None:
    text = node.table.read_text()
    node.table.unlink()
    assert "RLGUARD_AGENT_MOUNTS" in await node.codes()
    node.table.write_text(text)


async def test_a_probe_whose_pod_has_gone_asks_at_another_place(node: Node) -> None:
    assert await node.codes() == []
    node.guarded = {"uid-1", "uid-2"}
    node.mount("uid-2")
    assert await node.codes() == []
    (probe,) = node.source._probes.values()
    assert "uid-2" in probe.point


async def test_more_file_systems_than_probes_are_not_passed_over_in_silence(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "MOST_PROBES", 0)
    assert "more than 0" in await node.codes()


@asynccontextmanager
async def probe(point: str, *command: str) -> AsyncIterator[MountProbe]:
    made = MountProbe(point, command) if command else MountProbe(point)
    try:
        yield made
    finally:
        await made.close()


async def test_the_real_probe_asks_a_real_file_system(tmp_path: Path) -> None:
    async with probe(str(tmp_path)) as one:
        first, second = await one.ask(20.0), await one.ask(20.0)
    assert isinstance(first, Space)
    assert isinstance(second, Space)
    assert first.blocks == os.statvfs(tmp_path).f_blocks


async def test_the_real_probe_names_the_error(tmp_path: Path) -> None:
    async with probe(str(tmp_path / "nowhere")) as one:
        assert await one.ask(20.0) == Refused("ENOENT")


async def test_a_probe_that_cannot_be_started_says_so() -> None:
    async with probe("/", "/nowhere/probe") as one:
        assert isinstance(await one.ask(1.0), NotProbed)


async def test_while_the_kernel_holds_a_killed_child_no_other_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in D state cannot be made here: its death is kept back instead."""
    async with probe("100", "sleep") as one:
        await one.ask(0.1)  # the child exists
        held: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        started: list[Any] = []

        async def spawn(*arguments: Any, **_: Any) -> Any:
            started.append(arguments)
            raise OSError("none should be started")

        one._child._dying = {asyncio.create_task(_of(held))}
        monkeypatch.setattr(asyncio, "create_subprocess_exec", spawn)
        assert [await one.ask(0.1) for _ in range(3)] == [Hung()] * 3
        assert started == []
        held.set_result(0)
        one._child._dying.clear()
        assert isinstance(await one.ask(0.1), NotProbed)
        assert len(started) == 1


@pytest.mark.skipif(not CAN_MOUNT, reason="a mount of one's own needs root, unshare and /dev/fuse")
async def test_a_process_that_a_real_mount_holds_beyond_sigkill_costs_one_process_and_no_time(tmp_path: Path) -> None:
    script = Path(__file__).with_name("hangingmount.py")
    command = ("unshare", "--mount", sys.executable, str(script), str(tmp_path))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    assert process.returncode == 0
    story = json.loads(out)
    space = repr(Space(1000, 400, 100, 50))
    assert (story["first"], story["last"]) == (space, space)
    assert (story["hung"], story["again"]) == (repr(Hung()), repr(Hung()))
    assert (story["stuck"], story["state"]) == (True, "D")


async def _of(future: asyncio.Future[int]) -> int:
    return await future
