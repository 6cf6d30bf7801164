"""A coordinator's core with members and a root that answer at once: tests say what is heard and see what is done."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rlguard.checkpoint.records import Record
from rlguard.decision import Decision
from rlguard.group import coordinator, coordinator_facts, facts
from rlguard.group.view import Mode
from rlguard.messages import (
    FileEntry,
    FlushResult,
    FlushState,
    Grant,
    GroupReport,
    MemberReport,
    Order,
    Ranks,
    Slot,
    StageResult,
    StageState,
    Timing,
    Want,
)
from rlguard.model import CheckpointId, GroupKey, Incarnation, Member, Notice, World

TIMING = Timing(
    stage_interval=10.0,
    flush_interval=30.0,
    stall_limit=60.0,
    same_step_limit=3,
    attempts=5,
    attempts_window=600.0,
    keep=3,
)


def member(index: int, life: str = "a") -> Member:
    """One pod's life."""
    return Member(index, f"uid-{index}{life}", f"job-0-{index}", f"node-{index}{life}", f"10.0.0.{index + 1}")


def report(who: Member, incarnation: Incarnation | None = None, ranks: Ranks = Ranks.NONE, **more: Any) -> MemberReport:
    """A member's report with nothing special in it."""
    plain = MemberReport(
        member=who, incarnation=incarnation, ranks=ranks, code=None, signal=None, tail="", hooked=True,
        reshardable=False, step=None, heartbeat_age=None, slots=(), stage=None, flush=None, notices=(),
        terminating=False, untouched=False,
    )  # fmt: skip
    return replace(plain, **more)


