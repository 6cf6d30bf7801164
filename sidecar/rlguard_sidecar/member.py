"""The member's shell, in every pod: its launcher, its pages and slots, its part of a flush."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlguard.decision import Decision
from rlguard.drive import Driver
from rlguard.group import facts, member_facts
from rlguard.group.member import begin, decide, fold
from rlguard.group.member_facts import LauncherState, MemberFact, PagesRead
from rlguard.io.storeclient import StoreClient
from rlguard.messages import MemberReport, Order, Ranks
from rlguard.model import CheckpointId
from rlguard_sidecar.flush import flush
from rlguard_sidecar.launcher import LauncherServer
from rlguard_sidecar.ranks import RankPages
from rlguard_sidecar.settings import Settings
from rlguard_sidecar.whys import Whys


class MemberShell:
    """Runs the core. `publish` takes the newest report; `on_state` is told each state of the launcher."""

    def __init__(
        self,
        settings: Settings,
        store: StoreClient,
        publish: Callable[[MemberReport], None],
        on_state: Callable[[LauncherState], None],
        now: Callable[[], float],
        log: Any,
    ) -> None:
        self._shm = settings.shm
        self._store = store
        self._publish = publish
        self._on_state = on_state
        self._now = now
        self._log = log
        self._whys = Whys(log, "member")
        self._launcher = LauncherServer(settings.run, self._heard, lambda: self.tell(member_facts.LauncherLost(now())))
        self._pages = RankPages(settings.shm, self._read, now, log)
        self._ranks_said: Ranks | None = None
        self._local_ranks = 0
        self._flushes: dict[str, asyncio.Task[None]] = {}
        self._driver: Driver[Any, MemberFact] = Driver(begin(settings.member, now()), fold, decide, self._perform, now)

    def tell(self, fact: MemberFact) -> None:
        """A fact."""
        self._driver.tell(fact)

    def ordered(self, order: Order) -> None:
        """The coordinator's word."""
        self.tell(member_facts.OrderHeard(self._now(), order))

    async def run(self) -> None:
        """Serve, for ever. An error in any part ends all: the process starts afresh."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._launcher.run(), name="launcher-server")
            tasks.create_task(self._pages.run(), name="rank-pages")
            tasks.create_task(self._driver.run(), name="member-driver")

    def _heard(self, state: LauncherState) -> None:
        if state.ranks is not self._ranks_said:
            self._log.info(
                "ranks",
                ranks=state.ranks.value,
                incarnation=_text(state.incarnation),
                code=state.code,
                signal=state.signal,
            )
            self._ranks_said = state.ranks
            self._pages.look()
        self._on_state(state)
        self.tell(member_facts.LauncherHeard(self._now(), state))

    def _read(self, read: PagesRead) -> None:
        newest = max((rank.incarnation for rank in read.ranks), default=None)
        counts = (rank.local_world_size for rank in read.ranks if rank.incarnation == newest)
        self._local_ranks = max(counts, default=0)
        self.tell(read)

    async def _perform(self, decision: Decision) -> None:
        self._whys.note(decision)
        for action in decision.actions:
            self._start(action)

    def _start(self, action: Any) -> None:
        match action:
            case facts.Advance():
                self.tell(facts.Ticked(self._now()))
            case member_facts.PublishMember():
                self._publish(action.report)
            case member_facts.WriteControl():
                self._pages.write(action)
            case member_facts.RunFlush():
                self._start_flush(action)
            case member_facts.CancelFlush():
                self._cancel_flush(action.nonce)
            case _:
                self._launcher.order(launcher_order(action, self._shm))

    def _start_flush(self, action: member_facts.RunFlush) -> None:
        nonce = action.order.nonce
        if nonce not in self._flushes:
            self._log.info("flushes", checkpoint=str(action.order.checkpoint), slot=action.slot)
            task = self._tasks.create_task(self._flush(action), name=f"flush-{nonce}")
            self._flushes[nonce] = task
            # Not in `_flush`: a task that is cancelled before its first step never enters it.
            task.add_done_callback(lambda _: self._flushes.pop(nonce, None))

    async def _flush(self, action: member_facts.RunFlush) -> None:
        nonce = action.order.nonce
        try:
            ended = await flush(self._store, self._shm, action, self._local_ranks, self._now)
        except asyncio.CancelledError:
            ended = member_facts.FlushEnded(self._now(), nonce, done=False, detail="nobody wants it any more", files=())
        if not ended.done:
            self._log.warning("flush failed", checkpoint=str(action.order.checkpoint), problem=ended.detail)
        self.tell(ended)

    def _cancel_flush(self, nonce: str) -> None:
        running = self._flushes.get(nonce)
        if running is None:
            self.tell(member_facts.FlushEnded(self._now(), nonce, done=False, detail="it is not running", files=()))
        else:
            running.cancel()


def launcher_order(action: Any, shm: Path) -> dict[str, Any]:
    """What the launcher is told for an action of the core."""
    match action:
        case member_facts.StartRanks():
            return {"type": "start", "incarnation": str(action.incarnation), "env": start_environment(action, shm)}
        case member_facts.StopRanks():
            return {"type": "stop", "incarnation": str(action.incarnation), "grace_s": action.grace}
        case member_facts.Idle():
            return {"type": "idle"}
        case member_facts.RunUntouched():
            return {"type": "untouched"}
    raise TypeError(f"the core asks for what nobody does: {action!r:.200}")


def start_environment(action: member_facts.StartRanks, shm: Path) -> dict[str, str]:
    """What the ranks of one attempt get to know."""
    world = {
        "nnodes": action.nnodes,
        "node_rank": action.node_rank,
        "master_addr": action.master_addr,
        "master_port": action.master_port,
        "incarnation": str(action.incarnation),
    }
    resume = None if action.resume is None else _resume(action.resume, action.slot, action.directory, shm)
    return {"RLGUARD_WORLD": json.dumps(world), "RLGUARD_RESUME": json.dumps(resume)}


def _resume(checkpoint: CheckpointId, slot: int | None, directory: str | None, shm: Path) -> dict[str, Any]:
    return {"checkpoint": str(checkpoint), "memory": str(shm), "slot": slot, "directory": directory}


def _text(value: object) -> str | None:
    return None if value is None else str(value)
