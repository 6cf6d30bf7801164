"""Which nodes get the taint that keeps all new pods away, and which lose it. Opt-in. Pure.

The taint on the Node is the only memory: what the API server shows and what the agents say now give the actions. It is
put on for a fault of the hardware that the node's own agent tells, never for silence, blindness or a node that leaves;
within a pool never on more nodes than its share. It is taken off when the agent says that the node can work again, also
while the breaker is open. No other taint is touched, and a node that another remediator acts on is left to it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rlguard.cluster.actions import AddTaint, RemoveTaint
from rlguard.cluster.avoidance import CAN_WORK
from rlguard.cluster.facts import Node
from rlguard.cluster.status import STEPPED_BACK, GuardStatus
from rlguard.cluster.view import View
from rlguard.messages import AgentReport
from rlguard.model import Notice, Repair, Scope, Severity, Verdict
from rlguard.policy import SUSPECT

KEY: Final = "rlguard.io/unhealthy"
EFFECT: Final = "NoSchedule"
"""Never NoExecute: what runs there is saved and moved by its own Guard, or is none of our business."""
POOL_LABELS: Final = (
    "node.tke.cloud.tencent.com/machineset",
    "tke.cloud.tencent.com/nodepool-id",
    "eks.amazonaws.com/nodegroup",
    "karpenter.sh/nodepool",
    "cloud.google.com/gke-nodepool",
    "kubernetes.azure.com/agentpool",
)
"""Node labels that name the pool: Tencent (native nodes, then others), EKS, Karpenter, GKE, AKS."""
SETTLE: Final = 30.0
"""So long, in seconds, a new controller puts on no taint: a call of the one before has ended by then, and the agents
have spoken, without whom the breaker counts too few nodes."""
MENDED: Final = frozenset({Repair.RESET_GPU, Repair.REBOOT, Repair.REPLACE})
"""Repairs that mend hardware."""
NOT_HARDWARE: Final = ("spot-", "maintenance-", "node-", "storage-", "pod-")
"""Codes of what a cloud, a person or a file system does to a node."""
REMEDIATOR: Final = "remediator-"
VALUE_LENGTH: Final = 63
"""The longest value of a taint."""
NAMED: Final = 5
"""Nodes named in one message."""
_NOT_IN_A_VALUE: Final = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class TaintPolicy:
    """At most `max_share` (0 to 1) of a pool's nodes carry the taint, or `floor` of them if that is more.

    Nodes with the same value of `pool_label` are a pool, those without it another; empty: the first of `POOL_LABELS`
    that the node has.
    """

    max_share: float = 0.2
    floor: int = 1
    pool_label: str = ""

    def most(self, nodes: int) -> int:
        """How many nodes of a pool of this size may carry the taint."""
        return max(self.floor, int(self.max_share * nodes + 1e-9))  # 0.29 * 100 is a little less than 29

    def pool(self, node: Node) -> str:
        """The name of the node's pool, empty without a label."""
        labels = (self.pool_label,) if self.pool_label else POOL_LABELS
        return next((f"{label}={node.labels[label]}" for label in labels if node.labels.get(label)), "")


def taint_actions(
    view: View, now: float, policy: TaintPolicy, held: str | None
) -> tuple[tuple[AddTaint | RemoveTaint, ...], str]:
    """What to do about taints now, and why not more. All that is added at once fits into the shares."""
    removals = tuple(_removals(view, now))
    lost = [name for name, heard in view.agents.items() if heard.report.verdict is Verdict.LOST and name in view.nodes]
    wanted = {name: code for name in lost if (code := _code(view, view.nodes[name], now)) is not None}
    if not wanted:
        return removals, "no node is to be tainted"
    hindered = held or ("this controller leads since a moment only" if _unsettled(view, now) else None)
    if hindered is not None:
        return removals, f"no taint on {_listed(wanted)}: {hindered}"
    chosen, over = _within_shares(view, policy, sorted(wanted))
    added = tuple(_addition(view.nodes[name], wanted[name]) for name in chosen)
    why = [f"taint on {_listed(chosen)}"] if chosen else []
    why += [f"no taint on {_listed(over)}: their pools have their share"] if over else []
    return (*removals, *added), "; ".join(why)


