"""The simulated world's pods: a launcher with ranks that step and stage, two memory slots, and a member's shell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlguard.group import facts, member, member_facts
from rlguard.group.member_facts import LauncherState, RankSeen, SlotSeen
from rlguard.messages import MemberReport, Ranks, StageResult
from rlguard.model import CheckpointId, Incarnation, Member, Notice
from rlguard.policy import SUSPECT
from rlguard_chaos.world_disk import CoordinatorShell, ViolationError, part, restamped

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlguard_chaos.world import SimWorld


class Pod:
    """One pod's life. `zombie`: deleted by the controller, but its node is cut off and has not heard of it."""

    def __init__(self, world: SimWorld, index: int, node: str) -> None:
        self.world = world
        self.uid = world.name("pod")
        self.node = node
        self.member = Member(index, self.uid, f"job-0-{index}", node, f"10.0.0.{index}")
        self.leader: Pod = self
        self.zombie = False
        self.gone = False
        self.notices: tuple[Notice, ...] = ()
        self.slots: list[CheckpointId | None] = [None, None]
        self.sequence = [0, 0]
        self.reading: dict[str, int] = {}
        self.state = _state(None, Ranks.NONE)
        self.ran: list[Incarnation] = []
        self.step: int | None = None
        self.resume: CheckpointId | None = None
        self.ready = False
        self.hung = False
        self.control: member_facts.WriteControl | None = None
        self.answer: tuple[int, int, int, StageResult] | None = None
        self.coordinator: CoordinatorShell | None = None
        self.process = 0
        self.frozen_until = 0.0
        self.up = False
        self.start_process()

    # -------------------------------------------------------------- the sidecar's process

    def start_process(self) -> None:
        """A sidecar process begins: it knows nothing but what it is told."""
        self.process += 1
        self.up = True
        self.view = member.begin(self.member, self.world.now)
        self.reading = {}
        self.flushed: set[str] = set()
        self.report: MemberReport | None = None
        self.links: tuple[bool, bool] | None = None
        self.heard_at: dict[str, float] = {}
        self.version = 0
        if self.member.index == 0:
            self.coordinator = CoordinatorShell(self.world, self)
        self.beat(self.process)

    def crash_process(self, down: float) -> None:
        """The process dies and is started again by the supervisor; ranks and launcher live on."""
        self.up = False
        if self.coordinator is not None:
            self.coordinator.alive = False
        self.world.after(down, lambda: None if self.gone or self.up else self.start_process())

    def beat(self, process: int) -> None:
        """Once in a while everything is told and said again."""
        if self.gone or process != self.process or not self.up or not self.thaws(lambda: self.beat(process)):
            return
        world = self.world
        world.after(world.random.uniform(0.9, 1.6), lambda: self.beat(process))
        reached = world.controller.reaches(self)
        links = (self._hears("coordinator", world.connected(self, self.leader)), self._hears("controller", reached))
        if links != self.links:
            self.links = links
            self._fold(member_facts.CoordinatorLink(world.now, links[0]))
            self._fold(facts.ControllerLink(world.now, links[1]))
        self._fold(member_facts.NoticesHeard(world.now, self.notices))
        self._fold(member_facts.PagesRead(world.now, self._pages(), self._slots()))
        self.tell(member_facts.LauncherHeard(world.now, self.state))
        if self.report is not None:
            world.send_report(self, self.report)
        world.controller.hear(self)
        if self.coordinator is not None and self.coordinator.alive:
            self._beat_coordinator(self.coordinator, links[1])

    def thaws(self, act: Callable[[], object]) -> bool:
        """A frozen process does `act` when it thaws; True when it is not frozen."""
        if self.world.now >= self.frozen_until:
            return True
        self.world.after(self.frozen_until - self.world.now + 1e-3, act)
        return False

    def _hears(self, whom: str, now_open: bool) -> bool:
        """A link is closed after `SUSPECT` seconds of silence, not at once."""
        if now_open:
            self.heard_at[whom] = self.world.now
        return self.world.now - self.heard_at.get(whom, -SUSPECT - 1) <= SUSPECT

    def _beat_coordinator(self, coordinator: CoordinatorShell, controller_open: bool) -> None:
        if coordinator.controller_open != controller_open:
            coordinator.controller_open = controller_open
            coordinator.tell(facts.ControllerLink(self.world.now, controller_open))
        for uid in list(coordinator.orders):
            self.world.send_order(coordinator, uid)

    def look(self) -> None:
        """The launcher's state or a page has changed."""
        if self.up and not self.gone and self.world.now >= self.frozen_until:
            self._fold(member_facts.PagesRead(self.world.now, self._pages(), self._slots()))
            self.tell(member_facts.LauncherHeard(self.world.now, self.state))

    def _fold(self, fact: member_facts.MemberFact) -> None:
        self.view = member.fold(self.view, fact)

    def tell(self, fact: member_facts.MemberFact) -> None:
        """Fold, then decide and perform."""
        if self.up and not self.gone and self.thaws(lambda: self.tell(restamped(fact, self.world.now))):
            self._fold(fact)
            self.decide()

    def decide(self) -> None:
        """Decide, and wake up again when the decision asks for it."""
        now = self.world.now
        decision = member.decide(self.view, now)
        if any(isinstance(action, facts.Advance) for action in decision.actions):
            self.tell(facts.Ticked(now))
            return
        for action in decision.actions:
            self._perform(action)
        if decision.wake_at is None or decision.wake_at <= now:
            raise ViolationError("A7: a member has no wake-up")

    def _perform(self, action: Any) -> None:
        world = self.world
        if isinstance(action, member_facts.PublishMember):
            if action.report != self.report:
                self.report = action.report
                world.send_report(self, action.report)
        elif isinstance(action, member_facts.StartRanks):
            world.after(0.02, lambda: self.start_ranks(action))
        elif isinstance(action, member_facts.StopRanks):
            world.after(0.02, lambda: self.stop_ranks(action))
        elif isinstance(action, member_facts.WriteControl):
            self.control = action
        elif isinstance(action, member_facts.RunFlush):
            self._flush(action)
        elif isinstance(action, member_facts.CancelFlush):
            self.reading.pop(action.nonce, None)
            self.tell(member_facts.FlushEnded(world.now, action.nonce, done=False, detail="cancelled", files=()))

    def _flush(self, action: member_facts.RunFlush) -> None:
        nonce = action.order.nonce
        if nonce in self.flushed:
            return
        self.flushed.add(nonce)
        self.reading[nonce] = action.slot
        before = (self.slots[action.slot], self.sequence[action.slot])
        process = self.process
        seconds = self.world.random.uniform(0.5, 4.0)

        def end() -> None:
            if self.gone or process != self.process or not self.up or nonce not in self.reading:
                return
            del self.reading[nonce]
            same = before == (self.slots[action.slot], self.sequence[action.slot])
            whole = same and before[0] == action.order.checkpoint
            parts = self.world.disk.parts.get(action.order.directory)
            if whole and parts is not None:
                parts[self.uid] = action.order.checkpoint
            self.tell(member_facts.FlushEnded(self.world.now, nonce, whole, "" if whole else "torn", (part(self.uid),)))

        self.world.after(seconds, end)

    # -------------------------------------------------------------- the launcher

    @property
    def alive(self) -> bool:
        """True while ranks could act."""
        return not self.gone and not self.state.ranks.absent

    def _set(self, ranks: Ranks, code: int | None = None, signal: int | None = None) -> None:
        old = self.state
        self.state = _state(old.incarnation, ranks, code, signal)
        self.look()

    def start_ranks(self, action: member_facts.StartRanks) -> None:
        """As the launcher does: a start of what runs or ran already is ignored."""
        if self.gone or self.alive or action.incarnation in self.ran:
            return
        self.world.check_start(self, action)
        self.ran.append(action.incarnation)
        self.resume, self.step, self.ready, self.hung, self.answer = action.resume, None, False, False, None
        self.state = _state(action.incarnation, Ranks.RUNNING)
        self.world.after(self.world.random.uniform(0.5, 2.0), lambda: self._become_ready(action.incarnation))
        self.world.start_stepping(action.incarnation)
        self.look()

    def _become_ready(self, incarnation: Incarnation) -> None:
        if self.state.incarnation == incarnation:
            self.ready = True

    def stop_ranks(self, action: member_facts.StopRanks) -> None:
        """SIGTERM, grace, SIGKILL."""
        if self.gone or self.state.incarnation != action.incarnation or self.state.ranks is not Ranks.RUNNING:
            return
        self.world.check_stop(self, action.incarnation)
        self._set(Ranks.STOPPING)
        slow = 5.0 if self.world.chance(0.05) else 0.0
        self.world.after(self.world.random.uniform(0.05, action.grace + 0.3) + slow, self._stopped)

    def _stopped(self) -> None:
        if not self.gone and self.state.ranks is Ranks.STOPPING:
            self._set(Ranks.GONE)

    def end_ranks(self, code: int | None, signal: int | None = None) -> None:
        """The ranks end by themselves."""
        if not self.gone and self.state.ranks is Ranks.RUNNING:
            self._set(Ranks.EXITED, code, signal)

    # -------------------------------------------------------------- pages and slots

    def take_step(self) -> None:
        """One training step has been done; stage if the control page says so."""
        self.step = (self.step if self.step is not None else self.resume.step if self.resume else 0) + 1
        control = self.control
        if control is None or control.incarnation != self.state.incarnation:
            return
        if self.answer is not None and self.answer[0] >= control.order:
            return
        if self.step > control.step:
            self.answer = (control.order, control.step, control.slot, StageResult.PAST)
        elif self.step == control.step:
            self._stage(control)

    def _stage(self, control: member_facts.WriteControl) -> None:
        slot, incarnation = control.slot, control.incarnation
        self.world.check_overwrite(self, slot)
        self.slots[slot] = None
        self.sequence[slot] += 1
        sequence = self.sequence[slot]

        def done() -> None:
            running = self.alive and self.state.incarnation == incarnation and not self.gone
            if running and self.sequence[slot] == sequence:
                self.slots[slot] = CheckpointId(incarnation, control.step)
                self.answer = (control.order, control.step, slot, StageResult.STAGED)
                self.look()

        self.world.after(self.world.random.uniform(0.02, 0.4), done)

    def _pages(self) -> tuple[RankSeen, ...]:
        if self.state.incarnation is None or not self.ready:
            return ()
        order, step, slot, result = self.answer or (0, 0, 0, None)
        return (
            RankSeen(
                0, 1, self.state.incarnation, self.step, 0.0, order, step, slot, result,
                hook=True, reshardable=True, nan=False,
            ),
        )  # fmt: skip

    def _slots(self) -> tuple[SlotSeen, ...]:
        return tuple(SlotSeen(index, checkpoint) for index, checkpoint in enumerate(self.slots))


def _state(
    incarnation: Incarnation | None, ranks: Ranks, code: int | None = None, signal: int | None = None
) -> LauncherState:
    return LauncherState(
        incarnation, ranks, code, signal, tail="", hooked=True, terminating=False, stuck=(), idle=False
    )
