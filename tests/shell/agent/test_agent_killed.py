"""The agent's process killed at any moment, judged by a list of faults that is kept outside of it."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from test_agent import linked, until_shown
from waiting import until

from rlguard.model import Verdict

NOISE = "audit: type=1400 apparmor=DENIED operation=open"


def fell_off(bus: int) -> str:
    """The line of a GPU that is gone."""
    return f"NVRM: Xid (PCI:0000:{bus:02x}:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [8, pytest.param(100, marks=pytest.mark.soak)])
async def test_an_agent_killed_again_and_again_loses_no_fault_tells_none_twice_and_none_of_another_boot(
    world: Any, kills: int
) -> None:
    chance = random.Random(kills)  # noqa: S311 - the same days in every run
    await fault_of_an_earlier_boot(world)
    injected: set[str] = set()
    async with linked(world) as sidecar:
        for bus in range(1, kills + 1):
            await world.start()
            for line in chance.sample([*[NOISE] * 20, fell_off(bus)], 21):
                world.kernel.write(line)
            injected.add(f"22222222/xid-79/0000:{bus:02x}:00")
            await asyncio.sleep(chance.uniform(0.0, 2.0))
            await world.kill()
        await world.start()
        await until(lambda: sidecar.reports and {n.id for n in sidecar.reports[-1].notices} >= injected)
        await asyncio.sleep(1.0)  # one that is told twice would be by now
    assert {notice.id for report in sidecar.reports for notice in report.notices} == injected
    assert all(len({n.id for n in report.notices}) == len(report.notices) for report in sidecar.reports)
    assert sidecar.verdict() is Verdict.LOST


async def fault_of_an_earlier_boot(world: Any) -> None:
    """The agent knew it, and has it on its disk; the new boot begins with an empty kernel log."""
    world.kernel.write(fell_off(0xEE))
    await world.start()
    async with linked(world) as sidecar:
        await until(lambda: sidecar.codes() == ["xid-79"])
    await world.kill()
    world.boot("22222222-boot")
    world.kernel.packets.clear()


async def test_records_overwritten_while_the_agent_was_dead_are_a_gap_and_no_health(world: Any) -> None:
    for number in range(5):
        world.kernel.write(NOISE, number)
    await world.start(hurry={"rlguard_agent.state.EVERY": 0.2})
    async with linked(world) as sidecar:
        await until(lambda: sidecar.verdict() is Verdict.HEALTHY)
        await until((world.folder / "state" / "state.json").exists)
        state = world.folder / "state" / "state.json"
        await until(lambda: '"position": 4' in state.read_text())
        await world.kill()
        world.kernel.packets.clear()
        world.kernel.write(NOISE, 1305)
        await world.start()
        seen = len(sidecar.reports)
        await until(lambda: len(sidecar.reports) > seen)
        await until_shown(world, "rlguard_agent_kernel_gaps_total 1.0")
        await asyncio.sleep(4.0)  # every source has answered by now
        assert {report.verdict for report in sidecar.reports[seen:]} == {Verdict.UNKNOWN}