class Rig:
    """The group. `members` obey their orders when `settle` is called; `broken` operations fail."""

    def __init__(self, size: int = 2, *, root: bool = True, controller: bool = True) -> None:
        self.now = 1000.0
        self.members = [member(index) for index in range(size)]
        self.silent: set[str] = set()
        self.reports: dict[str, MemberReport] = {who.uid: report(who) for who in self.members}
        self.view = coordinator.begin(self.members[0].uid, size, has_root=root, now=self.now)
        self.scan = coordinator_facts.LineageScan()
        self.whole = True
        self.broken: set[coordinator_facts.Operation] = set()
        self.commits: list[coordinator_facts.Commit] = []
        self.claims: list[Incarnation] = []
        self.did: list[Any] = []
        self.grant: Grant | None = None
        self.tell(coordinator_facts.WallClock(self.now, 5000.0))
        if controller:
            self.tell(facts.ControllerLink(self.now, True))  # noqa: FBT003 - open

    # ------------------------------------------------------------ telling

    def tell(self, fact: coordinator_facts.CoordinatorFact) -> None:
        """One fact."""
        self.view = coordinator.fold(self.view, fact)

    def granted(self, members: list[Member] | None = None, number: int = 1, **more: Any) -> None:
        """The controller's word."""
        world = World(tuple(self.members if members is None else members))
        plain = Grant(
            GroupKey("ns", "job", 0),
            1,
            "job-uid",
            self.members[0],
            7000,
            world,
            number,
            None,
            None,
            Want.RUN,
            "",
            TIMING,
        )
        self.grant = replace(plain, **more)
        self.tell(coordinator_facts.GrantHeard(self.now, self.grant))

    def change(self, index: int, **more: Any) -> None:
        """Something is new at a member, and it says so."""
        uid = self.members[index].uid
        self.reports[uid] = replace(self.reports[uid], **more)
        self.hear(index)

    def hear(self, index: int) -> None:
        """A member repeats its report."""
        uid = self.members[index].uid
        if uid not in self.silent:
            self.tell(coordinator_facts.MemberHeard(self.now, self.reports[uid]))

    def steps(self, step: int) -> None:
        """All ranks reach a step, and stage if they were ordered to."""
        for who in self.members:
            order, known = self.orders().get(who.uid), self.reports[who.uid]
            if order is None or order.want is not Want.RUN or known.ranks is not Ranks.RUNNING:
                continue
            more: dict[str, Any] = {"step": step, "heartbeat_age": 0.0}
            if order.stage is not None and step >= order.stage.step:
                done = CheckpointId(order.incarnation, order.stage.step)
                older = [slot for slot in known.slots if slot.checkpoint == order.stage.confirmed]
                free = 1 - older[0].slot if older else 0
                more["slots"] = (*older, Slot(free, done))
                more["stage"] = StageState(order.stage.order, order.stage.step, StageResult.STAGED, step)
            self.change(who.index, **more)

    # ------------------------------------------------------------ acting

    def decide(self) -> Decision:
        """What is to be done now."""
        decision = coordinator.decide(self.view, self.now)
        if any(isinstance(action, facts.Advance) for action in decision.actions):
            self.tell(facts.Ticked(self.now))
            decision = coordinator.decide(self.view, self.now)
        return decision

    def orders(self) -> dict[str, Order]:
        """The newest order for each member."""
        return {
            action.uid: action.order
            for action in self.decide().actions
            if isinstance(action, coordinator_facts.SendOrder)
        }

    def report(self) -> GroupReport:
        """What the controller is told."""
        return next(action.report for action in self.decide().actions if isinstance(action, coordinator_facts.Publish))

    def pass_time(self, seconds: float, every: float = 1.0) -> None:
        """Time passes; members repeat themselves, everything is answered."""
        end = self.now + seconds
        while self.now < end:
            self.now += min(every, end - self.now)
            self.beat()

    def beat(self) -> None:
        """Everybody in reach says what it has to say, obeys, and the root answers."""
        for who in self.members:
            self.hear(who.index)
        self.settle()

    def settle(self, rounds: int = 12) -> None:
        """Until nothing more follows: members obey, the root answers."""
        for _ in range(rounds):
            before = self.view
            for action in self.decide().actions:
                self._perform(action)
            if self.view is before:
                return

    def _perform(self, action: Any) -> None:
        if isinstance(action, coordinator_facts.SendOrder):
            self._obey(action.uid, action.order)
            return
        answer = self._answers(action)
        if answer is not None:
            self.did.append(action)
            self.tell(answer)

    def _obey(self, uid: str, order: Order) -> None:
        known = self.reports.get(uid)
        if known is None or uid in self.silent:
            return
        after = replace(known, **self._converged(known, order))
        if after != known:
            self.reports[uid] = after
            self.tell(coordinator_facts.MemberHeard(self.now, after))

    def _converged(self, known: MemberReport, order: Order) -> dict[str, Any]:
        more: dict[str, Any] = {"incarnation": order.incarnation}
        if order.want is Want.RUN and known.incarnation != order.incarnation:
            more |= {"ranks": Ranks.RUNNING, "code": None, "signal": None, "step": None, "stage": None}
        elif order.want is not Want.RUN and not known.ranks.absent:
            more["ranks"] = Ranks.GONE
        flush = order.flush
        if flush is not None and any(slot.checkpoint == flush.checkpoint for slot in known.slots):
            files = (FileEntry(f"part-{known.member.index}", 1, "0" * 64),)
            more["flush"] = FlushState(flush.nonce, flush.checkpoint, FlushResult.DONE, "", files)
        return more

    def _answers(self, action: Any) -> Any:  # noqa: C901, PLR0911 - a table in words
        now = self.now
        operation = OPERATIONS.get(type(action))
        if operation in self.broken:
            return coordinator_facts.StoreFailed(now, operation, "no space left on device")
        match action:
            case coordinator_facts.LookAtDisk():
                return coordinator_facts.DiskSeen(now, self.scan)
            case coordinator_facts.ClaimAttempt():
                self.claims.append(action.incarnation)
                claim = (action.incarnation, action.leader_uid)
                self.scan = replace(self.scan, claims=(*self.scan.claims, claim))
                return coordinator_facts.Claimed(now, action.incarnation, "nonce", self.scan)
            case coordinator_facts.VerifyCheckpoint():
                where = f"steps/{action.checkpoint}" if self.whole else None
                return coordinator_facts.Verified(now, action.checkpoint, self.whole, where, len(self.members), "")
            case coordinator_facts.WriteRecord():
                self.scan = replace(self.scan, records=(*self.scan.records, action.record))
                return coordinator_facts.Recorded(now, action.record.incarnation)
            case coordinator_facts.ReservePort():
                return coordinator_facts.PortReserved(now, action.incarnation, 29500)
            case coordinator_facts.BeginFlush():
                return coordinator_facts.FlushBegun(now, f"flush-{action.checkpoint}", action.checkpoint, "tmp/x")
            case coordinator_facts.Commit():
                self.commits.append(action)
                self.scan = replace(self.scan, visible=(*self.scan.visible, action.checkpoint))
                return coordinator_facts.Committed(now, action.checkpoint, f"steps/{action.checkpoint}")
            case coordinator_facts.MarkComplete():
                return coordinator_facts.MarkedComplete(now)
            case coordinator_facts.WriteIncident():
                return coordinator_facts.IncidentWritten(now, action.incident)
        return None

    # ------------------------------------------------------------ shortcuts

    def started(self, first_step: int = 1) -> Rig:
        """The group trains."""
        self.granted()
        self.beat()
        self.beat()
        assert self.view.mode is Mode.RUNNING, self.report()
        self.pass_time(1)
        self.steps(first_step)
        return self

    def train(self, steps: int, seconds_each: float = 0.5) -> None:
        """Some more steps."""
        slowest = self.view.attempt.slowest if self.view.attempt else 0
        for step in range((slowest or 0) + 1, (slowest or 0) + steps + 1):
            self.now += seconds_each
            self.steps(step)
            self.settle()

    def crash(self, index: int, code: int = 1) -> None:
        """The ranks of a member end with a code."""
        self.change(index, ranks=Ranks.EXITED, code=code, tail="Traceback\nRuntimeError: boom\n")

    def restarted(self) -> None:
        """The coordinator's process begins anew and learns everything again."""
        self.view = coordinator.begin(self.members[0].uid, len(self.members), has_root=True, now=self.now)
        self.tell(facts.ControllerLink(self.now, True))  # noqa: FBT003 - open
        assert self.grant is not None
        self.tell(coordinator_facts.GrantHeard(self.now, self.grant))


def record(incarnation: Incarnation, members: list[Member], parent: CheckpointId | None = None) -> Record:
    """A lineage record by the first member."""
    return Record(incarnation, "job-uid", members[0].uid, "nonce", World(tuple(members)), parent)


def fatal(who: str = "xid-79", seconds_left: float | None = None) -> Notice:
    """A notice that a node must be left for."""
    from rlguard.model import Repair, Scope, Severity  # noqa: PLC0415 - only here

    return Notice(f"{who}-1", who, Severity.FATAL, Scope.GPU, Repair.REPLACE, "fell off the bus", seconds_left)


OPERATIONS = {
    coordinator_facts.LookAtDisk: coordinator_facts.Operation.LOOK,
    coordinator_facts.ClaimAttempt: coordinator_facts.Operation.CLAIM,
    coordinator_facts.WriteRecord: coordinator_facts.Operation.RECORD,
    coordinator_facts.BeginFlush: coordinator_facts.Operation.BEGIN_FLUSH,
    coordinator_facts.Commit: coordinator_facts.Operation.COMMIT,
}
