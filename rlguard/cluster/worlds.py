"""Which pods train: the first world of a generation, replacement, shrinking and growing. Pure.

A world is only ever written here; grants are made of what has been written (A3).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rlguard.cluster.context import Context, exclusions, replacing
from rlguard.cluster.status import REFUSED_KEPT, GroupStatus
from rlguard.model import Member, Phase
from rlguard.policy import REPLACE_WAIT


def next_world(context: Context, stored: GroupStatus) -> GroupStatus | None:
    """The status with another world, or with what the group waits for; None when the world stays."""
    if not stored.world:
        return _first(context, stored)
    gone = _gone(context, stored)
    return _without_the_gone(context, stored, gone) if gone else _grown(context, stored)


def _usable(context: Context, stored: GroupStatus) -> dict[int, Member]:
    found = {index: context.usable(seen, stored) for index, seen in context.members.items() if index < context.job.size}
    return {index: member for index, member in found.items() if member is not None}


def _granted(stored: GroupStatus, members: Iterable[Member], why: str) -> GroupStatus:
    world = tuple(sorted(members, key=lambda member: member.index))
    refused = sorted(stored.world_uids - {member.uid for member in world} - set(stored.refused))
    return replace(
        stored,
        world=world,
        world_number=stored.world_number + 1,
        refused=(*stored.refused, *refused)[-REFUSED_KEPT:],
        why=why,
    )


def _first(context: Context, stored: GroupStatus) -> GroupStatus | None:
    usable, size = _usable(context, stored), context.job.size
    if len(usable) == size:
        return _granted(stored, usable.values(), f"all {size} members are there")
    if 0 in usable and _may_train_with(context, len(usable)) and _all_stuck(context, set(range(size)) - set(usable)):
        return _granted(stored, usable.values(), f"{len(usable)} of {size} members: no node for the others")
    mute = [seen.pod for index, seen in context.members.items() if index < size and context.unheard(seen)]
    if mute:
        why = f"pod {mute[0].name} runs on {mute[0].node} but its sidecar is not heard: see the log of rlguard-sidecar"
        return replace(stored, phase=Phase.BLOCKED, why=why)
    missing = sorted(set(range(size)) - set(usable))
    why = f"waiting for members {_listed(missing)}{_what_they_wait_for(context, missing)}"
    return replace(stored, phase=Phase.PENDING, why=why)


def _what_they_wait_for(context: Context, missing: list[int]) -> str:
    pods = [context.members[index].pod for index in missing if index in context.members]
    return next((f"; {pod.name} waits: {pod.waits}" for pod in pods if pod.waits), "")


def _listed(indexes: list[int]) -> str:
    shown = ", ".join(str(index) for index in indexes[:8])
    return shown if len(indexes) <= 8 else f"{shown} and {len(indexes) - 8} more"  # noqa: PLR2004 - readable length


def _may_train_with(context: Context, members: int) -> bool:
    least = context.spec.elastic.min_members
    return 0 < least <= members and context.job.isolated


def _all_stuck(context: Context, indexes: set[int]) -> bool:
    return all(_stuck_for(context, index) > REPLACE_WAIT for index in indexes)


def _stuck_for(context: Context, index: int) -> float:
    """For how long the pod of this index could not be scheduled; 0 if it does not exist or has a node."""
    seen = context.members.get(index)
    since = seen.unschedulable_since if seen is not None and not seen.pod.deleting else None
    return context.now - since if since is not None else 0.0


def _gone(context: Context, stored: GroupStatus) -> dict[str, float]:
    """Members that cannot train on, with the seconds since that is known."""
    before = context.view.taken_at or 0.0  # gone before this controller looked: counted from when it took over
    gone = {
        member.uid: context.now - context.view.gone_at.get(member.uid, before)
        for member in stored.world
        if member.uid not in context.view.pods and member.index
    }
    deleting = {uid: context.asked_for(stored, uid) for uid in replacing(stored) if uid in stored.world_uids}
    return {**deleting, **gone}


def _without_the_gone(context: Context, stored: GroupStatus, gone: dict[str, float]) -> GroupStatus | None:
    if any(e.uid not in gone for e in exclusions(context, stored)):
        return None  # more members are about to leave: one change for all
    kept = [member for member in stored.world if member.uid not in gone]
    free = {member.index for member in stored.world if member.uid in gone}
    usable = _usable(context, stored)
    fresh = [usable[index] for index in sorted(free) if index in usable]
    if len(fresh) == len(free):
        return _granted(stored, [*kept, *fresh], f"replaced {_names(stored, gone)}")
    return _smaller(context, stored, gone, [*kept, *fresh])


def _smaller(context: Context, stored: GroupStatus, gone: dict[str, float], members: list[Member]) -> GroupStatus:
    report = context.report(stored)
    missing = sorted({member.index for member in stored.world} - {member.index for member in members})
    no_node = any(_stuck_for(context, index) > 0 for index in missing)
    allowed = report is not None and report.reshardable and _may_train_with(context, len(members))
    if allowed and (no_node or max(gone.values()) > REPLACE_WAIT):
        why = "no node for a replacement" if no_node else f"no replacement within {REPLACE_WAIT:g} s"
        return _granted(stored, members, f"on without {_names(stored, gone)}: {why}")
    waiting = f"waiting for a replacement of member {_listed(missing)}"
    return replace(stored, phase=Phase.WAITING, why=f"{waiting}: no node has room" if no_node else waiting)


def _names(stored: GroupStatus, uids: Iterable[str]) -> str:
    wanted = set(uids)
    return ", ".join(f"{member.pod} on {member.node}" for member in stored.world if member.uid in wanted)


def _grown(context: Context, stored: GroupStatus) -> GroupStatus | None:
    report = context.report(stored)
    if report is None or report.phase is not Phase.RUNNING or report.world_number != stored.world_number:
        return None
    if report.exclude or len(stored.world) >= context.job.size:
        return None
    present = {member.index for member in stored.world}
    extra = [member for index, member in sorted(_usable(context, stored).items()) if index not in present]
    extra = extra[: len(stored.world)]  # at most twice as many at once
    return _granted(stored, [*stored.world, *extra], f"grown by {len(extra)}") if extra else None