def _unsettled(view: View, now: float) -> bool:
    return view.taken_at is None or now - view.taken_at < SETTLE


def _fresh_report(view: View, node: str, now: float) -> AgentReport | None:
    heard = view.agents.get(node)
    return heard.report if heard is not None and now - heard.at <= SUSPECT else None


def _removals(view: View, now: float) -> Iterable[RemoveTaint]:
    for node in [node for node in view.nodes.values() if node.taints]:
        place, report = place_of_ours(node), _fresh_report(view, node.name, now)
        if place is not None and report is not None and report.verdict in CAN_WORK:
            yield RemoveTaint(node.name, node.resource_version, place, f"its agent says {report.verdict.value}")


def place_of_ours(node: Node) -> int | None:
    """Where in the node's list our taint is, None without it. Another effect under our key is not ours."""
    return next((i for i, taint in enumerate(node.taints) if (taint.key, taint.effect) == (KEY, EFFECT)), None)


def _code(view: View, node: Node, now: float) -> str | None:
    """The fault for which the node should get the taint that it has not."""
    report = _fresh_report(view, node.name, now)
    if report is None or place_of_ours(node) is not None or remediators(report):
        return None
    return hardware_fault(report)


def hardware_fault(report: AgentReport) -> str | None:
    """The code of the worst fault of the hardware of a node that is lost; None if it is not, or leaves by a date."""
    fatal = [notice for notice in report.notices if notice.severity is Severity.FATAL]
    if report.verdict is not Verdict.LOST or any(notice.seconds_left is not None for notice in fatal):
        return None
    return next((notice.code for notice in fatal if _of_hardware(notice)), None)


def _of_hardware(notice: Notice) -> bool:
    mended = notice.scope is not Scope.PROCESS and notice.repair in MENDED
    return mended and not notice.code.startswith(NOT_HARDWARE)


def remediators(report: AgentReport) -> tuple[str, ...]:
    """Who else acts on the node, as its agent tells."""
    return tuple(
        notice.code.removeprefix(REMEDIATOR) for notice in report.notices if notice.code.startswith(REMEDIATOR)
    )


def stepped_back(view: View, stored: GuardStatus) -> str:
    """Which of the nodes that a job avoids are left to whom, as a sentence; empty if none is."""
    nodes = [entry.node for entry in stored.avoid]
    said = next((c.message for c in stored.conditions if (c.type, c.status) == (STEPPED_BACK, "True")), "")
    if said and any(name not in view.agents for name in nodes):
        return said  # not yet heard by this controller: no reason to take it back, and then to tell it again
    heard = {name: view.agents[name].report for name in nodes if name in view.agents}
    others = {name: remediators(report) for name, report in heard.items()}
    left = _listed(f"{name} ({', '.join(names)})" for name, names in others.items() if names)
    return f"another remediator acts on {left}: the job stays away, the node gets no taint of ours" if left else ""


def _within_shares(view: View, policy: TaintPolicy, names: list[str]) -> tuple[list[str], list[str]]:
    """(those that fit into the shares of their pools, the others), in the order of their names."""
    pools = {node.name: policy.pool(node) for node in view.nodes.values()}
    sizes = Counter(pools.values())
    taken = Counter(pools[node.name] for node in view.nodes.values() if place_of_ours(node) is not None)
    chosen: list[str] = []
    over: list[str] = []
    for name in names:
        pool = pools[name]
        fits = taken[pool] < policy.most(sizes[pool])
        taken[pool] += fits
        (chosen if fits else over).append(name)
    return chosen, over


def _addition(node: Node, code: str) -> AddTaint:
    return AddTaint(node.name, node.resource_version, value_of(code), first=not node.taints, reason=code)


def value_of(code: str) -> str:
    """A fault's code as the value of a taint, whatever characters are in it."""
    return _NOT_IN_A_VALUE.sub("-", code)[:VALUE_LENGTH].strip("._-") or "fault"


def _listed(names: Iterable[str]) -> str:
    every = sorted(names)
    shown = ", ".join(every[:NAMED])
    return shown if len(every) <= NAMED else f"{shown} and {len(every) - NAMED} more"
