"""What the controller knows, and how each fact changes it. Pure.

Nothing here is needed to survive: a view rebuilt from the API server and from the peers' next messages decides the
same, except that silences are counted anew (A4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from rlguard.cluster.facts import (
    AgentHeard,
    Fact,
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
    Thing,
    Written,
)
from rlguard.messages import AgentReport, GroupReport, PodReport
from rlguard.model import GroupKey, Phase
from rlguard.policy import SUSPECT

SAVING: Final = "saving"
"""Stands in `SeenGuard.since` for a group that is about to be recreated."""
REMEMBERED: Final = 4096
"""Pods remembered after they are gone; far more than can wait for a replacement at once."""


@dataclass(frozen=True, slots=True)
class SeenPod:
    """A pod and since when it could not be scheduled (None: it can, or has been).

    `newborn`: it appeared while this controller watched; one that was listed may have trained for days.
    """

    pod: Pod
    first_seen: float
    unschedulable_since: float | None
    newborn: bool = False


@dataclass(frozen=True, slots=True)
class HeardPod:
    """A sidecar's newest report. `asked` says since when its coordinator asks for what.

    A UID: to take it out of the world; the empty string: to recreate the group.
    """

    report: PodReport
    at: float
    first_at: float
    asked: Mapping[str, float] = field(default_factory=dict)

    def fresh(self, now: float) -> bool:
        """True unless the sidecar is silent for longer than the suspicion limit."""
        return now - self.at <= SUSPECT


@dataclass(frozen=True, slots=True)
class HeardAgent:
    """An agent's newest report."""

    report: AgentReport
    at: float


@dataclass(frozen=True, slots=True)
class Renewal:
    """A kubelet's Lease and when this controller saw it change. The first sight is no change: `at` None."""

    renewed: str
    at: float | None


@dataclass(frozen=True, slots=True)
class SeenGuard:
    """A Guard; `written_at` is when this controller last wrote its status.

    `since`: when this controller first saw each recreation (group, id) of its budget, and `SAVING` written; no clock of
    another machine is compared (A6), so a new controller counts anew.
    """

    guard: Guard
    written_at: float | None = None
    since: Mapping[tuple[int, str], float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class View:
    """Everything known. `taken_at` None: this process does not lead and decides nothing.

    `bare`: how many pods of a (group, index) in a row went without ever having been injected.
    """

    taken_at: float | None = None
    listed: frozenset[Kind] = frozenset()
    jobs: Mapping[JobKey, Job] = field(default_factory=dict)
    guards: Mapping[JobKey, SeenGuard] = field(default_factory=dict)
    pods: Mapping[str, SeenPod] = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)
    leases: Mapping[str, Renewal] = field(default_factory=dict)
    heard: Mapping[str, HeardPod] = field(default_factory=dict)
    agents: Mapping[str, HeardAgent] = field(default_factory=dict)
    groups: Mapping[GroupKey, tuple[str, ...]] = field(default_factory=dict)
    gone_at: Mapping[str, float] = field(default_factory=dict)
    bare: Mapping[tuple[GroupKey, int], int] = field(default_factory=dict)

    def of_group(self, key: GroupKey) -> list[SeenPod]:
        """All pods of a group, also those that are being replaced."""
        return [self.pods[uid] for uid in self.groups.get(key, ())]

    @property
    def ready(self) -> bool:
        """True when this controller leads and has a whole picture of the cluster."""
        return self.taken_at is not None and self.listed == frozenset(Kind)

    def members(self, key: GroupKey) -> dict[int, SeenPod]:
        """The pods of a group by index; of two with one index the one that is not being deleted, then the newer."""
        found: dict[int, SeenPod] = {}
        for seen in self.of_group(key):
            found[seen.pod.index] = max(seen, found.get(seen.pod.index, seen), key=_currency)
        return found


def _currency(seen: SeenPod) -> tuple[bool, float]:
    return (not seen.pod.deleting, seen.first_seen)


def fold(view: View, fact: Fact) -> View:
    """The view after a fact."""
    match fact:
        case LeaseTaken(at):
            return replace(view, taken_at=at)
        case PodHeard() | AgentHeard():
            return _fold_heard(view, fact)
        case Written():
            return _fold_written(view, fact)
        case _:
            return _fold_seen_or_gone(view, fact)


def _fold_heard(view: View, fact: PodHeard | AgentHeard) -> View:
    if isinstance(fact, AgentHeard):
        return replace(view, agents={**view.agents, fact.report.node: HeardAgent(fact.report, fact.at)})
    uid = fact.report.member.uid
    if uid in view.gone_at:
        return view
    return replace(view, heard={**view.heard, uid: _hear(view, fact.at, fact.report)})


def _fold_seen_or_gone(view: View, fact: Listed | Seen | Gone) -> View:
    match fact:
        case Listed():
            return _fold_listed(view, fact)
        case Seen():
            return _fold_seen(view, fact.at, fact.thing, watched=True)
        case Gone():
            return _fold_gone(view, fact.at, fact.thing)


def _fold_listed(view: View, fact: Listed) -> View:
    present = {_name(thing) for thing in fact.things}
    for thing in _known(view, fact.kind):
        if _name(thing) not in present:
            view = _fold_gone(view, fact.at, thing)
    for thing in fact.things:
        view = _fold_seen(view, fact.at, thing, watched=False)
    return replace(view, listed=view.listed | {fact.kind})


def _known(view: View, kind: Kind) -> list[Thing]:
    known: dict[Kind, list[Thing]] = {
        Kind.JOBS: list(view.jobs.values()),
        Kind.GUARDS: [seen.guard for seen in view.guards.values()],
        Kind.PODS: [seen.pod for seen in view.pods.values()],
        Kind.NODES: list(view.nodes.values()),
        Kind.LEASES: [KubeletLease(node, renewal.renewed) for node, renewal in view.leases.items()],
    }
    return known[kind]


