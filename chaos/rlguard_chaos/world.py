"""A simulated world around the group's cores: pods, a lossy network, a slow disk, a controller, and faults; seeded.

Every event is followed by the checks of what must never happen (`ViolationError`); after the faults have stopped, a run
that does not train again in time is a violation too.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from rlguard.checkpoint.lineage import on_chain
from rlguard.checkpoint.records import Record
from rlguard.group import coordinator_facts, member_facts
from rlguard.group.view import Mode
from rlguard.messages import Grant, MemberReport, Order, Ranks
from rlguard.model import CheckpointId, Incarnation, Phase
from rlguard_chaos.world_controller import TIMING, SimController
from rlguard_chaos.world_disk import CoordinatorShell, Disk, ViolationError
from rlguard_chaos.world_pods import Pod

STEP_S: Final = 0.5
TRAINS_AGAIN: Final = 5
"""Steps of one incarnation that count as training again."""
UNSAVED_AFTER: Final = 27.0
"""The shortest deadline that any fault sets, less some slack: before it no healthy rank is stopped unsaved."""
RECOVERS_WITHIN: Final = 420.0
"""Bound of liveness: longer than each wait in the rules (held 300 s, the longest), in seconds."""


class SimWorld:
    """One run. `faults` come at random until `faults_until`; `size`: members of the group; one node is spare."""

    def __init__(self, seed: int, faults: Sequence[Callable[[SimWorld], None]], faults_until: float = 200.0) -> None:
        self.seed = seed
        self.random = Random(seed)  # noqa: S311 - a simulation must be repeatable
        self.now = 0.0
        self.faults = faults
        self.faults_until = faults_until
        self.size = self.random.choice((1, 2, 2, 3))
        self.nodes = [f"node-{index}" for index in range(self.size + 1)]
        self.cut: set[str] = set()
        self.lost: set[str] = set()
        self.bad: dict[str, float] = {}
        self.disk = Disk()
        self.pods: list[Pod] = []
        self.counted: Counter[str] = Counter()
        self.stepped = Incarnation(0, 0)
        self.stepped_at = 0.0
        self.steps_at: dict[Incarnation, int] = {}
        self.resumes: dict[Incarnation, CheckpointId | None] = {}
        self.stepping: set[Incarnation] = set()
        self.hurt: set[Incarnation] = set()
        self.trigger: dict[Incarnation, tuple[float, int]] = {}
        self.poison: int | None = None
        self.goal: int | None = self.random.choice((None, None, 500))
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._links: dict[tuple[str, str], float] = {}
        self._names = 0
        self._count = 0
        self.controller = SimController(self)
        self.after(0.1, self.controller.tick)
        self.after(self.random.uniform(15, 40), self._fault)

    # -------------------------------------------------------------- the engine

    def after(self, seconds: float, act: Callable[[], object]) -> None:
        """Something will happen."""
        self._count += 1
        heapq.heappush(self._events, (self.now + max(0.0, seconds), self._count, act))

    def chance(self, odds: float) -> bool:
        """True as often as `odds` says, from 0 to 1."""
        return self.random.random() < odds

    def name(self, kind: str) -> str:
        """A name never used before."""
        self._names += 1
        return f"{kind}-{self._names}"

    def run(self) -> Counter[str]:
        """Until the group trains again after the last fault. Raises ViolationError."""
        deadline = self.faults_until + RECOVERS_WITHIN
        while self.now < deadline:
            self.now, _, act = heapq.heappop(self._events)
            act()
            if self.now > self.faults_until + 5 and self._well():
                return self.counted
        raise ViolationError(f"liveness: seed {self.seed} does not train again: {self.state()}")

    def state(self) -> str:
        """For people: where everything stands."""
        leader = self.controller.pods[0] if self.controller.pods else None
        report = leader.coordinator.report if leader and leader.coordinator else None
        live = [pod for pod in self.pods if not pod.gone]
        pods = [(pod.uid, pod.node, str(pod.state.incarnation), pod.state.ranks.value) for pod in live]
        said = f"{report.phase}: {report.why}" if report else "nothing said"
        return f"t={self.now:.0f} {said} {pods} cut={self.cut}"

    def _well(self) -> bool:
        leader = self.controller.pods[0] if self.controller.pods else None
        report = leader.coordinator.report if leader and leader.coordinator and leader.up else None
        if report is None or self.controller.recreating:
            return False
        if report.phase is Phase.COMPLETED:
            return self.disk.completed
        if report.phase is Phase.GAVE_UP:
            return True
        if self.now - self.stepped_at > 5 * STEP_S:
            return False
        ran = self.steps_at.get(report.incarnation, 0)
        full = len(self.controller.members) == self.size
        return report.phase is Phase.RUNNING and ran >= TRAINS_AGAIN and full and self.poison is None

    # -------------------------------------------------------------- the network

    def connected(self, one: Pod, other: Pod) -> bool:
        """Can these two pods speak."""
        if one is other:
            return True
        out = self.cut | self.lost
        return not (one.gone or other.gone or one.node in out or other.node in out)

    def _deliver(self, one: Pod, other: Pod, act: Callable[[], object]) -> None:
        """In order on each link; late, lost, or twice."""
        if not self.connected(one, other):
            return
        if one is not other and self.chance(0.05):
            return
        late = 0.005 if one is other else self.random.choice((0.02, 0.05, 0.2, 1.5))
        key = (one.uid, other.uid)
        at = max(self._links.get(key, 0.0) + 1e-4, self.now + late)
        self._links[key] = at
        twice = 2 if self.chance(0.05) else 1
        for _ in range(twice):
            self.after(at - self.now, lambda: act() if self.connected(one, other) else None)

    def send_report(self, pod: Pod, report: MemberReport) -> None:
        """A member's report to its coordinator."""
        leader = pod.leader

        def arrive() -> None:
            if leader.coordinator is not None and leader.up:
                leader.coordinator.tell(coordinator_facts.MemberHeard(self.now, report))

        self._deliver(pod, leader, arrive)

    def send_order(self, coordinator: CoordinatorShell, uid: str) -> None:
        """The newest order to a member."""
        pod = next((pod for pod in self.pods if pod.uid == uid and not pod.gone), None)
        if pod is None or not coordinator.alive:
            return
        order: Order = coordinator.orders[uid]
        self._deliver(coordinator.pod, pod, lambda: pod.tell(member_facts.OrderHeard(self.now, order)))

    def give(self, coordinator: CoordinatorShell, grant: Grant) -> None:
        """The controller's word arrives. A changed world is a trigger: what was done before it must not be lost."""
        if not self.controller.reaches(coordinator.pod):
            return
        before = coordinator.view.grant
        coordinator.tell(coordinator_facts.GrantHeard(self.now, grant))
        if before is None or before.world_number != grant.world_number or grant.save_within is not None:
            self.note_trigger()

    # -------------------------------------------------------------- pods and nodes

    def room(self, taken: list[str] | None = None) -> str | None:
        """A node that may take a new pod."""
        used = {pod.node for pod in self.pods if not pod.gone and not pod.zombie} | set(taken or [])
        bad = {node for node, until in self.bad.items() if until > self.now}
        free = [node for node in self.nodes if node not in used | bad | self.cut | self.lost]
        return self.random.choice(free) if free else None

    def create(self, index: int, node: str, leader: Pod | None) -> Pod:
        """A new pod with a new UID."""
        pod = Pod(self, index, node)
        pod.leader = leader or pod
        self.pods.append(pod)
        return pod

    def absent(self, index: int) -> Pod:
        """The place of a pod that cannot be scheduled yet."""
        pod = Pod(self, index, "nowhere")
        pod.gone = True
        return pod

    def delete(self, pod: Pod) -> None:
        """By force: a pod on a cut node lives on as a zombie until its node is back."""
        if pod.node in self.cut and not pod.gone:
            pod.zombie = True
        else:
            self.end(pod)

    def end(self, pod: Pod) -> None:
        """A pod is over with all that is in it."""
        if pod.state.incarnation is not None:
            self.hurt.add(pod.state.incarnation)
        pod.gone = True
        pod.up = False
        if pod.coordinator is not None:
            pod.coordinator.alive = False
        self._others_fail(pod)

    def granted(self) -> None:
        """The controller has written a new world."""
        self.counted["grants"] += 1

    # -------------------------------------------------------------- ranks

    def start_stepping(self, incarnation: Incarnation) -> None:
        """The ranks of an incarnation make steps together."""
        if incarnation not in self.stepping:
            self.stepping.add(incarnation)
            self.after(STEP_S, lambda: self._step(incarnation))

    def _world(self, incarnation: Incarnation) -> list[Pod]:
        uids = self.disk.records[incarnation].world.uids
        return [pod for pod in self.pods if pod.uid in uids]

    def _step(self, incarnation: Incarnation) -> None:
        pods = self._world(incarnation)
        alive = [pod for pod in pods if pod.alive and pod.state.incarnation == incarnation]
        if not alive:
            self.stepping.discard(incarnation)
            return
        self.after(STEP_S, lambda: self._step(incarnation))
        ready = [pod for pod in alive if pod.ready and not pod.hung and pod.state.ranks is Ranks.RUNNING]
        if len(ready) < len(pods) or not all(self.connected(pods[0], pod) for pod in pods):
            return
        if incarnation < self.stepped and not (len(pods) == 1 and pods[0].zombie):
            raise ViolationError(f"fencing: {incarnation} steps although {self.stepped} has stepped")
        self.stepped = max(incarnation, self.stepped)
        self.stepped_at = self.now
        self.steps_at[incarnation] = self.steps_at.get(incarnation, 0) + 1
        self.counted["steps"] += 1
        for pod in pods:
            pod.take_step()
        self._end_of_step(pods)

    def _end_of_step(self, pods: list[Pod]) -> None:
        step = pods[0].step or 0
        if self.poison is not None and step == self.poison:
            self.hurt_pod(pods[-1])
            pods[-1].end_ranks(1)
            self._others_fail(pods[-1])
        elif self.goal is not None and step >= self.goal:
            for pod in pods:
                pod.end_ranks(0)
        elif self.chance(0.3):
            for pod in pods:
                pod.look()

    def _others_fail(self, pod: Pod) -> None:
        """Whoever trains with ranks that have died fails some time later, or hangs."""
        incarnation = pod.state.incarnation
        if incarnation is None or incarnation not in self.disk.records:
            return
        for other in self._world(incarnation):
            if other is not pod and other.alive and other.state.incarnation == incarnation:
                self._fail_later(other, incarnation)

    def _fail_later(self, pod: Pod, incarnation: Incarnation) -> None:
        if pod.node in self.cut or self.chance(0.3):
            pod.hung = True
            return

        def fail() -> None:
            if pod.state.incarnation == incarnation:
                pod.end_ranks(1)

        self.after(self.random.uniform(0.5, 5.0), fail)

    def kill(self, pod: Pod) -> None:
        """A training process of this pod is killed; the others fail or hang."""
        if pod.state.ranks is Ranks.RUNNING and not pod.gone:
            self.hurt_pod(pod)
            pod.end_ranks(None, 9)
            self._others_fail(pod)

    def hurt_pod(self, pod: Pod) -> None:
        """A fault has touched its incarnation: a stop of it needs no further reason."""
        if pod.state.incarnation is not None:
            self.hurt.add(pod.state.incarnation)

    # -------------------------------------------------------------- what must never happen

    def check_claim(self, incarnation: Incarnation) -> None:
        """A2, A5, and incarnations only grow: who was excluded by a grant has stopped itself by then."""
        newest = max(self.disk.claims, default=Incarnation(0, 0))
        if incarnation <= newest:
            raise ViolationError(f"claims only grow: {incarnation} after {newest}")
        for pod in self.pods:
            cut_leader = pod.zombie and pod.leader is pod  # A5 is for workers; what it commits is off the chain
            if pod.alive and not cut_leader:
                raise ViolationError(f"A2: {incarnation} is claimed while {pod.uid} runs {pod.state.incarnation}")

    def check_record(self, record: Record) -> None:
        """C2, C3: nothing that a coordinator has been told is committed may be left behind."""
        records = {**self.disk.records, record.incarnation: record}
        lost = [checkpoint for checkpoint in self.disk.told if not on_chain(records, checkpoint, record.incarnation)]
        if lost:
            raise ViolationError(f"C2: {record.incarnation} resumes {record.parent} and loses {max(lost)}")
        if record.parent is not None and not on_chain(self.disk.records, record.parent):
            raise ViolationError(f"C3: {record.incarnation} resumes {record.parent}, which is off the chain")
        self.counted["attempts"] += 1

    def check_start(self, pod: Pod, action: member_facts.StartRanks) -> None:
        """C4, A2 and the order of incarnations, at the moment when ranks start."""
        if pod.ran and action.incarnation <= max(pod.ran):
            raise ViolationError(f"{pod.uid} starts {action.incarnation} after {max(pod.ran)}")
        record = self.disk.records.get(action.incarnation)
        if record is None:
            raise ViolationError(f"C2: {action.incarnation} starts without a record")
        if action.resume != record.parent:
            raise ViolationError(f"C4: {pod.uid} resumes {action.resume}, the record says {record.parent}")
        held = action.slot is not None and pod.slots[action.slot] == action.resume
        on_disk = action.directory is not None and action.resume in self.disk.steps
        if action.resume is not None and not held and not on_disk:
            raise ViolationError(f"C4: {pod.uid} can load {action.resume} from nowhere")

    def check_stop(self, pod: Pod, incarnation: Incarnation) -> None:
        """Healthy ranks are stopped only when what they had done at the trigger is safe, or the time is up."""
        fenced = max(self.disk.claims).generation > incarnation.generation
        if fenced or incarnation in self.hurt or not self.connected(pod, pod.leader):
            return
        at, step = self.trigger.get(incarnation, (self.now, self._standing(pod)))
        safe = any(checkpoint.step >= step for checkpoint in self.disk.steps if on_chain(self.disk.records, checkpoint))
        if self.steps_at.get(incarnation, 0) and not safe and self.now - at < UNSAVED_AFTER:
            raise ViolationError(f"{incarnation} is stopped unsaved: at step {pod.step}, trigger {at:.1f} {step}")

    def _standing(self, pod: Pod) -> int:
        """What must be safe for a reason that is older than the incarnation: what it resumed; without one, all."""
        told = any(other.notices for other in self.controller.pods)
        reason = (
            told
            or self.controller.save_until is not None
            or pod.uid not in {other.uid for other in self.controller.members}
        )
        return 1 << 60 if not reason else pod.resume.step if pod.resume else 0

    def check_overwrite(self, pod: Pod, slot: int) -> None:
        """M1: while a checkpoint is held by all members, one stays so; nothing that is being read is overwritten."""
        if slot in pod.reading.values():
            raise ViolationError(f"M1: {pod.uid} overwrites slot {slot} under a flush")
        pods = self._world(pod.state.incarnation or Incarnation(0, 0))
        held = set.intersection(*({item for item in other.slots if item is not None} for other in pods))
        uids = {pod.uid for pod in pods}
        held = {item for item in held if self.disk.records[item.incarnation].world.uids == uids}
        if held and held == {pod.slots[slot]}:
            raise ViolationError(f"M1: {pod.uid} overwrites {pod.slots[slot]}, the only one that all hold")

    def check_coordinator(self, coordinator: CoordinatorShell) -> None:
        """Who acts as coordinator runs the newest claim, and keeps within the budget."""
        view = coordinator.view
        if view.mode is Mode.STOPPING and view.attempt is not None and not view.attempt.stepped:
            self.hurt.add(view.attempt.incarnation)  # as far as anybody could know there was nothing new to save
        if view.mode is not Mode.RUNNING or view.attempt is None:
            return
        newest = max(self.disk.claims)
        own = self.disk.claims[newest][0] == coordinator.pod.uid
        if own and view.attempt.incarnation != newest:
            raise ViolationError(f"A2: {view.attempt.incarnation} runs although {newest} has been claimed")
        recent = [item for item in view.failures if self.now - item.at <= TIMING.attempts_window]
        if len(recent) > TIMING.attempts:
            raise ViolationError(f"budget: {len(recent)} failures within the window, and it still runs")
        last = view.failures[-TIMING.same_step_limit :]
        same = {(item.fault, item.step) for item in last}
        if len(last) == TIMING.same_step_limit and len(same) == 1 and last[0].step is not None:
            raise ViolationError(f"budget: {len(last)} times {last[0].fault} at step {last[0].step}, and it still runs")

    def note_trigger(self) -> None:
        """From now on the ranks may be stopped on purpose, once what they have done so far is safe."""
        for pod in self.pods:
            incarnation = pod.state.incarnation
            if pod.alive and incarnation is not None and incarnation not in self.trigger:
                self.trigger[incarnation] = (self.now, (pod.step or 0) - 1)

    # -------------------------------------------------------------- faults

    def _fault(self) -> None:
        if self.now > self.faults_until:
            self._mend()
            return
        self.after(self.random.expovariate(1 / 18), self._fault)
        if self.controller.pods:
            chosen = self.random.choice(self.faults)
            self.counted[chosen.__name__] += 1
            chosen(self)

    def _mend(self) -> None:
        self.cut.clear()
        self.lost.clear()
        self.disk.full = self.disk.blind = False
        if not self.controller.up:
            self.controller.switch(up=True)

    def live(self) -> list[Pod]:
        """The pods that there are."""
        return [pod for pod in self.controller.pods if not pod.gone]
