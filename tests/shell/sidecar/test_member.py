"""The member's shell: what it starts for its core, it tells the end of."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from test_settings import WHOLE
from waiting import until

from rlguard.decision import Decision
from rlguard.group.member_facts import CancelFlush, FlushEnded, RunFlush
from rlguard.io.clock import boottime
from rlguard.io.storeclient import StoreClient
from rlguard.messages import FlushOrder
from rlguard.model import CheckpointId, Incarnation
from rlguard_sidecar.member import MemberShell
from rlguard_sidecar.settings import read_settings

FLUSH = RunFlush(FlushOrder("n1", CheckpointId(Incarnation(1, 1), 10), "/nowhere/tmp/x", shared=True), 0)


class Quiet:
    """A log for nobody."""

    def info(self, *_args: object, **_fields: object) -> None:
        """Say nothing."""

    warning = info


async def test_a_flush_that_is_cancelled_before_it_began_ends_all_the_same(tmp_path: Path) -> None:
    settings = read_settings({**WHOLE, "RLGUARD_RUN": str(tmp_path), "RLGUARD_SHM": str(tmp_path)})
    shell = MemberShell(settings, StoreClient(tmp_path), _nothing, _nothing, boottime, Quiet())
    told: list[Any] = []
    shell.tell = told.append  # type: ignore[method-assign]
    async with asyncio.TaskGroup() as shell._tasks:
        await shell._perform(Decision((FLUSH,), None, None))
        await shell._perform(Decision((CancelFlush("n1"),), None, None))
        await until(lambda: not shell._flushes)
        await shell._perform(Decision((CancelFlush("n1"),), None, None))
    assert [(type(fact), fact.nonce, fact.done) for fact in told] == [(FlushEnded, "n1", False)]


def _nothing(_: object) -> None:
    pass
