"""One group as a decision sees it: what is stored, who is there, what they say, and what may be done now. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rlguard.cluster.facts import Job, Pod
from rlguard.cluster.silence import Proof, proof_of_loss
from rlguard.cluster.status import DeleteKind, GroupStatus
from rlguard.cluster.view import HeardPod, SeenPod, View
from rlguard.messages import Exclusion, GroupReport
from rlguard.model import GroupKey, Member
from rlguard.policy import GuardSpec

UNHEARD_LIMIT: Final = 300.0
"""A running pod that is not heard for so long, in seconds, will not come by itself."""


@dataclass(frozen=True, slots=True)
class Clock:
    """`now`: CLOCK_BOOTTIME, for rules; `wall`: Unix seconds, for people."""

    now: float
    wall: float


@dataclass(frozen=True, slots=True)
class Context:
    """Everything a group's decision rests on. `avoided`: nodes of the stored avoid list. `held`: the breaker's reason.

    `recreations` counts those within the budget's window; `saving_since` is when the recreation that waits for saving
    was written.
    """

    view: View
    spec: GuardSpec
    job: Job
    key: GroupKey
    clock: Clock
    avoided: frozenset[str]
    held: str | None
    recreations: int
    saving_since: float | None

    @property
    def now(self) -> float:
        """The controller's own clock."""
        return self.clock.now

    @property
    def members(self) -> dict[int, SeenPod]:
        """The group's pods by index."""
        return self.view.members(self.key)

    @property
    def leader(self) -> SeenPod | None:
        """The leader pod, if there is one that is ours."""
        return self.members.get(0)

    def heard(self, uid: str) -> HeardPod | None:
        """The pod's newest report if its sidecar is not silent."""
        heard = self.view.heard.get(uid)
        return heard if heard is not None and heard.fresh(self.now) else None

    def report(self, stored: GroupStatus) -> GroupReport | None:
        """The coordinator's report if it is fresh and of the stored generation and leader."""
        leader = self.leader
        heard = self.heard(leader.pod.uid) if leader is not None and leader.pod.uid == stored.leader_uid else None
        report = heard.report.group if heard is not None else None
        return report if report is not None and report.incarnation.generation == stored.generation else None

    def asked_for(self, stored: GroupStatus, what: str) -> float:
        """For how many seconds the coordinator has been asking for this (a UID, or "" for a recreation)."""
        heard = self.view.heard.get(stored.leader_uid)
        return self.now - heard.asked.get(what, self.now) if heard is not None else 0.0

    def proof(self, seen: SeenPod) -> Proof:
        """Whether the pod's node is proven lost."""
        return proof_of_loss(self.view, seen, self.now)

    def lost(self, seen: SeenPod) -> bool:
        """True when the pod's node is proven lost."""
        return self.proof(seen) is Proof.LOST

    def unheard(self, seen: SeenPod) -> bool:
        """True for a pod that has run for a while and has never been heard; one that pulls its image just waits."""
        since = max(seen.first_seen, self.view.taken_at or 0.0)
        runs = seen.pod.phase == "Running" and not seen.pod.deleting
        return runs and seen.pod.uid not in self.view.heard and self.now - since > UNHEARD_LIMIT

    def usable(self, seen: SeenPod, stored: GroupStatus) -> Member | None:
        """The pod as a member of a new world; None while it may not or cannot be one."""
        pod, heard = seen.pod, self.heard(seen.pod.uid)
        if heard is None or heard.report.terminating or pod.deleting or not pod.node or pod.node in self.avoided:
            return None
        return None if pod.uid in stored.refused or pod.uid in unwanted(stored, self) else heard.report.member


def unwanted(stored: GroupStatus, context: Context) -> frozenset[str]:
    """UIDs that the coordinator wants out, or that are being deleted."""
    report = context.report(stored)
    excluded = [exclusion.uid for exclusion in report.exclude] if report is not None else []
    return frozenset(excluded) | frozenset(stored.pending.uids if stored.pending is not None else ())


def replacing(stored: GroupStatus) -> tuple[str, ...]:
    """UIDs of workers that are being replaced one by one."""
    pending = stored.pending
    return pending.uids if pending is not None and pending.kind is DeleteKind.REPLACE else ()


def exclusions(context: Context, stored: GroupStatus) -> tuple[Exclusion, ...]:
    """What the coordinator asks to take out of the world that is granted now."""
    report = context.report(stored)
    return tuple(e for e in report.exclude if e.uid in stored.world_uids) if report is not None else ()


def pod_is_bad_elsewhere(pod: Pod, stored: GroupStatus, avoided: frozenset[str]) -> bool:
    """True for a pod outside the world that sits on an avoided node."""
    return bool(pod.node) and pod.node in avoided and pod.uid not in stored.world_uids
