"""What the controller is told: snapshots from the API server, from sidecars and agents, and outcomes. Pure.

`at` is the controller's own clock (CLOCK_BOOTTIME seconds) at the moment it saw the fact; no clock time of another
machine enters a rule (A6).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from rlguard.cluster.status import GuardStatus
from rlguard.messages import AgentReport, PodReport
from rlguard.model import GroupKey


class JobKey(NamedTuple):
    """One LeaderWorkerSet, and the Guard of the same name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Kind(StrEnum):
    """What is watched."""

    JOBS = "jobs"
    GUARDS = "guards"
    PODS = "pods"
    NODES = "nodes"
    LEASES = "leases"


@dataclass(frozen=True, slots=True)
class Job:
    """A LeaderWorkerSet. `isolated`: restartPolicy None, so one worker can be replaced without the others."""

    key: JobKey
    uid: str
    replicas: int
    size: int
    isolated: bool
    guarded: bool
    resource_version: str


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of a guarded group. `node` is empty until scheduled; `avoid` is the avoid list as of its creation.

    `refused`: the injector saw it and could not guard it. `waits`: why it does not run yet, in Kubernetes' words.
    """

    key: GroupKey
    index: int
    uid: str
    name: str
    node: str
    phase: str
    unschedulable: bool
    deleting: bool
    injected: bool
    avoid: tuple[str, ...]
    refused: bool = False
    waits: str = ""


class Taint(NamedTuple):
    """A taint of a Node, whoever put it there."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class Node:
    """A Node object. `ready` None: nobody knows (condition Unknown or missing). `taints` are in the order of its spec.

    `resource_version` says nothing about the node, so two versions that say the same are equal.
    """

    name: str
    ready: bool | None
    boot_id: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    resource_version: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class KubeletLease:
    """A node's heartbeat object; `renewed` is opaque, only its changes count."""

    node: str
    renewed: str


@dataclass(frozen=True, slots=True)
class Guard:
    """A Guard as the API server has it. `generation` is that of its spec."""

    key: JobKey
    uid: str
    generation: int
    resource_version: str
    spec: Mapping[str, Any]
    status: GuardStatus


Thing = Job | Pod | Node | KubeletLease | Guard


@dataclass(frozen=True, slots=True)
class Listed:
    """Everything of one kind; what is missing here is gone."""

    at: float
    kind: Kind
    things: tuple[Thing, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """One object came or changed."""

    at: float
    thing: Thing


@dataclass(frozen=True, slots=True)
class Gone:
    """One object was deleted. Carries its last state."""

    at: float
    thing: Thing


@dataclass(frozen=True, slots=True)
class PodHeard:
    """A sidecar spoke; the link has proven that it is that pod."""

    at: float
    report: PodReport


@dataclass(frozen=True, slots=True)
class AgentHeard:
    """An agent spoke; the link has proven that it is that node."""

    at: float
    report: AgentReport


@dataclass(frozen=True, slots=True)
class LeaseTaken:
    """The Lease is ours since now."""

    at: float


@dataclass(frozen=True, slots=True)
class Written:
    """A status write succeeded; the object now has this resource version."""

    at: float
    key: JobKey
    resource_version: str
    status: GuardStatus


Fact = Listed | Seen | Gone | PodHeard | AgentHeard | LeaseTaken | Written
