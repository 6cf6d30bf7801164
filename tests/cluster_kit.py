"""A toy cluster around the controller's core: nodes, a scheduler, LWS, coordinators; one call is one second.

It performs what the core decides the way the API server would (preconditions included) and keeps a log of it all.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from rlguard.cluster.actions import DeletePod, EnsureGuard, ScaleJob, TellGrant, WriteStatus
from rlguard.cluster.context import Clock
from rlguard.cluster.decide import decide
from rlguard.cluster.facts import (
    AgentHeard,
    Gone,
    Guard,
    Job,
    JobKey,
    Kind,
    KubeletLease,
    LeaseTaken,
    Listed,
    Node,
    Pod,
    PodHeard,
    Seen,
    Written,
)
from rlguard.cluster.status import GroupStatus, GuardStatus, parse_status, status_to_json
from rlguard.cluster.taints import TaintPolicy
from rlguard.cluster.view import View, fold
from rlguard.messages import AgentReport, Exclusion, Grant, GroupReport, PodReport
from rlguard.model import CheckpointId, GroupKey, Incarnation, Member, Notice, Phase, Repair, Scope, Severity, Verdict

KEY = JobKey("ns", "job")
GROUP = GroupKey("ns", "job", 0)


@dataclass
class ToyNode:
    """A machine. `cut`: alive, but its sidecars and agent do not reach the controller."""

    boot: str
    alive: bool = True
    cut: bool = False
    notices: tuple[Notice, ...] = ()
    verdict: Verdict = Verdict.HEALTHY


@dataclass
class ToyPod:
    """A pod and, in the leader's, what its coordinator knows."""

    pod: Pod
    since: float
    attempt: int = 0
    world_number: int = 0
    step: int = 0
    newest: CheckpointId | None = None
    stopped_at: float | None = None
    finished: bool = False
    untouched: bool = False
    generation: int = 0


