"""The coordinator's shell, in the leader pod: tells its core facts, performs what it decides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from rlguard.decision import Decision
from rlguard.drive import Driver
from rlguard.group import coordinator_facts, facts
from rlguard.group.coordinator import begin, decide, fold
from rlguard.group.coordinator_facts import CoordinatorFact, Operation
from rlguard.io.clock import wall
from rlguard.messages import Grant, GroupReport, MemberReport, Order
from rlguard.policy import CheckpointPolicy
from rlguard_sidecar.housekeeping import Housekeeping
from rlguard_sidecar.peers import Roster
from rlguard_sidecar.settings import Settings
from rlguard_sidecar.storeactions import StoreActions
from rlguard_sidecar.whys import Whys

WALL_EVERY: Final = 60.0


class Coordinator:
    """Runs the core. `publish` takes the newest report for the controller, `own_order` the leader pod's own order."""

    def __init__(
        self,
        settings: Settings,
        actions: StoreActions,
        roster: Roster,
        publish: Callable[[GroupReport], None],
        own_order: Callable[[str, Order], None],
        now: Callable[[], float],
        log: Any,
    ) -> None:
        self._actions = actions
        self._roster = roster
        self._publish = publish
        self._own_order = own_order
        self._now = now
        self._log = log
        self._whys = Whys(log, "coordinator")
        self._running: dict[Operation, asyncio.Task[None]] = {}
        self._keep = CheckpointPolicy().keep
        self._housekeeping = Housekeeping(actions.bulk, lambda: self._keep, now, log)
        view = begin(settings.member.uid, settings.size, settings.root is not None, now())
        self._driver: Driver[Any, CoordinatorFact] = Driver(view, fold, decide, self._perform, now)

    def heard(self, report: MemberReport) -> None:
        """A member's report."""
        self.tell(coordinator_facts.MemberHeard(self._now(), report))

    def granted(self, grant: Grant) -> None:
        """The controller's word."""
        self._keep = grant.timing.keep
        self.tell(coordinator_facts.GrantHeard(self._now(), grant))

    def tell(self, fact: CoordinatorFact) -> None:
        """Any other fact."""
        self._driver.tell(fact)

    async def run(self) -> None:
        """Coordinate, for ever. An error in an action's task ends it too: the process starts afresh."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._tell_wall(), name="wall-clock")
            tasks.create_task(self._driver.run(), name="coordinator-driver")
            tasks.create_task(self._housekeeping.run(), name="housekeeping")

    async def _tell_wall(self) -> None:
        while True:
            self.tell(coordinator_facts.WallClock(self._now(), wall()))
            await asyncio.sleep(WALL_EVERY)

    async def _perform(self, decision: Decision) -> None:
        self._whys.note(decision)
        for action in decision.actions:
            self._start(action)

    def _start(self, action: Any) -> None:
        match action:
            case facts.Advance():
                self.tell(facts.Ticked(self._now()))
            case coordinator_facts.SendOrder():
                self._roster.box(action.uid).publish(action.order)
                self._own_order(action.uid, action.order)
            case coordinator_facts.Publish():
                self._publish(action.report)
            case _:
                self._start_store(action)

    def _start_store(self, action: Any) -> None:
        operation = self._actions.operation(action)
        if operation is None:
            raise TypeError(f"the core asks for what nobody does: {action!r:.200}")
        if operation in self._running:
            return
        self._log.info("does", operation=operation.value)
        self._running[operation] = self._tasks.create_task(self._do(operation, action), name=operation.value)

    async def _do(self, operation: Operation, action: Any) -> None:
        try:
            fact = await self._actions.do(action)
        finally:
            del self._running[operation]
        if isinstance(fact, coordinator_facts.StoreFailed):
            self._log.warning("failed", operation=operation.value, problem=fact.detail)
        if isinstance(fact, coordinator_facts.Committed):
            self._housekeeping.committed(action.incarnation)
        self.tell(fact)
