"""Kubernetes objects as the facts the core knows, and the paths under which they live. Pure.

Labels and annotations are those of LWS (leaderworkerset.sigs.k8s.io) and of `docs/contracts.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rlguard.cluster.facts import Guard, Job, JobKey, Kind, KubeletLease, Node, Pod, Taint, Thing
from rlguard.cluster.status import parse_status
from rlguard.model import GUARD_LABEL, GroupKey
from rlguard_controller.mutate import AVOID, INJECTED, UNGUARDED

Json = dict[str, Any]

LWS: Final = "leaderworkerset.sigs.k8s.io"
LWS_API: Final = "leaderworkerset.x-k8s.io/v1"
GUARD_API: Final = "rlguard.io/v1alpha1"
ENABLED: Final = "enabled"
ORDINARY_WAITS: Final = ("ContainerCreating", "PodInitializing")
WAITS_LENGTH: Final = 300


def guard_path(key: JobKey) -> str:
    """A job's Guard."""
    return f"/apis/{GUARD_API}/namespaces/{key.namespace}/guards/{key.name}"


def node_path(name: str) -> str:
    """A Node."""
    return f"/api/v1/nodes/{name}"


def job_path(key: JobKey) -> str:
    """A job's LWS."""
    return f"/apis/{LWS_API}/namespaces/{key.namespace}/leaderworkersets/{key.name}"


def pod_path(namespace: str, name: str) -> str:
    """A pod."""
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def job_of(thing: Json) -> Job | None:
    """An LWS as a fact."""
    meta, spec = thing["metadata"], thing["spec"]
    template = spec.get("leaderWorkerTemplate") or {}
    # The webhook of LWS turns the deprecated "Default" into None.
    isolated = template.get("restartPolicy", "RecreateGroupOnPodRestart") in ("None", "Default")
    return Job(
        key=JobKey(meta["namespace"], meta["name"]),
        uid=meta["uid"],
        replicas=int(spec.get("replicas", 1)),
        size=int(template.get("size", 1)),
        isolated=isolated,
        guarded=_guarded(template) and not meta.get("deletionTimestamp"),
        resource_version=meta["resourceVersion"],
    )


def _guarded(template: Mapping[str, Any]) -> bool:
    templates = [template.get("leaderTemplate") or {}, template.get("workerTemplate") or {}]
    labels = [(part.get("metadata") or {}).get("labels") or {} for part in templates]
    return any(found.get(GUARD_LABEL) == ENABLED for found in labels)


def pod_of(thing: Json) -> Pod | None:
    """A pod as a fact; None if it does not belong to an LWS group with a numbered index."""
    meta, status = thing["metadata"], thing.get("status") or {}
    labels, notes = meta.get("labels") or {}, meta.get("annotations") or {}
    group, index = labels.get(f"{LWS}/group-index", ""), labels.get(f"{LWS}/worker-index", "")
    if not group.isdigit() or not index.isdigit() or not labels.get(f"{LWS}/name"):
        return None
    return Pod(
        key=GroupKey(meta["namespace"], labels[f"{LWS}/name"], int(group)),
        index=int(index),
        uid=meta["uid"],
        name=meta["name"],
        node=(thing.get("spec") or {}).get("nodeName") or "",
        phase=status.get("phase", ""),
        unschedulable=_condition(status, "PodScheduled") == ("False", "Unschedulable"),
        deleting=bool(meta.get("deletionTimestamp")),
        injected=INJECTED in notes,
        avoid=tuple(node for node in notes.get(AVOID, "").split(",") if node),
        refused=UNGUARDED in notes,
        waits=_waits(status),
    )


def _waits(status: Mapping[str, Any]) -> str:
    """What the scheduler says of a pod that has no node, else the first container that cannot be started."""
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message") or condition.get("reason") or "")[:WAITS_LENGTH]
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in (None, *ORDINARY_WAITS):
            said = f"{container.get('name')}: {waiting['reason']}: {waiting.get('message', '')}"
            return said[:WAITS_LENGTH]
    return ""


def _condition(status: Mapping[str, Any], kind: str) -> tuple[str, str]:
    conditions = status.get("conditions") or ()
    return next(((c.get("status", ""), c.get("reason", "")) for c in conditions if c.get("type") == kind), ("", ""))


def node_of(thing: Json) -> Node | None:
    """A Node as a fact."""
    meta, spec, status = thing["metadata"], thing.get("spec") or {}, thing.get("status") or {}
    return Node(
        name=meta["name"],
        ready={"True": True, "False": False}.get(_condition(status, "Ready")[0]),
        boot_id=(status.get("nodeInfo") or {}).get("bootID", ""),
        labels=meta.get("labels") or {},
        taints=tuple(Taint(t["key"], t.get("value") or "", t["effect"]) for t in spec.get("taints") or ()),
        resource_version=meta.get("resourceVersion", ""),
    )


def lease_of(thing: Json) -> KubeletLease | None:
    """A kubelet's Lease as a fact."""
    return KubeletLease(thing["metadata"]["name"], (thing.get("spec") or {}).get("renewTime") or "")


def guard_of(thing: Json) -> Guard | None:
    """A Guard as a fact."""
    meta, spec = thing["metadata"], thing.get("spec")
    return Guard(
        key=JobKey(meta["namespace"], meta["name"]),
        uid=meta["uid"],
        generation=int(meta.get("generation", 1)),
        resource_version=meta["resourceVersion"],
        spec=spec if isinstance(spec, dict) else {},
        status=parse_status(thing.get("status")),
    )


@dataclass(frozen=True, slots=True)
class Source:
    """A collection to watch and how to read what is in it. `absent`: what to do where the cluster has no such kind."""

    kind: Kind
    path: str
    parse: Callable[[Json], Thing | None]
    query: Mapping[str, str] = field(default_factory=dict)
    absent: str = ""


NO_LWS: Final = (
    "LeaderWorkerSet is not installed in this cluster: install it; rlguard goes on by itself once it is there"
)
NO_GUARD: Final = "the cluster does not know Guards: apply the chart's folder crds; rlguard goes on by itself then"

SOURCES: Final = (
    Source(Kind.JOBS, f"/apis/{LWS_API}/leaderworkersets", job_of, absent=NO_LWS),
    Source(Kind.GUARDS, f"/apis/{GUARD_API}/guards", guard_of, absent=NO_GUARD),
    Source(Kind.PODS, "/api/v1/pods", pod_of, {"labelSelector": f"{GUARD_LABEL}={ENABLED}"}),
    Source(Kind.NODES, "/api/v1/nodes", node_of),
    Source(Kind.LEASES, "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", lease_of),
)
"""All that the controller watches."""
