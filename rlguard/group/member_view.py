"""What a member knows, and the questions that its decisions and its report both ask of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from rlguard.group.member_facts import LauncherState, RankSeen, RootSeen, SlotSeen
from rlguard.group.memory import Reading, StageChoice
from rlguard.messages import FlushState, Order
from rlguard.model import Incarnation, Member, Notice


@dataclass(frozen=True, slots=True)
class MemberView:
    """What a member knows.

    `order` is the newest one accepted; `asked`: the newest incarnation it was ordered to run, `stopped`: to stop, and
    when; `cut_since`: since when neither coordinator nor controller is in reach, None while one is; `alone_since`: the
    same of the coordinator only; `quiet_since`: since when the pod is being deleted and nobody wants its memory
    flushed, `released`: long enough, its container may end.
    """

    member: Member
    born: float
    order: Order | None = None
    asked: Incarnation | None = None
    stopped: Incarnation | None = None
    stopped_at: float = 0.0
    launcher: LauncherState | None = None
    launcher_at: float = 0.0
    ranks: tuple[RankSeen, ...] = ()
    slots: tuple[SlotSeen, ...] = ()
    choice: StageChoice | None = None
    flush: FlushState | None = None
    reading: tuple[Reading, ...] = ()
    coordinator_open: bool = False
    controller_open: bool = False
    controller_ever: bool = False
    cut_since: float | None = None
    cut: bool = False
    alone_since: float | None = None
    alone: bool = False
    quiet_since: float | None = None
    released: bool = False
    notices: tuple[Notice, ...] = ()
    notices_at: float = 0.0
    root: RootSeen | None = None
    untouched: bool = False


def node_rank_of(view: MemberView, order: Order) -> int | None:
    """The pod's place in the order's world, None when it has none."""
    members = order.world.members if order.world else ()
    return next((rank for rank, member in enumerate(members) if member.uid == view.member.uid), None)


def ordered_incarnation(view: MemberView) -> Incarnation | None:
    """The newest one ordered; before the first order the one that its launcher speaks of."""
    if view.order is not None:
        return view.order.incarnation
    return view.launcher.incarnation if view.launcher else None


def own_ranks(view: MemberView) -> list[RankSeen]:
    """The pages of the incarnation that is ordered and started; those of one before it say nothing of it."""
    incarnation = view.launcher.incarnation if view.launcher else None
    if incarnation != ordered_incarnation(view):
        return []
    return [rank for rank in view.ranks if rank.incarnation == incarnation]


def slowest_step(ranks: list[RankSeen]) -> int | None:
    """The step of the pod's slowest rank; None until every rank of the pod has hooked in and told one."""
    hooked = [rank for rank in ranks if rank.hook]
    if not hooked or len(hooked) < hooked[0].local_world_size:
        return None
    steps = [rank.step for rank in hooked]
    known = [step for step in steps if step is not None]
    return min(known) if len(known) == len(steps) else None
