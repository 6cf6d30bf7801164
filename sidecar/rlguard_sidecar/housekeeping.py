"""Retention: after each commit what is no longer needed moves to trash, and is unlinked an hour later (C7).

What may go is decided by `rlguard.checkpoint.pruning`; the store looks for a newer claim before each move. Nothing
waits for this, and a root that fails or hangs only makes it try again after the next commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from rlguard.checkpoint.pruning import ripe
from rlguard.errors import FencedError, RlguardError
from rlguard.io.storeclient import StoreClient
from rlguard.model import Incarnation


class Housekeeping:
    """Prunes one root. `keep()` is how many committed checkpoints the policy wants kept; `now` is CLOCK_BOOTTIME."""

    def __init__(self, store: StoreClient, keep: Callable[[], int], now: Callable[[], float], log: Any) -> None:
        self._store = store
        self._keep = keep
        self._now = now
        self._log = log
        self._own: Incarnation | None = None
        self._due = asyncio.Event()
        self._first_seen: dict[str, float] = {}

    def committed(self, own: Incarnation) -> None:
        """The coordinator of this incarnation has committed something."""
        self._own = own
        self._due.set()

    async def run(self) -> None:
        """Prune after each commit, for ever."""
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                await self._once()
            except FencedError as error:
                self._log.info("prunes nothing", problem=str(error))
            except RlguardError as error:
                self._log.warning("pruning failed", problem=str(error))

    async def _once(self) -> None:
        if self._own is None:
            return
        moved = await self._store.prune(self._own, self._keep())
        if moved:
            self._log.info("moved to trash", checkpoints=[str(checkpoint) for checkpoint in moved])
        now, entries = self._now(), await self._store.trash()
        self._first_seen = {entry: self._first_seen.get(entry, now) for entry in entries}
        gone = ripe(self._first_seen, now)
        if gone:
            await self._store.purge(self._own, gone)
            self._log.info("unlinked from trash", entries=len(gone))
