"""Kernel lines through a running agent: what one line begins another one ends, and a user's own rows count."""

from __future__ import annotations

import json
from typing import Any

from test_agent import linked
from waiting import until

from rlguard.model import Severity, Verdict

LOST = "Lustre: fs-OST0003-osc-ffff88017c2b3000: Connection to fs-OST0003 (at 10.0.47.232@tcp) was lost; in progress"
BACK = "Lustre: fs-OST0003-osc-ffff88017c2b3000: Connection restored to 10.0.47.232@tcp (at 10.0.47.232@tcp)"
REMAP = "NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate."


async def test_a_fault_that_a_line_takes_back_is_gone_for_the_sidecar_and_the_node(world: Any) -> None:
    await world.start()
    async with linked(world) as sidecar:
        await until(lambda: sidecar.verdict() is Verdict.HEALTHY)
        world.kernel.write(LOST)
        await until(lambda: sidecar.verdict() is Verdict.DEGRADED)
        assert sidecar.codes() == ["lustre-connection-lost"]
        world.kernel.write(BACK)
        await until(lambda: sidecar.verdict() is Verdict.HEALTHY)
        assert sidecar.codes() == []


async def test_what_was_taken_back_does_not_come_back_with_a_restarted_agent(world: Any) -> None:
    for line in (LOST, BACK, LOST, BACK):
        world.kernel.write(line)
    await world.start()
    async with linked(world) as sidecar:
        await until(lambda: sidecar.verdict() is Verdict.HEALTHY)
        await world.kill()
        await world.start()
        sidecar.reports.clear()
        await until(lambda: sidecar.verdict() is Verdict.HEALTHY)
    assert not any(report.notices for report in sidecar.reports)


async def test_a_user_s_own_row_decides(world: Any) -> None:
    mine = world.folder / "mine.json"
    mine.write_text(json.dumps({"version": "mine", "rows": [{"code": "xid-63", "severity": "fatal"}]}))
    await world.start(RLGUARD_AGENT_CATALOGUE=str(mine))
    async with linked(world) as sidecar:
        world.kernel.write(REMAP)
        await until(lambda: sidecar.verdict() is Verdict.LOST)
    (notice,) = sidecar.reports[-1].notices
    assert notice.severity is Severity.FATAL


async def test_a_damaged_file_of_rows_is_named_and_ends_the_agent(world: Any) -> None:
    mine = world.folder / "mine.json"
    mine.write_text("{")
    await world.start(RLGUARD_AGENT_CATALOGUE=str(mine))
    assert await world.process.wait() == 2
