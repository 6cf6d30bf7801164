"""Does what the core decided. Each thing is tried by one task at a time, and after a failure not again at once.

Nothing is written or deleted unless the Lease is ours beyond doubt; what has been written goes on being told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, Final
from uuid import uuid4

from rlguard.cluster.actions import (
    Action,
    AddTaint,
    DeletePod,
    EnsureGuard,
    Event,
    RemoveTaint,
    ScaleJob,
    TellGrant,
    WriteStatus,
)
from rlguard.cluster.facts import Fact, JobKey, Seen, Written
from rlguard.cluster.status import status_to_json
from rlguard.cluster.taints import EFFECT, KEY
from rlguard.decision import Decision
from rlguard.io.kube import JSON_PATCH, ConflictError, Json, Kube, KubeError, NotFoundError
from rlguard_controller.links import Links
from rlguard_controller.objects import GUARD_API, LWS_API, guard_of, guard_path, job_path, node_of, node_path, pod_path

PAUSE: Final = 1.0
"""Seconds before a failed action is tried again; a deletion that was accepted is repeated after `REPEAT`."""
REPEAT: Final = 3.0
IN_FLIGHT: Final = 64
BATCH: Final = 0.02
"""Seconds between two decisions: the reports of a thousand pods are then judged together."""
EVENT_LENGTH: Final = 1024
"""The API server refuses longer Event messages."""
ADDING: Final = "add taint"
COMPONENT: Final = "rlguard-controller"


class Performer:
    """Turns decisions into calls; what came of a write is told back as a fact."""

    def __init__(
        self, kube: Kube, links: Links, holding: Callable[[], bool], now: Callable[[], float], log: Any
    ) -> None:
        self.tell: Callable[[Fact], None] = _nobody
        self._kube = kube
        self._links = links
        self._holding = holding
        self._now = now
        self._log = log
        self._running: dict[Any, asyncio.Task[None]] = {}
        self._not_before: dict[Any, float] = {}
        self._why: dict[Any, str] = {}

    async def perform(self, decision: Decision) -> None:
        """Start what is to be done; returns without waiting for it, after the least pause between two decisions."""
        self._say(decision.why)
        now = self._now()
        self._not_before = {name: at for name, at in self._not_before.items() if at > now}
        # What is added in one decision fits into the shares; with more on its way already it might not.
        adding = any(name[0] == ADDING for name in self._running)
        for action in decision.actions:
            if isinstance(action, TellGrant):
                self._links.grant(action.uid, action.grant)
            elif not (adding and isinstance(action, AddTaint)):
                self._start(action)
        await asyncio.sleep(BATCH)

    async def close(self) -> None:
        """End what is under way."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _say(self, why: Any) -> None:
        reasons = dict(why) if isinstance(why, dict) else {"controller": str(why)}
        for name, reason in reasons.items():
            if self._why.get(name) != reason:
                self._log.info("decision", job=str(name), why=reason)
        self._why = reasons

    def _start(self, action: Action) -> None:
        name = _name(action)
        if name not in self._not_before and self._holding():
            self._spawn(name, self._try(name, action))

    def _spawn(self, name: Any, work: Coroutine[Any, Any, None]) -> None:
        if name in self._running or len(self._running) >= IN_FLIGHT:
            work.close()
            return
        task = asyncio.create_task(work, name=f"perform {name}")
        self._running[name] = task
        task.add_done_callback(lambda _: self._running.pop(name, None))

    async def _try(self, name: Any, action: Action) -> None:
        # A deletion stays on the list until the pod is gone; asking once in a while is enough.
        self._not_before[name] = self._now() + (REPEAT if isinstance(action, DeletePod) else PAUSE)
        try:
            await self._do(action)
        except KubeError as error:
            self._log.warning("an action failed", action=type(action).__name__, target=str(name), error=str(error))

    async def _do(self, action: Action) -> None:
        match action:
            case EnsureGuard():
                await self._ensure(action)
            case WriteStatus():
                await self._write(action)
                self._not_before.pop(_name(action), None)
            case DeletePod():
                await self._delete(action)
            case ScaleJob():
                await self._scale(action)
            case TellGrant():
                self._links.grant(action.uid, action.grant)
            case AddTaint():
                await self._add_taint(action)
            case RemoveTaint():
                await self._remove_taint(action)

    async def _ensure(self, action: EnsureGuard) -> None:
        key = action.key
        owner = {"apiVersion": LWS_API, "kind": "LeaderWorkerSet", "name": key.name, "uid": action.job_uid}
        meta = {"name": key.name, "namespace": key.namespace, "ownerReferences": [owner]}
        body = {"apiVersion": GUARD_API, "kind": "Guard", "metadata": meta, "spec": {}}
        try:
            await self._kube.create(f"/apis/{GUARD_API}/namespaces/{key.namespace}/guards", body)
        except ConflictError:
            return  # a person was faster: the watch brings it
        self._log.info("a Guard was made", job=str(key))

    async def _write(self, action: WriteStatus) -> None:
        status = status_to_json(action.status)
        # Replacing the version makes the API server refuse the patch if it is no longer the one that was read.
        patch = [
            {"op": "test", "path": "/metadata/uid", "value": action.uid},
            {"op": "replace", "path": "/metadata/resourceVersion", "value": action.resource_version},
            {"op": "add", "path": "/status", "value": status},
        ]
        try:
            answer = await self._kube.patch(f"{guard_path(action.key)}/status", patch, JSON_PATCH)
        except ConflictError:
            await self._read_again(action.key)
            return
        version = answer["metadata"]["resourceVersion"]
        self.tell(Written(self._now(), action.key, version, action.status))
        if action.events:
            # Events are told beside the next write, which must not wait for them.
            self._spawn(("events", action.key, version), self._events(action))

    async def _read_again(self, key: JobKey) -> None:
        found = await self._kube.find(guard_path(key))
        guard = guard_of(found) if found is not None else None
        if guard is not None:
            self.tell(Seen(self._now(), guard))

    async def _events(self, action: WriteStatus) -> None:
        for event in action.events:
            await self._event(action, event)

    async def _event(self, action: WriteStatus, event: Event) -> None:
        for api, kind, uid in ((GUARD_API, "Guard", action.uid), (LWS_API, "LeaderWorkerSet", action.job_uid)):
            body = _event_body(action.key, event, {"apiVersion": api, "kind": kind, "uid": uid})
            try:
                await self._kube.create(f"/api/v1/namespaces/{action.key.namespace}/events", body)
            except KubeError as error:
                self._log.warning("an Event was lost", reason=event.reason, message=event.message, error=str(error))

    async def _delete(self, action: DeletePod) -> None:
        options: Json = {"preconditions": {"uid": action.uid}}
        if action.foreground:
            options["propagationPolicy"] = "Foreground"
        if action.force or action.nothing_to_save:
            options["gracePeriodSeconds"] = 0 if action.force else 1
        try:
            await self._kube.delete(pod_path(action.namespace, action.name), options)
        except (NotFoundError, ConflictError):
            return  # that life of the pod is over already
        self._log.info("a pod was deleted", pod=action.name, uid=action.uid, force=action.force)

    async def _scale(self, action: ScaleJob) -> None:
        body = {"metadata": {"resourceVersion": action.resource_version}, "spec": {"replicas": action.replicas}}
        await self._kube.patch(f"{job_path(action.key)}/scale", body)
        self._log.info("a job was scaled", job=str(action.key), replicas=action.replicas)

    async def _add_taint(self, action: AddTaint) -> None:
        taint = {"key": KEY, "value": action.value, "effect": EFFECT}
        whole: Json = {"op": "add", "path": "/spec/taints", "value": [taint]}
        one_more: Json = {"op": "add", "path": "/spec/taints/-", "value": taint}
        if await self._change_node(action, [whole if action.first else one_more]):
            self._log.info("a node was tainted", node=action.node, value=action.value, reason=action.reason)

    async def _remove_taint(self, action: RemoveTaint) -> None:
        path = f"/spec/taints/{action.place}"
        is_ours: Json = {"op": "test", "path": f"{path}/key", "value": KEY}
        if await self._change_node(action, [is_ours, {"op": "remove", "path": path}]):
            self._log.info("a node's taint was taken off", node=action.node, reason=action.reason)

    async def _change_node(self, action: AddTaint | RemoveTaint, changes: list[Json]) -> bool:
        """True if it was done; False if the Node has changed meanwhile or is gone: the watch brings what it is now."""
        version = {"op": "replace", "path": "/metadata/resourceVersion", "value": action.resource_version}
        try:
            answer = await self._kube.patch(node_path(action.node), [version, *changes], JSON_PATCH)
        except (ConflictError, NotFoundError):
            return False
        node = node_of(answer)
        if node is not None:
            self.tell(Seen(self._now(), node))
        return True


def _nobody(_: Fact) -> None:
    """Before the driver is there, nothing is performed and so nothing told."""


def _name(action: Action) -> Any:
    match action:
        case DeletePod():
            return ("delete", action.uid, action.force)
        case TellGrant():
            return ("grant", action.uid)
        case AddTaint():
            return (ADDING, action.node)
        case RemoveTaint():
            return ("remove taint", action.node)
        case _:
            return (type(action).__name__, action.key)


def _event_body(key: JobKey, event: Event, about: Json) -> Json:
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{key.name}.{uuid4().hex[:16]}", "namespace": key.namespace},
        "involvedObject": {"namespace": key.namespace, "name": key.name, **about},
        "reason": event.reason,
        "message": event.message[:EVENT_LENGTH],
        "type": "Warning" if event.warning else "Normal",
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
    }