@dataclass
class Cluster:
    """One job of `size` pods on nodes that hold one pod each."""

    size: int = 2
    isolated: bool = True
    spec: dict[str, Any] = field(default_factory=dict)
    node_names: tuple[str, ...] = ("a", "b", "c")
    now: float = 1000.0
    replicas: int = 1
    root_state: str = "ok"
    disk_generation: int | None = 0
    reshardable: bool = True
    refuse_writes: bool = False
    kubelets_renew: bool = True
    injector: bool = True
    refused: bool = False
    taints: TaintPolicy | None = None
    completed_by: str = ""

    def __post_init__(self) -> None:
        self.uids, self.versions = count(1), count(1)
        self.nodes = {name: ToyNode(f"boot-{name}") for name in self.node_names}
        self.pods: dict[str, ToyPod] = {}
        self.told: dict[str, Grant] = {}
        self.log: list[Any] = []
        self.job_uid = "lws-1"
        self.guard: Guard | None = None
        self.job_version = str(next(self.versions))
        self.lease = 0
        self.events: list[str] = []
        self.start_controller()

    # ---- the controller

    def start_controller(self) -> None:
        """A controller begins with nothing but what the API server lists."""
        self.view = View()
        self.tell(LeaseTaken(self.now))
        self.tell(Listed(self.now, Kind.JOBS, (self.job(),)))
        self.tell(Listed(self.now, Kind.GUARDS, (self.guard,) if self.guard else ()))
        self.tell(Listed(self.now, Kind.PODS, tuple(toy.pod for toy in self.pods.values())))
        self.tell(Listed(self.now, Kind.NODES, tuple(self.node(name) for name in self.nodes)))
        leases = tuple(KubeletLease(name, f"{self.lease if n.alive else 0}") for name, n in self.nodes.items())
        self.tell(Listed(self.now, Kind.LEASES, leases))

    def tell(self, fact: Any) -> None:
        """One fact for the core."""
        self.view = fold(self.view, fact)

    def decide(self) -> None:
        """One decision and its actions."""
        for action in decide(self.view, Clock(self.now, 1.8e9 + self.now), self.taints).actions:
            self.perform(action)

    def perform(self, action: Any) -> None:
        """What the shell and the API server would do."""
        self.log.append(action)
        match action:
            case EnsureGuard():
                self.guard = Guard(KEY, "guard-1", 1, str(next(self.versions)), self.spec, GuardStatus())
                self.tell(Seen(self.now, self.guard))
            case WriteStatus():
                self.write(action)
            case TellGrant():
                self.told[action.uid] = action.grant
            case DeletePod():
                self.delete(action)
            case ScaleJob():
                if action.resource_version == self.job_version:
                    self.scale(action.replicas)

    def write(self, action: WriteStatus) -> None:
        """A status write, refused if somebody else was faster."""
        if self.refuse_writes or self.guard is None or action.resource_version != self.guard.resource_version:
            return
        status = parse_status(status_to_json(action.status))
        self.guard = replace(self.guard, resource_version=str(next(self.versions)), status=status)
        self.events += [event.reason for event in action.events]
        self.tell(Written(self.now, KEY, self.guard.resource_version, action.status))

    @property
    def status(self) -> GuardStatus:
        """The Guard's status as stored."""
        return self.guard.status if self.guard is not None else GuardStatus()

    @property
    def group(self) -> GroupStatus:
        """The stored status of the only group."""
        return self.status.group(0)

    @property
    def world(self) -> list[str]:
        """The nodes of the granted world, in rank order."""
        return [member.node for member in self.group.world]

    def condition(self, kind: str) -> tuple[str, str]:
        """(status, reason) of a condition."""
        return next(((c.status, c.reason) for c in self.status.conditions if c.type == kind), ("", ""))

    def actions(self, kind: type) -> list[Any]:
        """All actions of one kind so far."""
        return [action for action in self.log if isinstance(action, kind)]

    def deleted(self) -> list[str]:
        """`name[!]` of each pod deletion asked for, once each; `!` is by force."""
        return list(dict.fromkeys(f"{a.name}{'!' if a.force else ''}" for a in self.actions(DeletePod)))

    # ---- objects

    def job(self) -> Job:
        """The LWS."""
        return Job(
            KEY, self.job_uid, self.replicas, self.size, self.isolated, guarded=True, resource_version=self.job_version
        )

    def node(self, name: str) -> Node:
        """The Node object."""
        node = self.nodes[name]
        return Node(name, True if node.alive else None, node.boot)

    def scale(self, replicas: int) -> None:
        """Somebody scales the LWS."""
        self.replicas, self.job_version = replicas, str(next(self.versions))
        self.tell(Seen(self.now, self.job()))
        for uid in list(self.pods) if replicas == 0 else []:
            self.remove(uid)

    def delete(self, action: DeletePod) -> None:
        """DELETE with its precondition, as LWS and kubelets see it through."""
        toy = self.pods.get(action.uid)
        if toy is None:
            return
        assert action.uid == toy.pod.uid
        whole = toy.pod.index == 0 or not self.isolated
        for victim in [t for t in self.pods.values() if whole or t is toy]:
            self.end(victim, force=action.force and victim is toy)

    def end(self, toy: ToyPod, *, force: bool) -> None:
        """A pod ends if its kubelet can end it, or by force."""
        node = self.nodes.get(toy.pod.node)
        if force or node is None or node.alive:
            self.remove(toy.pod.uid)
        elif not toy.pod.deleting:
            toy.pod = replace(toy.pod, deleting=True)
            self.tell(Seen(self.now, toy.pod))

    def remove(self, uid: str) -> None:
        """A pod object is gone."""
        self.tell(Gone(self.now, self.pods.pop(uid).pod))

    # ---- one second

    def run(self, seconds: float) -> None:
        """Let time pass."""
        for _ in range(int(seconds)):
            self.now += 1
            self.lws()
            self.schedule()
            self.speak()
            self.decide()

    def lws(self) -> None:
        """Missing pods are created: a whole group once the old one is gone, a single worker under policy None."""
        there = {toy.pod.index: toy for toy in self.pods.values()}
        if self.replicas == 0 or (0 not in there and there):
            return
        for index in range(self.size):
            if index not in there:
                self.create(index)

    def create(self, index: int) -> None:
        """A new pod, injected with the avoid list of now."""
        avoid = tuple(sorted(entry.node for entry in self.status.avoid))
        name = "job-0" if index == 0 else f"job-0-{index}"
        pod = Pod(
            key=GROUP,
            index=index,
            uid=f"u{next(self.uids)}",
            name=name,
            node="",
            phase="Pending",
            unschedulable=False,
            deleting=False,
            injected=self.injector,
            avoid=avoid if self.injector else (),
            refused=self.refused,
        )
        self.pods[pod.uid] = ToyPod(pod, self.now)
        self.tell(Seen(self.now, pod))

    def schedule(self) -> None:
        """Pods without a node get a free one, or are called unschedulable."""
        for toy in self.pods.values():
            if toy.pod.node:
                continue
            taken = {other.pod.node for other in self.pods.values()}
            free = [n for n, node in self.nodes.items() if node.alive and n not in taken and n not in toy.pod.avoid]
            pod = (
                replace(toy.pod, node=free[0], unschedulable=False, phase="Running", waits="")
                if free
                else replace(toy.pod, unschedulable=True, waits="no node is free")
            )
            if pod != toy.pod:
                toy.pod, toy.since = pod, self.now
                self.tell(Seen(self.now, pod))

    def speak(self) -> None:
        """Kubelets renew, agents and sidecars report."""
        self.lease += 1
        for name, node in self.nodes.items():
            if node.alive and self.kubelets_renew and self.lease % 10 == 0:
                self.tell(Seen(self.now, KubeletLease(name, str(self.lease))))
            if node.alive and not node.cut:
                self.tell(AgentHeard(self.now, AgentReport(name, node.boot, node.verdict, node.notices)))
        for toy in list(self.pods.values()):
            if toy.pod.injected and self.alive(toy) and not self.nodes[toy.pod.node].cut and self.now - toy.since >= 1:
                self.tell(PodHeard(self.now, self.report(toy)))

    def alive(self, toy: ToyPod) -> bool:
        """True while the pod runs."""
        return bool(toy.pod.node) and self.nodes[toy.pod.node].alive and not toy.pod.deleting

    def report(self, toy: ToyPod) -> PodReport:
        """What a sidecar says."""
        leader = next((other for other in self.pods.values() if other.pod.index == 0), None)
        node = self.nodes[toy.pod.node]
        return PodReport(
            key=GROUP,
            member=self.member(toy),
            port=4000,
            root_state=self.root_state,
            disk_generation=self.disk_generation,
            completed=False,
            hears_coordinator=leader is not None and self.alive(leader),
            notices=node.notices,
            terminating=False,
            untouched=toy.untouched,
            group=self.coordinate(toy) if toy.pod.index == 0 else None,
            reached=self.reached(leader),
            completed_by=self.completed_by,
        )

    def reached(self, leader: ToyPod | None) -> CheckpointId | None:
        """All ranks step together; a member knows how far, also when its leader is gone."""
        if leader is None or not leader.step:
            return None
        return CheckpointId(Incarnation(leader.generation, leader.attempt), leader.step)

    def member(self, toy: ToyPod) -> Member:
        """The pod as a member."""
        return Member(toy.pod.index, toy.pod.uid, toy.pod.name, toy.pod.node, f"10.0.0.{toy.pod.uid[1:]}")

    # ---- the coordinator

    def coordinate(self, toy: ToyPod) -> GroupReport | None:
        """A coordinator of few words: trains with the granted world, saves in two seconds, asks for what it needs."""
        grant = self.told.get(toy.pod.uid)
        if grant is None:
            return None
        world = grant.world.members if grant.world else ()
        bad = [self.trouble(member) for member in world if member.index]
        exclude = tuple(item for item in bad if item is not None)
        notices = self.nodes[toy.pod.node].notices
        recreate = f"{notices[0].code} on the leader's node" if notices and world else None
        stop = bool(exclude or recreate or grant.save_within is not None)
        toy.stopped_at = (toy.stopped_at or self.now) if stop else None
        saved = stop and self.now - (toy.stopped_at or self.now) >= 2
        starting = not stop and bool(world) and toy.world_number != grant.world_number
        if not stop and world:
            self.train(toy, grant)
        return GroupReport(
            incarnation=Incarnation(grant.generation, toy.attempt),
            phase=Phase.STARTING if starting else self.phase(toy, stop, bool(world)),
            why="",
            world=tuple(member.uid for member in world),
            world_number=toy.world_number,
            step=None if starting else toy.step or None,
            newest=None if starting else toy.newest,  # named once the lineage record is written
            reshardable=self.reshardable,
            fenced=True,
            saved=saved,
            exclude=exclude,
            recreate=recreate,
            incidents=(),
            heard=tuple(uid for uid, other in self.pods.items() if self.alive(other)),
        )

    def train(self, toy: ToyPod, grant: Grant) -> None:
        """Start another attempt if need be, else make a step; every tenth is saved."""
        if toy.world_number != grant.world_number:
            toy.world_number, toy.attempt, toy.generation = grant.world_number, toy.attempt + 1, grant.generation
            toy.newest = grant.expected
            toy.step = grant.expected.step if grant.expected else 0
            self.disk_generation = grant.generation if self.disk_generation is not None else None
        else:
            toy.step += 1
            if toy.step % 10 == 0:
                toy.newest = CheckpointId(Incarnation(grant.generation, toy.attempt), toy.step)

    def phase(self, toy: ToyPod, stop: bool, granted: bool) -> Phase:
        """How the coordinator calls it."""
        if toy.finished:
            return Phase.COMPLETED
        if not granted:
            return Phase.PENDING
        return Phase.WAITING if stop else Phase.RUNNING

    def trouble(self, member: Member) -> Exclusion | None:
        """What the coordinator has against a member."""
        toy, node = self.pods.get(member.uid), self.nodes.get(member.node)
        if toy is None or not self.alive(toy):
            return Exclusion(member.uid, "silent", "nothing is heard of it", leaving=False)
        if node is not None and node.notices:
            return Exclusion(member.uid, node.notices[0].code, "as the agent says", leaving=True)
        return None

    # ---- faults

    def kill_node(self, name: str) -> None:
        """Power off."""
        self.nodes[name].alive = False
        self.tell(Seen(self.now, self.node(name)))

    def boot_node(self, name: str) -> None:
        """Power on: another boot, nothing wrong any more."""
        self.nodes[name] = ToyNode(f"boot-{name}-{self.now}")
        self.tell(Seen(self.now, self.node(name)))

    def notice(self, name: str, code: str = "xid-79", repair: Repair = Repair.REBOOT) -> None:
        """The agent of a node finds a fatal fault."""
        self.nodes[name].notices = (Notice(f"{name}-{code}", code, Severity.FATAL, Scope.GPU, repair, "a fault"),)

    def running(self) -> Cluster:
        """The same cluster, once the job trains."""
        self.run(6)
        assert self.group.phase is Phase.RUNNING
        return self
