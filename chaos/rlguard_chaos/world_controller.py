"""A simple controller for the simulated world: it grants generations and worlds, replaces pods, recreates groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rlguard.messages import Exclusion, Grant, GroupReport, Timing, Want
from rlguard.model import CheckpointId, GroupKey, Phase, World
from rlguard.policy import NODE_LOST
from rlguard_chaos.world_pods import Pod

if TYPE_CHECKING:
    from rlguard_chaos.world import SimWorld

KEY: Final = GroupKey("sim", "job", 0)
TIMING: Final = Timing(
    stage_interval=6.0,
    flush_interval=15.0,
    stall_limit=40.0,
    same_step_limit=3,
    attempts=12,
    attempts_window=300.0,
    keep=3,
)


class SimController:
    """What it has granted it has written down first (A3); it only loses time when it is down."""

    def __init__(self, world: SimWorld) -> None:
        self.world = world
        self.up = True
        self.up_since = 0.0
        self.generation = 0
        self.number = 0
        self.pods: list[Pod] = []
        self.members: list[Pod] = []
        self.heard: dict[str, float] = {}
        self.expected: CheckpointId | None = None
        self.save_until: float | None = None
        self.recreating = False
        self.want = Want.RUN
        self.joining: dict[int, float] = {}

    def reaches(self, pod: Pod) -> bool:
        """Is there a live link to this pod."""
        return self.up and not pod.gone and pod.node not in self.world.cut | self.world.lost

    def hear(self, pod: Pod) -> None:
        """A pod's report; the answer is the grant."""
        if not self.reaches(pod):
            return
        self.heard[pod.uid] = self.world.now
        if pod.coordinator is not None and self.generation > 0:
            grant, coordinator = self.grant(), pod.coordinator
            self.world.after(self.world.random.uniform(0.01, 0.2), lambda: self.world.give(coordinator, grant))

    def grant(self) -> Grant:
        """The word that stands."""
        save = None if self.save_until is None else max(0.0, self.save_until - self.world.now)
        world = World(tuple(pod.member for pod in self.members))
        leader = self.pods[0].member
        return Grant(
            KEY,
            self.generation,
            "job-uid",
            leader,
            7000,
            world,
            self.number,
            self.expected,
            save,
            self.want,
            "",
            TIMING,
        )

    def switch(self, up: bool) -> None:
        """Kill it or start it."""
        self.up = up
        self.up_since = self.world.now

    def tick(self) -> None:
        """Once a second."""
        self.world.after(1.0, self.tick)
        if not self.up or self.recreating:
            return
        if not self.pods:
            self._create_all()
            return
        leader = self.pods[0]
        if self._lost(leader):
            self._recreate()
            return
        report = leader.coordinator.report if leader.coordinator and self.reaches(leader) else None
        if report is not None and report.incarnation.generation == self.generation and leader.up:
            self._read(report)

    def _lost(self, pod: Pod) -> bool:
        """A4: counted from when this controller could hear, and never while another member hears it."""
        since = max(self.heard.get(pod.uid, self.up_since), self.up_since)
        seen = any(self.world.connected(other, pod) for other in self.members if other is not pod and other.up)
        vetoed = seen and self.reaches(next(other for other in self.members if other is not pod))
        return self.world.now - since > NODE_LOST and not vetoed

    def _read(self, report: GroupReport) -> None:
        if report.newest is not None and (self.expected is None or report.newest > self.expected):
            self.expected = report.newest
        if report.phase is Phase.COMPLETED:
            self.want = Want.IDLE
            return
        saving = self.save_until is not None and (report.saved or self.world.now >= self.save_until)
        if saving or (report.recreate is not None and report.saved):
            self._recreate()
            return
        for item in report.exclude:
            self._exclude(item, report)
        if report.phase is Phase.PENDING:
            for uid in set(report.world or [pod.uid for pod in self.members]) - set(report.heard):
                self._exclude(Exclusion(uid, "silent", "", leaving=False), report)
        self._join()

    def _exclude(self, item: Exclusion, report: GroupReport) -> None:
        pod = next((pod for pod in self.members if pod.uid == item.uid), None)
        if pod is None or pod is self.pods[0]:
            return
        if item.leaving and not report.saved:
            return
        if not item.leaving and not self._lost(pod):
            return
        if item.leaving:
            self.world.bad[pod.node] = self.world.now + 60.0
        self._remove(pod)
        self._grant_world([other for other in self.members if other is not pod])

    def _remove(self, pod: Pod) -> None:
        self.pods[pod.member.index] = pod
        self.joining[pod.member.index] = self.world.now + self.world.random.uniform(2.0, 8.0)
        self.world.delete(pod)

    def _join(self) -> None:
        """A missing member's pod is created where there is room, and granted once it is heard."""
        for index, at in list(self.joining.items()):
            pod = self.pods[index]
            if pod.gone or pod.zombie:
                node = self.world.room() if self.world.now >= at else None
                if node is not None:
                    self.pods[index] = self.world.create(index, node, self.pods[0])
            elif pod.uid in self.heard:
                del self.joining[index]
                self._grant_world(sorted([*self.members, pod], key=lambda other: other.member.index))

    def _grant_world(self, members: list[Pod]) -> None:
        self.members = members
        self.number += 1
        self.world.granted()

    def _recreate(self) -> None:
        """Fence, delete all, create again."""
        self.recreating = True
        self.save_until = None
        self.joining = {}
        for pod in self.pods:
            self.world.delete(pod)
        self.world.after(self.world.random.uniform(2.0, 5.0), self._create_all)

    def _fenced(self, pod: Pod) -> bool:
        """Gone for certain, or silent for so long that it has stopped itself (A5)."""
        return not pod.zombie or pod.gone or self.world.now - self.heard.get(pod.uid, 0.0) > NODE_LOST

    def _create_all(self) -> None:
        node = self.world.room()
        if node is None or not all(self._fenced(pod) for pod in self.pods):
            self.world.after(2.0, self._create_all)
            return
        leader = self.world.create(0, node, None)
        pods = [leader]
        for index in range(1, self.world.size):
            node = self.world.room([pod.node for pod in pods])
            if node is None:
                break
            pods.append(self.world.create(index, node, leader))
        self.pods = pods + [self.world.absent(index) for index in range(len(pods), self.world.size)]
        for index in range(len(pods), self.world.size):
            self.joining[index] = self.world.now
        self.generation += 1
        self.recreating = False
        self._grant_world(pods)
