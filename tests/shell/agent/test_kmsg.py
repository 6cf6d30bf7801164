"""The kernel log's reader against the lab's own ring, which overwrites as the kernel's does."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import reduce
from pathlib import Path

import pytest
from waiting import until

from rlguard.health.assess import CannotLook, Fact, Source, View, fold
from rlguard.health.catalogue import builtin
from rlguard_agent.kmsg import KernelSource
from rlguard_chaos.lab.edge import KernelLog
from rlguard_chaos.lab.ring import Ring

FAULTS = 10
LINES = 20_000


@asynccontextmanager
async def following(place: str, facts: list[Fact], position: int | None = None) -> AsyncIterator[KernelSource]:
    """A reader that follows the log, telling `facts`."""
    source = KernelSource(place, builtin(), position, facts.append, kernel_only=True)
    task = asyncio.create_task(source.run())
    try:
        yield source
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextmanager
def serving(ring: Ring, folder: Path) -> Iterator[KernelLog]:
    """The lab's kernel log; its sockets are closed at the end."""
    log = KernelLog(ring, folder / "kmsg.sock", folder / "control.sock")
    try:
        yield log
    finally:
        for key in list(log._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        log._selector.close()


def summed_up(facts: list[Fact]) -> View:
    return reduce(fold, facts, View("node-1", "boot", frozenset({Source.KERNEL})))


async def test_a_flood_through_a_ring_that_overwrites_loses_nothing_unseen(tmp_path: Path) -> None:
    ring, facts = Ring(), list[Fact]()
    place = f"unix:{tmp_path / 'kmsg.sock'}"
    with serving(ring, tmp_path) as log:
        async with following(place, facts, position=-1) as source:
            for number in range(LINES):
                device, hidden = divmod(number, LINES // FAULTS)
                text = f"NVRM: Xid (PCI:0000:{device:02x}:00): 79, x" if hidden == 7 else f"NVRM: noise {number}"
                ring.append(text, 4, number)
                if number % 1000 == 0:
                    log.serve(0)
                    await asyncio.sleep(0)
            while source.records + source.lost < LINES:
                log.serve(0)
                await asyncio.sleep(0.001)
    view = summed_up(facts)
    assert view.position == LINES - 1
    assert source.records + source.lost == LINES
    assert source.garbage == 0
    assert len(view.faults) == FAULTS or view.gaps > 0


async def test_a_reader_that_goes_on_from_a_position_sees_only_what_is_new(tmp_path: Path) -> None:
    ring, facts = Ring(), list[Fact]()
    for device in range(4):
        ring.append(f"NVRM: Xid (PCI:0000:{device:02x}:00): 79, x", 4, device)
    place = f"unix:{tmp_path / 'kmsg.sock'}"
    with serving(ring, tmp_path) as log:
        async with following(place, facts, position=1) as source:
            while source.records < 2:
                log.serve(0)
                await asyncio.sleep(0.001)
    assert [device for _, device in summed_up(facts).faults] == ["0000:02:00", "0000:03:00"]
    assert summed_up(facts).gaps == 0


@pytest.mark.parametrize("place", ["/nowhere/kmsg", "unix:/nowhere/kmsg.sock"])
async def test_a_log_that_cannot_be_opened_is_told_with_what_to_do(place: str) -> None:
    facts: list[Fact] = []
    async with following(place, facts):
        await until(lambda: facts)
    assert all(isinstance(fact, CannotLook) and "privileged" in fact.reason for fact in facts)


async def test_a_file_with_an_end_is_no_kernel_log_and_is_not_read_again_and_again(tmp_path: Path) -> None:
    (tmp_path / "saved").write_text("4,1,1,-;x\n")
    for place in ("/dev/null", str(tmp_path / "saved")):
        facts = list[Fact]()
        async with following(place, facts):
            await until(lambda told=facts: any(isinstance(fact, CannotLook) for fact in told))  # type: ignore[misc]
            await asyncio.sleep(0.2)
        assert len(facts) < 4


@pytest.mark.parametrize("position", [2, 2**62], ids=["a little ahead", "far ahead"])
async def test_a_position_that_the_log_has_not_reached_is_none_of_this_log(tmp_path: Path, position: int) -> None:
    ring, facts = Ring(), list[Fact]()
    with serving(ring, tmp_path) as log:
        ring.append("NVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus.", 4, 0)
        ring.append("more", 4, 0)
        async with following(f"unix:{tmp_path / 'kmsg.sock'}", facts, position):
            async with asyncio.timeout(10):
                while not summed_up(facts).faults:
                    log.serve(0)
                    await asyncio.sleep(0.01)
        seen = summed_up(facts)
    assert (seen.position, seen.gaps) == (1, 1)
