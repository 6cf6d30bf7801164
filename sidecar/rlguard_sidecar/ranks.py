"""The shared-memory pages as facts, and the control page as the sidecar's word to its ranks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from rlguard.group.member_facts import PagesRead, RankSeen, SlotSeen, WriteControl
from rlguard.messages import StageResult
from rlguard.model import CheckpointId, Incarnation
from rlguard.policy import MOST_RANKS
from rlguard.train import pages

POLL: Final = 0.1
POLL_STAGING: Final = 0.02
"""While a stage is pending: a rank's answer should not wait for the sidecar."""
STAGE_LOOKS: Final = 30.0
"""Seconds after an order during which the pages are read so often."""
LAST_STEP: Final = 10**18 - 1
"""A checkpoint's name holds no larger one."""
MOST_PROBLEMS: Final = 200
"""So many different ones are told in a process's life."""

_RESULTS: Final = {
    pages.StageResult.NONE: None,
    pages.StageResult.STAGED: StageResult.STAGED,
    pages.StageResult.PAST: StageResult.PAST,
    pages.StageResult.SKIPPED: StageResult.SKIPPED,
    pages.StageResult.FAILED: StageResult.FAILED,
}


class RankPages:
    """Reads what the ranks of this pod write, writes what they read. A page that is torn or bad is left out, told once.

    `now` is CLOCK_BOOTTIME in seconds, the clock that the pages themselves use.
    """

    def __init__(self, shm: Path, tell: Callable[[PagesRead], None], now: Callable[[], float], log: Any) -> None:
        self._shm = shm
        self._tell = tell
        self._now = now
        self._log = log
        self._problems: set[str] = set()
        self._control: pages.ControlWriter | None = None
        self._written: WriteControl | None = None
        self._hurry_until = 0.0
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Read and tell, for ever."""
        while True:
            self._tell(self.read())
            self._wake.clear()
            pause = POLL_STAGING if self._now() < self._hurry_until else POLL
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()

    def look(self) -> None:
        """Read at once instead of at the next poll."""
        self._wake.set()

    def write(self, action: WriteControl) -> None:
        """Order a stage. Orders are numbered, so the same one again changes nothing."""
        if action == self._written:
            return
        page = pages.ControlPage(str(action.incarnation), order=action.order, step=action.step, slot=action.slot)
        try:
            if self._control is None:
                self._control = pages.ControlWriter(self._shm)
            self._control.write(page)
        except OSError as error:  # the core asks again
            self._say(f"no stage can be ordered: {error}")
            return
        self._written = action
        self._hurry_until = self._now() + STAGE_LOOKS

    def read(self) -> PagesRead:
        """Everything that can be read now, of whatever incarnation; the core knows which one counts."""
        at = self._now()
        read = [self._rank(number, at) for number in self._numbers()]
        ranks = tuple(rank for rank in read if rank is not None)
        if ranks and all(rank.order == self._order() and rank.result is not None for rank in ranks):
            self._hurry_until = 0.0
        count = max((rank.local_world_size for rank in ranks), default=0)
        return PagesRead(at, ranks, tuple(SlotSeen(slot, self._whole(slot, count)) for slot in range(pages.SLOTS)))

    def header(self, local_rank: int, slot: int) -> pages.SlotHeader | None:
        """A slot's header, None when nothing readable is there."""
        try:
            return pages.read_header(pages.slot_path(self._shm, local_rank, slot))
        except (pages.PageError, OSError) as error:
            self._say(str(error))
            return None

    def _order(self) -> int:
        return self._written.order if self._written is not None else 0

    def _numbers(self) -> list[int]:
        try:
            return [number for number in pages.local_ranks(self._shm) if number < MOST_RANKS]
        except OSError as error:
            self._say(str(error))
            return []

    def _rank(self, number: int, at: float) -> RankSeen | None:
        try:
            page = pages.read_rank(self._shm, number)
            return None if page is None else _seen(number, page, at)
        except (pages.PageError, OSError, ValueError) as error:
            self._say(str(error))
            return None

    def _whole(self, slot: int, count: int) -> CheckpointId | None:
        """What all ranks of the pod staged into this slot, if they staged the same."""
        headers = [self.header(local_rank, slot) for local_rank in range(count)]
        staged = {(header.incarnation, header.step) for header in headers if header is not None and not header.dirty}
        if len(staged) != 1 or any(header is None or header.dirty for header in headers):
            return None
        incarnation, step = staged.pop()
        try:
            return CheckpointId.parse(f"{step}@{incarnation}")
        except ValueError:
            return None

    def _say(self, problem: str) -> None:
        if problem not in self._problems and len(self._problems) < MOST_PROBLEMS:
            self._problems.add(problem)
            self._log.warning("page", problem=problem)


def _seen(number: int, page: pages.RankPage, at: float) -> RankSeen:
    if page.local_world_size > MOST_RANKS or max(page.step, page.stage_step) > LAST_STEP:
        raise ValueError(f"rank-{number}: claims what cannot be: {page}")
    return RankSeen(
        local_rank=number,
        local_world_size=page.local_world_size,
        incarnation=Incarnation.parse(page.incarnation),
        step=page.step if page.step >= 0 else None,
        heartbeat_age=max(0.0, at - page.heartbeat_ns / 1e9),
        order=page.order,
        stage_step=page.stage_step,
        slot=page.slot,
        result=_RESULTS[page.result],
        hook=page.hook,
        reshardable=page.reshardable,
        nan=page.nan,
    )