def _name(thing: Thing) -> Any:
    match thing:
        case Pod():
            return thing.uid
        case Node():
            return thing.name
        case KubeletLease():
            return thing.node
        case _:
            return thing.key


def _fold_seen(view: View, at: float, thing: Thing, *, watched: bool) -> View:
    match thing:
        case Job():
            return replace(view, jobs={**view.jobs, thing.key: thing})
        case Pod():
            return _gain_pod(view, at, thing, watched=watched)
        case Node():
            return _see_node(view, thing, watched=watched)
        case KubeletLease():
            return replace(view, leases={**view.leases, thing.node: _renew(view, at, thing)})
        case Guard():
            return _see_guard(view, at, thing)


def _gain_pod(view: View, at: float, pod: Pod, *, watched: bool) -> View:
    uids = view.groups.get(pod.key, ())
    groups = view.groups if pod.uid in uids else {**view.groups, pod.key: (*uids, pod.uid)}
    bare = _without(view.bare, (pod.key, pod.index)) if pod.injected and view.bare else view.bare
    seen = _see_pod(view.pods.get(pod.uid), at, pod, watched=watched)
    return replace(view, pods={**view.pods, pod.uid: seen}, groups=groups, bare=bare)


def _see_pod(old: SeenPod | None, at: float, pod: Pod, *, watched: bool) -> SeenPod:
    since = old.unschedulable_since if old is not None else None
    if not pod.unschedulable:
        since = None
    elif since is None:
        since = at
    if old is None:
        return SeenPod(pod, at, since, newborn=watched)
    return replace(old, pod=pod, unschedulable_since=since)


def _see_node(view: View, node: Node, *, watched: bool) -> View:
    old = view.nodes.get(node.name)
    if watched and old is not None and _older(node.resource_version, old.resource_version):
        return view  # a watch event from before our own write
    return replace(view, nodes={**view.nodes, node.name: node})


def _renew(view: View, at: float, lease: KubeletLease) -> Renewal:
    old = view.leases.get(lease.node)
    if old is None:
        return Renewal(lease.renewed, None)
    return old if old.renewed == lease.renewed else Renewal(lease.renewed, at)


def _see_guard(view: View, at: float, guard: Guard) -> View:
    old = view.guards.get(guard.key)
    if old is None or old.guard.uid != guard.uid:
        return _with_guard(view, SeenGuard(guard), at)
    if _older(guard.resource_version, old.guard.resource_version):
        return view  # a watch event from before our own write
    return _with_guard(view, replace(old, guard=guard), at)


def _with_guard(view: View, seen: SeenGuard, at: float) -> View:
    names = [(group.group, name) for group in seen.guard.status.groups for name in group.recreations]
    names += [(group.group, SAVING) for group in seen.guard.status.groups if group.phase is Phase.RECREATING]
    since = {name: seen.since.get(name, at) for name in names}
    return replace(view, guards={**view.guards, seen.guard.key: replace(seen, since=since)})


def _older(version: str, than: str) -> bool:
    # Comparable as integers within one object; where they are not, the write's precondition still protects.
    return version.isdigit() and than.isdigit() and int(version) < int(than)


def _fold_gone(view: View, at: float, thing: Thing) -> View:
    match thing:
        case Job():
            return replace(view, jobs=_without(view.jobs, thing.key))
        case Pod():
            return _lose_pod(view, at, thing)
        case Node():
            return replace(view, nodes=_without(view.nodes, thing.name))
        case KubeletLease():
            return replace(view, leases=_without(view.leases, thing.node))
        case Guard():
            return replace(view, guards=_without(view.guards, thing.key))


def _lose_pod(view: View, at: float, pod: Pod) -> View:
    gone = {**view.gone_at, pod.uid: at}
    while len(gone) > REMEMBERED:
        del gone[next(iter(gone))]
    left = tuple(uid for uid in view.groups.get(pod.key, ()) if uid != pod.uid)
    groups = {**view.groups, pod.key: left} if left else _without(view.groups, pod.key)
    pods, heard = _without(view.pods, pod.uid), _without(view.heard, pod.uid)
    return replace(view, pods=pods, heard=heard, groups=groups, gone_at=gone, bare=_count_bare(view, pod))


def _count_bare(view: View, pod: Pod) -> Mapping[tuple[GroupKey, int], int]:
    if pod.injected or pod.refused or len(view.bare) >= REMEMBERED:
        return view.bare
    place = (pod.key, pod.index)
    return {**view.bare, place: view.bare.get(place, 0) + 1}


def _without(mapping: Mapping[Any, Any], name: Any) -> Mapping[Any, Any]:
    return {key: value for key, value in mapping.items() if key != name}


def _hear(view: View, at: float, report: PodReport) -> HeardPod:
    old = view.heard.get(report.member.uid)
    before = old.asked if old is not None else {}
    asked = {what: before.get(what, at) for what in _asks(report.group)} if report.group is not None else {}
    return HeardPod(report, at, old.first_at if old is not None else at, asked)


def _asks(group: GroupReport) -> list[str]:
    uids = [exclusion.uid for exclusion in group.exclude]
    return [*uids, ""] if group.recreate is not None else uids


def _fold_written(view: View, fact: Written) -> View:
    seen = view.guards.get(fact.key)
    if seen is None or _older(fact.resource_version, seen.guard.resource_version):
        return view
    guard = replace(seen.guard, resource_version=fact.resource_version, status=fact.status)
    return _with_guard(view, replace(seen, guard=guard, written_at=fact.at), fact.at)
