"""When a node is proven lost, and when nothing disruptive may be done at all (A4). Pure.

Silence alone proves nothing: the controller's own network may be at fault. Two proofs exist. Heard, then silent: the
pod's sidecar and the node's agent were both heard by this controller and have both been silent for `NODE_LOST`.
Never heard (this controller took over after the node went): that is UNKNOWN, and becomes proof only if the API server
no longer calls the node Ready and a living member of the group does not hear the pod either. Both are vetoed by a
kubelet Lease renewed since, by a window without any other node's voice, and by any member that hears the pod.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from rlguard.cluster.view import HeardPod, SeenPod, View
from rlguard.messages import GroupReport
from rlguard.model import GroupKey, Verdict
from rlguard.policy import NODE_LOST, SUSPECT

BREAKER_FROM: Final = 4
"""With fewer known nodes, more than half of them is too few to tell a sick cluster from a sick node."""


class Proof(StrEnum):
    """Why a node counts as lost, or why it does not."""

    LOST = "lost"
    ALIVE = "alive"
    TOO_EARLY = "too-early"
    LEASE_RENEWED = "lease-renewed"
    NOBODY_HEARD = "nobody-heard"  # this controller is itself cut off, as far as it can tell
    MEMBER_HEARS = "member-hears"
    NEVER_HEARD = "never-heard"


def proof_of_loss(view: View, seen: SeenPod, now: float) -> Proof:
    """Whether the node of this pod is proven lost."""
    if view.taken_at is None or not seen.pod.node:
        return Proof.NEVER_HEARD
    began = _silent_since(view, seen, view.taken_at)
    if now - began <= SUSPECT:
        return Proof.ALIVE
    if now - began <= NODE_LOST:
        return Proof.TOO_EARLY
    if _heard_by_members(view, seen, now):
        return Proof.MEMBER_HEARS
    return _weigh(view, seen, began, now)


def _weigh(view: View, seen: SeenPod, began: float, now: float) -> Proof:
    node = seen.pod.node
    renewed = {name: renewal.at for name, renewal in view.leases.items() if renewal.at is not None}
    # A renewal sent just before the node died may be seen a moment after its last word.
    if renewed.get(node, began) > began + SUSPECT:
        return Proof.LEASE_RENEWED
    others = any(at > began for name, at in renewed.items() if name != node)
    if not others or not _others_speak(view, node, now):
        return Proof.NOBODY_HEARD
    if seen.pod.uid in view.heard and node in view.agents:
        return Proof.LOST
    return Proof.LOST if _cluster_agrees(view, seen, now) else Proof.NEVER_HEARD


def _silent_since(view: View, seen: SeenPod, taken_at: float) -> float:
    heard = view.heard.get(seen.pod.uid)
    agent = view.agents.get(seen.pod.node)
    voices = [heard.at if heard is not None else taken_at, agent.at if agent is not None else taken_at]
    return max(taken_at, *voices)


def _others_speak(view: View, node: str, now: float) -> bool:
    agents = any(now - heard.at <= SUSPECT for name, heard in view.agents.items() if name != node)
    pods = any(heard.fresh(now) for heard in view.heard.values() if heard.report.member.node != node)
    return agents or pods


def _cluster_agrees(view: View, seen: SeenPod, now: float) -> bool:
    node = view.nodes.get(seen.pod.node)
    return (node is None or node.ready is not True) and _missed_by_members(view, seen, now)


def _heard_by_members(view: View, seen: SeenPod, now: float) -> bool:
    if seen.pod.index == 0:
        return any(heard.report.hears_coordinator for heard in _fresh_peers(view, seen, now))
    report = group_report(view, seen.pod.key, now)
    return report is not None and seen.pod.uid in report.heard


def _missed_by_members(view: View, seen: SeenPod, now: float) -> bool:
    if seen.pod.index == 0:
        return any(not heard.report.hears_coordinator for heard in _fresh_peers(view, seen, now))
    report = group_report(view, seen.pod.key, now)
    return report is not None and seen.pod.uid in {exclusion.uid for exclusion in report.exclude}


def _fresh_peers(view: View, seen: SeenPod, now: float) -> list[HeardPod]:
    uids = [other.pod.uid for other in view.members(seen.pod.key).values() if other.pod.uid != seen.pod.uid]
    return [view.heard[uid] for uid in uids if uid in view.heard and view.heard[uid].fresh(now)]


def group_report(view: View, key: GroupKey, now: float) -> GroupReport | None:
    """What the group's coordinator says, None while it is not heard."""
    leader = view.members(key).get(0)
    heard = view.heard.get(leader.pod.uid) if leader is not None else None
    return heard.report.group if heard is not None and heard.fresh(now) else None


def breaker(view: View, now: float) -> str | None:
    """Why all disruptive actions are held: too many nodes look bad at once. None: they are not."""
    known = view.agents
    bad = [name for name, heard in known.items() if now - heard.at > SUSPECT or heard.report.verdict is Verdict.LOST]
    if len(known) < BREAKER_FROM or 2 * len(bad) <= len(known):
        return None
    return f"{len(bad)} of {len(known)} nodes are silent or lost at once: {', '.join(sorted(bad)[:5])}"
