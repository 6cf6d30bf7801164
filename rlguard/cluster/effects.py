"""What follows from a written status: grants, deletions, scaling to 0. Never from one that is only meant (A3). Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rlguard.cluster.actions import DeletePod, ScaleJob, TellGrant
from rlguard.cluster.bare import came_bare
from rlguard.cluster.context import Context, pod_is_bad_elsewhere
from rlguard.cluster.facts import Job, Pod
from rlguard.cluster.group import OVER
from rlguard.cluster.removal import save_left
from rlguard.cluster.status import DeleteKind, GroupStatus, GuardStatus
from rlguard.cluster.view import HeardPod, SeenPod
from rlguard.messages import Grant, Want
from rlguard.model import Phase, World
from rlguard.policy import GuardSpec, OnGiveUp


def group_effects(context: Context, stored: GroupStatus) -> Iterator[TellGrant | DeletePod]:
    """All that the written status of one group asks for."""
    yield from _grants(context, stored)
    yield from _deletions(context, stored)
    for seen in context.members.values():
        if _misplaced(context, stored, seen):
            yield _delete(seen.pod, force=False)
        elif came_bare(context, stored, seen):
            yield replace(_delete(seen.pod, force=False), nothing_to_save=True)


def _grants(context: Context, stored: GroupStatus) -> Iterator[TellGrant]:
    leader = context.view.heard.get(stored.leader_uid)
    if leader is None or not stored.generation:
        return
    grant = _grant(context, stored, leader)
    for seen in context.view.of_group(context.key):
        if seen.pod.uid in context.view.heard:
            yield TellGrant(seen.pod.uid, grant)


def _grant(context: Context, stored: GroupStatus, leader: HeardPod) -> Grant:
    going = stored.phase is Phase.RECREATING and context.held is None
    return Grant(
        key=context.key,
        generation=stored.generation,
        job_uid=context.job.uid,
        leader=leader.report.member,
        leader_port=leader.report.port,
        world=World(stored.world) if stored.world else None,
        world_number=stored.world_number,
        expected=stored.newest,
        # Whole seconds: a message that changes with each decision would be sent with each decision. 0 to the end, so
        # that a saved group stays as it is until its pods are gone.
        save_within=float(int(save_left(context, stored) or 0.0)) if going else None,
        want=_want(stored.phase),
        why=stored.why,
        timing=context.spec.timing,
    )


def _want(phase: Phase) -> Want:
    if phase in OVER:
        return Want.IDLE
    return Want.UNTOUCHED if phase is Phase.UNGUARDED else Want.RUN


def _deletions(context: Context, stored: GroupStatus) -> Iterator[DeletePod]:
    pending = stored.pending
    for uid in dict.fromkeys((*pending.uids, *pending.force)) if pending is not None else ():
        seen = context.view.pods.get(uid)
        if pending is None or seen is None or seen.pod.key != context.key:
            continue
        force = uid in pending.force
        if force or not seen.pod.deleting:
            yield _delete(seen.pod, force=force, foreground=pending.kind is DeleteKind.RECREATE)


def _delete(pod: Pod, *, force: bool, foreground: bool = True) -> DeletePod:
    return DeletePod(pod.key.namespace, pod.name, pod.uid, force, foreground and pod.index == 0)


def _misplaced(context: Context, stored: GroupStatus, seen: SeenPod) -> bool:
    """A pod that was created with an avoid list of before, and waits in vain or landed where it must not."""
    pod = seen.pod
    if pod.deleting or pod.uid in stored.world_uids or not pod.injected or stored.phase in OVER:
        return False
    if not context.job.isolated and stored.world:
        return False  # deleting it would cost the running group
    if pod.index == 0 and stored.world:
        return False
    waits_in_vain = pod.unschedulable and bool(set(pod.avoid) - context.avoided)
    landed_wrong = pod_is_bad_elsewhere(pod, stored, context.avoided) and pod.node not in pod.avoid
    return waits_in_vain or (landed_wrong and context.held is None)


def scaling(job: Job, spec: GuardSpec, stored: GuardStatus) -> ScaleJob | None:
    """A job that is over gives its nodes back: when complete, or given up with `onGiveUp: release`."""
    groups = [stored.group(index) for index in range(job.replicas)]
    if not groups or stored.job_uid != job.uid or any(group.phase not in OVER for group in groups):
        return None
    gave_up = any(group.phase is Phase.GAVE_UP for group in groups)
    if gave_up and spec.on_give_up is not OnGiveUp.RELEASE:
        return None
    return ScaleJob(job.key, 0, job.resource_version)


def reset(stored: GuardStatus, job: Job, spec_generation: int) -> GuardStatus:
    """The status this job starts from.

    Another LWS of the same name keeps nothing but the generations (C10); an edited spec tries again what had been
    given up.
    """
    if stored.job_uid != job.uid:
        groups = tuple(GroupStatus(group=g.group, generation=g.generation) for g in stored.groups)
        return GuardStatus(job_uid=job.uid, groups=groups)
    if stored.observed_generation == spec_generation:
        return stored
    return replace(stored, groups=tuple(_try_again(group) for group in stored.groups))


def _try_again(group: GroupStatus) -> GroupStatus:
    if group.phase is not Phase.GAVE_UP:
        return group
    return replace(group, phase=Phase.PENDING, why="the spec was edited", leader_uid="", recreations=())
