"""What the checkpoint root looks like from this pod: there or not, writable or not, whose lineage it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from rlguard.checkpoint.outcomes import Scan
from rlguard.errors import RlguardError
from rlguard.io.storeclient import StoreClient
from rlguard_sidecar.rootcheck import check, is_there, volume_of
from rlguard_sidecar.storeactions import is_completed

OK: Final = "ok"
NONE: Final = "none"
LOOK_BAD: Final = 5.0
LOOK_GOOD: Final = 10.0
LOOK_RUNNING: Final = 60.0
"""Seconds between looks: while something is wrong, before the first start, and once ranks run."""


@dataclass(frozen=True, slots=True)
class RootState:
    """`state`: "ok", "none", or what is wrong, in words. `generation`: the newest on disk, None if unknown.

    `completed`: this very job is marked complete; `completed_by`: the UID of the LWS that is, empty for none.
    """

    state: str
    generation: int | None
    lineage: bool
    completed: bool
    completed_by: str = ""

    @property
    def readable(self) -> bool:
        """Whether what it says about the lineage can be relied on."""
        return self.state == NONE or self.generation is not None


UNKNOWN: Final = RootState("not looked at yet", None, lineage=False, completed=False)
ABSENT: Final = RootState(NONE, None, lineage=False, completed=False)


class RootWatch:
    """Looks at the root again and again, through a child that can be killed. `tell` is told each look."""

    def __init__(
        self,
        root: str | None,
        store: StoreClient,
        job_uid: Callable[[], str | None],
        tell: Callable[[RootState], None],
        log: Any,
    ) -> None:
        self.state = ABSENT if root is None else UNKNOWN
        self.running = False
        self._root = root
        self._store = store
        self._job_uid = job_uid
        self._tell = tell
        self._log = log

    async def run(self) -> None:
        """Look, for ever; rarely once ranks run: the coordinator looks for itself."""
        while True:
            await self._look()
            self._tell(self.state)
            pause = LOOK_RUNNING if self.running else LOOK_GOOD
            await asyncio.sleep(pause if self.state.state in (OK, NONE) else LOOK_BAD)

    async def _look(self) -> None:
        if self._root is None:
            return
        problem = await check(volume_of(self._root))
        try:
            state = self._seen(problem, await self._store.scan()) if is_there(problem) else _bad(problem)
        except RlguardError as error:
            state = _bad(str(error))
        if state.state != self.state.state:
            self._log.info("checkpoint root", state=state.state, generation=state.generation)
        self.state = state

    def _seen(self, problem: str, scan: Scan) -> RootState:
        generation = max((incarnation.generation for incarnation in scan.claimed), default=0)
        return RootState(
            problem or OK,
            generation,
            lineage=bool(scan.claimed),
            completed=is_completed(scan, self._job_uid()),
            completed_by=scan.completed.job_uid if scan.completed is not None else "",
        )


def _bad(problem: str) -> RootState:
    return RootState(problem, None, lineage=False, completed=False)
