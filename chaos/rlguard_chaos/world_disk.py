"""The simulated world's checkpoint root, and the coordinator's shell in front of it. No time but the simulated one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rlguard.checkpoint.lineage import on_chain
from rlguard.checkpoint.records import Record
from rlguard.group import coordinator as core
from rlguard.group import coordinator_facts, facts
from rlguard.group.coordinator_facts import LineageScan, Operation
from rlguard.group.view import Mode
from rlguard.messages import FileEntry, Order
from rlguard.model import CheckpointId, Incarnation

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlguard.messages import GroupReport
    from rlguard_chaos.world import SimWorld
    from rlguard_chaos.world_pods import Pod


class ViolationError(AssertionError):
    """Something happened that must never happen; the message says what, when, and in which seed."""


@dataclass(slots=True)
class Disk:
    """The shared file system: what has been renamed or linked into place is there for ever."""

    claims: dict[Incarnation, tuple[str, str]] = field(default_factory=dict)
    records: dict[Incarnation, Record] = field(default_factory=dict)
    steps: set[CheckpointId] = field(default_factory=set)
    parts: dict[str, dict[str, CheckpointId]] = field(default_factory=dict)
    told: set[CheckpointId] = field(default_factory=set)
    completed: bool = False
    blind: bool = False
    full: bool = False

    def scan(self) -> LineageScan:
        """List it. A blind listing shows no checkpoints: stale attributes, or an unmounted folder."""
        return LineageScan(
            claims=tuple((claim, leader) for claim, (leader, _) in self.claims.items()),
            records=tuple(self.records.values()),
            visible=() if self.blind else tuple(self.steps),
            completed=self.completed,
        )


class CoordinatorShell:
    """Runs the coordinator's core in a simulated process; actions take effect, and are answered, some time later."""

    def __init__(self, world: SimWorld, pod: Pod) -> None:
        self.world = world
        self.pod = pod
        self.alive = True
        self.running: set[Operation] = set()
        self.orders: dict[str, Order] = {}
        self.report: GroupReport | None = None
        self.controller_open: bool | None = None
        self.version = 0
        self.nonces: dict[Incarnation, str] = {}
        self.view = core.begin(pod.uid, world.size, has_root=True, now=world.now)
        self.tell(coordinator_facts.WallClock(world.now, 1e9 + world.now))

    def tell(self, fact: coordinator_facts.CoordinatorFact) -> None:
        """Fold, then decide and perform."""
        if not self.alive or not self.pod.thaws(lambda: self.tell(restamped(fact, self.world.now))):
            return
        self.view = core.fold(self.view, fact)
        self.world.counted["facts"] += 1
        self.decide()

    def decide(self) -> None:
        """Decide, and wake up again when the decision asks for it."""
        if not self.alive or self.world.now < self.pod.frozen_until:
            return
        now = self.world.now
        decision = core.decide(self.view, now)
        if any(isinstance(action, facts.Advance) for action in decision.actions):
            self.tell(facts.Ticked(now))
            return
        self.world.check_coordinator(self)
        for action in decision.actions:
            self._perform(action)
        self.version += 1
        version = self.version
        wake = decision.wake_at
        if wake is None or wake <= now:
            raise ViolationError(f"A7: no wake-up in mode {self.view.mode}")
        self.world.after(wake - now + 1e-3, lambda: self.decide() if version == self.version else None)

    def _perform(self, action: Any) -> None:
        if isinstance(action, coordinator_facts.SendOrder):
            if self.orders.get(action.uid) != action.order:
                self.orders[action.uid] = action.order
                self.world.send_order(self, action.uid)
        elif isinstance(action, coordinator_facts.Publish):
            self.report = action.report
        else:
            operation, effect = self._effect(action)
            if operation not in self.running:
                self.running.add(operation)
                self._later(operation, effect)

    def _later(self, operation: Operation, effect: Callable[[], coordinator_facts.CoordinatorFact]) -> None:
        """First the effect, then the answer. A process that has died meanwhile leaves the effect behind."""
        world = self.world
        slow = world.random.uniform(3, 40) if operation is Operation.COMMIT and world.chance(0.15) else 0.0

        def act() -> None:
            if not self.pod.thaws(act):
                return
            broken = world.disk.full and operation not in (Operation.LOOK, Operation.PORT)
            fact = coordinator_facts.StoreFailed(world.now, operation, "no space left") if broken else effect()
            world.after(world.random.uniform(0.01, 0.3), lambda: self._answer(operation, fact))

        world.after(world.random.uniform(0.01, 0.2) + slow, act)

    def _answer(self, operation: Operation, fact: Any) -> None:
        if not self.alive or not self.pod.thaws(lambda: self._answer(operation, fact)):
            return
        self.running.discard(operation)
        if isinstance(fact, coordinator_facts.Committed):
            self.world.disk.told.add(fact.checkpoint)
        self.tell(restamped(fact, self.world.now))
        if (
            isinstance(fact, coordinator_facts.Voided)
            and fact.newer_leader != self.pod.uid
            and self.view.mode is not Mode.FENCED
        ):
            raise ViolationError("C2: a commit made void by another leader's claim was taken for good")

    def _effect(self, action: Any) -> tuple[Operation, Callable[[], coordinator_facts.CoordinatorFact]]:
        table: dict[type, tuple[Operation, Callable[[], coordinator_facts.CoordinatorFact]]] = {
            coordinator_facts.LookAtDisk: (
                Operation.LOOK,
                lambda: coordinator_facts.DiskSeen(0, self.world.disk.scan()),
            ),
            coordinator_facts.ClaimAttempt: (Operation.CLAIM, lambda: self._claim(action)),
            coordinator_facts.VerifyCheckpoint: (Operation.VERIFY, lambda: self._verify(action)),
            coordinator_facts.WriteRecord: (Operation.RECORD, lambda: self._record(action)),
            coordinator_facts.ReservePort: (
                Operation.PORT,
                lambda: coordinator_facts.PortReserved(0, action.incarnation, 29500),
            ),
            coordinator_facts.BeginFlush: (Operation.BEGIN_FLUSH, lambda: self._begin(action)),
            coordinator_facts.Commit: (Operation.COMMIT, lambda: self._commit(action)),
            coordinator_facts.MarkComplete: (Operation.COMPLETE, self._complete),
            coordinator_facts.WriteIncident: (
                Operation.INCIDENT,
                lambda: coordinator_facts.IncidentWritten(0, action.incident),
            ),
        }
        return table[type(action)]

    def _claim(self, action: coordinator_facts.ClaimAttempt) -> coordinator_facts.CoordinatorFact:
        disk = self.world.disk
        nonce = self.nonces.setdefault(action.incarnation, self.world.name("nonce"))
        if disk.claims.get(action.incarnation, ("", nonce))[1] != nonce:
            return coordinator_facts.ClaimRefused(0, action.incarnation, disk.scan())
        if action.incarnation not in disk.claims:
            self.world.check_claim(action.incarnation)
            disk.claims[action.incarnation] = (self.pod.uid, nonce)
        scan = disk.scan()
        return coordinator_facts.Claimed(0, action.incarnation, nonce, scan)

    def _verify(self, action: coordinator_facts.VerifyCheckpoint) -> coordinator_facts.CoordinatorFact:
        whole = action.checkpoint in self.world.disk.steps
        return coordinator_facts.Verified(
            0, action.checkpoint, whole, f"steps/{action.checkpoint}", None, "" if whole else "gone"
        )

    def _record(self, action: coordinator_facts.WriteRecord) -> coordinator_facts.CoordinatorFact:
        disk, record = self.world.disk, action.record
        if record.incarnation not in disk.records:
            self.world.check_record(record)
            disk.records[record.incarnation] = record
        return coordinator_facts.Recorded(0, record.incarnation)

    def _begin(self, action: coordinator_facts.BeginFlush) -> coordinator_facts.CoordinatorFact:
        nonce = self.world.name("flush")
        self.world.disk.parts[nonce] = {}
        return coordinator_facts.FlushBegun(0, nonce, action.checkpoint, nonce)

    def _commit(self, action: coordinator_facts.Commit) -> coordinator_facts.CoordinatorFact:
        disk, record = self.world.disk, self.world.disk.records[action.checkpoint.incarnation]
        parts = disk.parts[action.directory]
        if set(parts) != record.world.uids or set(parts.values()) != {action.checkpoint}:
            raise ViolationError(f"C6: {action.checkpoint} was committed of {parts}")
        if {entry.name for entry in action.files} != {f"part-{uid}" for uid in parts}:
            raise ViolationError(f"C6: the manifest of {action.checkpoint} names {action.files}")
        disk.steps.add(action.checkpoint)
        newest = max(disk.claims)
        if newest > action.incarnation:
            return coordinator_facts.Voided(0, action.checkpoint, newest, disk.claims[newest][0])
        if not on_chain(disk.records, action.checkpoint):
            raise ViolationError(f"C3: {action.checkpoint} was committed as good and is off the chain")
        return coordinator_facts.Committed(0, action.checkpoint, f"steps/{action.checkpoint}")

    def _complete(self) -> coordinator_facts.CoordinatorFact:
        self.world.disk.completed = True
        return coordinator_facts.MarkedComplete(0)


def part(uid: str) -> FileEntry:
    """What one member writes into a flush."""
    return FileEntry(f"part-{uid}", 1, "0" * 64)


def restamped(fact: Any, at: float) -> Any:
    """The same fact, learnt at `at`."""
    return replace(fact, at=at)
