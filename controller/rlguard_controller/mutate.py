"""What injection makes of a pod: pod and context in, a JSON patch (RFC 6902) or the reason for leaving it alone out.

Pure, and a fixed point: injecting an injected pod again changes nothing, so the API server may call as often as it
likes. Nothing of the user's is removed; the trainer keeps its security context, network and resources.
"""

from __future__ import annotations

import copy
import hashlib
import json
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rlguard.errors import BadConfigError
from rlguard.model import PORT_OF_AGENT
from rlguard.policy import MOST_RANKS
from rlguard_controller import parts, placement
from rlguard_controller.parts import Json

CONTAINER: Final = "rlguard.io/container"
NPROC: Final = "rlguard.io/nproc-per-node"
INJECTED: Final = "rlguard.io/injected"
AVOID: Final = "rlguard.io/avoid"
UNGUARDED: Final = "rlguard.io/unguarded"

LWS_NAME: Final = "leaderworkerset.sigs.k8s.io/name"
LWS_GROUP: Final = "leaderworkerset.sigs.k8s.io/group-index"
LWS_INDEX: Final = "leaderworkerset.sigs.k8s.io/worker-index"
LWS_SIZE: Final = "leaderworkerset.sigs.k8s.io/size"

GRACE: Final = 60
"""Seconds of termination grace a flush needs at least; a longer grace of the user's stays."""
CLUSTER_GRACE: Final = 30
"""What Kubernetes takes when a pod names none."""

_PATCHED: Final = (
    ("metadata", "annotations"),
    ("spec", "volumes"),
    ("spec", "initContainers"),
    ("spec", "tolerations"),
    ("spec", "affinity"),
    ("spec", "terminationGracePeriodSeconds"),
)


@dataclass(frozen=True, slots=True)
class Context:
    """What the injector must know beside the pod.

    `controller` is `ip:port` and never a name: pods on the host's network often cannot resolve one. `authority` is the
    PEM that the sidecar trusts. `shared_claims`: which of the pod's claims are ReadWriteMany, None if that could not be
    found out (then every claim counts). `checkpoint_path` is the Guard's `spec.checkpoint.path`.
    """

    namespace: str
    image: str
    pull_policy: str
    controller: str
    authority: str
    avoid: tuple[str, ...] = ()
    shared_claims: frozenset[str] | None = None
    checkpoint_path: str = ""
    agent_port: int = PORT_OF_AGENT
    grace: int = GRACE


@dataclass(frozen=True, slots=True)
class Refusal:
    """The pod runs as it is, unguarded, and this is why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Injection:
    """The patch that guards the pod, and what its owner should know."""

    patch: list[Json]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Place:
    """Which member of which group the pod is."""

    job: str
    group: int
    index: int
    size: int


def mutate(pod: Mapping[str, Any], context: Context) -> Injection | Refusal:
    """The patch for one pod of a guarded LWS. A pod that cannot be guarded gets a Refusal, never half a guard."""
    try:
        guarded, warnings = _guard(pod, context)
    except BadConfigError as error:
        return Refusal(str(error))
    return Injection(difference(pod, guarded), warnings)


def mark_unguarded(pod: Mapping[str, Any], reason: str) -> list[Json]:
    """The patch that leaves the pod alone but writes down why."""
    annotations = {**(pod["metadata"].get("annotations") or {}), UNGUARDED: reason}
    return [{"op": "add", "path": "/metadata/annotations", "value": annotations}]


def claims_of(pod: Mapping[str, Any]) -> frozenset[str]:
    """The names of the claims that all pods of a group could share: not those made for this pod alone."""
    name = (pod["metadata"]).get("name") or ""
    claims = (volume.get("persistentVolumeClaim") or {} for volume in pod["spec"].get("volumes") or [])
    names = (claim["claimName"] for claim in claims if "claimName" in claim)
    return frozenset(claim for claim in names if not (name and claim.endswith(f"-{name}")))


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Json]:
    """The patch from one pod to the other: whole fields, and the containers that differ."""
    patch: list[Json] = []
    for section, name in _PATCHED:
        path, old, new = f"/{section}/{name}", before[section].get(name), after[section].get(name)
        if new is None and name in before[section]:
            patch.append({"op": "remove", "path": path})
        elif new != old:
            patch.append({"op": "add", "path": path, "value": new})
    pairs = zip(before["spec"]["containers"], after["spec"]["containers"], strict=True)
    changed = [(number, new) for number, (old, new) in enumerate(pairs) if new != old]
    return patch + [{"op": "replace", "path": f"/spec/containers/{number}", "value": new} for number, new in changed]


def _guard(pod: Mapping[str, Any], context: Context) -> tuple[Json, tuple[str, ...]]:
    place = _place(pod["metadata"], pod["metadata"].get("annotations") or {})
    result: Json = copy.deepcopy(dict(pod))
    spec, annotations = result["spec"], dict(result["metadata"].get("annotations") or {})
    trainer = _trainer(spec["containers"], annotations)
    command = _command(trainer)
    _check_paths(trainer)
    shared = _shared_mounts(pod, trainer, context.shared_claims)
    root, warnings = _root(shared, place, context)
    ranks, more = _ranks(annotations)
    users_init = [c for c in spec.get("initContainers") or [] if c["name"] not in parts.CONTAINERS]
    resources = parts.resources_of([*users_init, *spec["containers"]])
    spec["terminationGracePeriodSeconds"] = max(
        spec.get("terminationGracePeriodSeconds") or CLUSTER_GRACE, context.grace
    )
    environment = _environment(place, context, root, spec["terminationGracePeriodSeconds"])
    own = _containers(spec, trainer, context, resources, environment, parts.sidecar_mounts(shared))
    spec["initContainers"] = own + users_init
    spec["volumes"] = [v for v in spec.get("volumes") or [] if v["name"] not in parts.VOLUMES] + parts.volumes()
    _wrap(trainer, command, ranks)
    annotations.pop(UNGUARDED, None)
    _put_elsewhere(spec, annotations, placement.usable(context.avoid))
    annotations[INJECTED] = _digest([own, trainer, spec["volumes"], annotations[AVOID]])
    result["metadata"]["annotations"] = annotations
    return result, (*warnings, *more)


def _place(metadata: Mapping[str, Any], annotations: Mapping[str, str]) -> _Place:
    labels = metadata.get("labels") or {}
    if not labels.get(LWS_NAME):
        raise BadConfigError(f"no label {LWS_NAME}: only pods of a LeaderWorkerSet can be guarded")
    return _Place(
        job=labels[LWS_NAME],
        group=_whole(labels, "label", LWS_GROUP),
        index=_whole(labels, "label", LWS_INDEX),
        size=_whole(annotations, "annotation", LWS_SIZE),
    )


def _whole(values: Mapping[str, str], kind: str, name: str) -> int:
    value = values.get(name)
    # Later versions of LWS may name groups by a hash; guessing a number for one would mix up two groups' checkpoints.
    if value is None or not (value.isascii() and value.isdigit() and len(value) < 10):  # noqa: PLR2004 - int32
        raise BadConfigError(
            f"{kind} {name} is {value!r}, not a number: is the LWS webhook running, its version known?"
        )
    return int(value)


def _trainer(containers: Sequence[Json], annotations: Mapping[str, str]) -> Json:
    """The container that trains: the annotated one, or the one named `trainer`, or the only one."""
    by_name: dict[str, Json] = {container["name"]: container for container in containers}
    wanted = annotations.get(CONTAINER)
    if wanted is not None and wanted not in by_name:
        raise BadConfigError(f"annotation {CONTAINER}: no container {wanted!r}, only {', '.join(sorted(by_name))}")
    if wanted is None and len(by_name) > 1 and "trainer" not in by_name:
        raise BadConfigError(f"several containers and none named trainer: say which one with annotation {CONTAINER}")
    return by_name[wanted or ("trainer" if "trainer" in by_name else containers[0]["name"])]


def _command(trainer: Mapping[str, Any]) -> list[str]:
    """The user's command and arguments, unwrapped if the pod was injected before."""
    command, arguments = list(trainer.get("command") or []), list(trainer.get("args") or [])
    if tuple(command) == parts.LAUNCH:
        command = []
    elif not command:
        raise BadConfigError(
            f"container {trainer['name']} has no command: its image's own entrypoint is not known here"
        )
    return command + arguments


def _check_paths(trainer: Mapping[str, Any]) -> None:
    for mount in trainer.get("volumeMounts") or []:
        path = posixpath.normpath(mount["mountPath"])
        if mount["name"] not in parts.VOLUMES and (path == parts.HOME or path.startswith(f"{parts.HOME}/")):
            raise BadConfigError(
                f"container {trainer['name']} mounts {mount['name']} at {path}: that folder is rlguard's"
            )


def _shared_mounts(pod: Mapping[str, Any], trainer: Mapping[str, Any], rwx: frozenset[str] | None) -> list[Json]:
    """The trainer's writable mounts of volumes that all pods of the group share.

    Not those with a subPathExpr: it is expanded from the trainer's own environment.
    """
    claims = claims_of(pod) if rwx is None else claims_of(pod) & rwx
    shared = {v["name"] for v in pod["spec"].get("volumes") or [] if _claim(v) in claims or "nfs" in v}
    mounts: list[Json] = trainer.get("volumeMounts") or []
    return [m for m in mounts if m["name"] in shared and not m.get("readOnly") and not m.get("subPathExpr")]


def _claim(volume: Mapping[str, Any]) -> str | None:
    claim: Mapping[str, Any] = volume.get("persistentVolumeClaim") or {}
    name = claim.get("claimName")
    return None if claim.get("readOnly") or name is None else str(name)


def _root(shared: Sequence[Json], place: _Place, context: Context) -> tuple[str, tuple[str, ...]]:
    """The checkpoint root, or an empty string and why there is none."""
    path = _root_volume(shared, context.checkpoint_path)
    if path is not None:
        return posixpath.join(path, ".rlguard", context.namespace, place.job, str(place.group)), ()
    what = "no" if not shared else "more than one"
    if context.checkpoint_path:
        why = f"spec.checkpoint.path {context.checkpoint_path} is on no writable ReadWriteMany volume of the trainer"
    else:
        why = f"{what} writable ReadWriteMany volume in the trainer and no spec.checkpoint.path in its Guard"
    return "", (f"NoCheckpointRoot: {why}; recovery from memory only",)


def _root_volume(shared: Sequence[Json], wanted: str) -> str | None:
    paths = [posixpath.normpath(str(mount["mountPath"])) for mount in shared]
    if wanted:
        wanted = posixpath.normpath(wanted)
        return wanted if any(wanted == path or wanted.startswith(f"{path}/") for path in paths) else None
    if len({mount["name"] for mount in shared}) != 1:
        return None
    # One volume at several places: the whole of it before a part of it, then by name, alike in leader and workers.
    parts_last = sorted((bool(mount.get("subPath")), path) for mount, path in zip(shared, paths, strict=True))
    return parts_last[0][1]


def _ranks(annotations: Mapping[str, str]) -> tuple[int | None, tuple[str, ...]]:
    value = annotations.get(NPROC)
    if value is None:
        return None, ()
    if value.isascii() and value.isdigit() and len(value) < 5 and 1 <= int(value) <= MOST_RANKS:  # noqa: PLR2004 - digits
        return int(value), ()
    return None, (f"annotation {NPROC}: {value!r:.40} is not a number from 1 to {MOST_RANKS}; ignored",)


def _environment(place: _Place, context: Context, root: str, grace: int) -> list[Json]:
    fields = {
        "RLGUARD_NAMESPACE": "metadata.namespace",
        "RLGUARD_POD": "metadata.name",
        "RLGUARD_POD_UID": "metadata.uid",
        "RLGUARD_NODE": "spec.nodeName",
        "RLGUARD_HOST_IP": "status.hostIP",
        "RLGUARD_POD_IP": "status.podIP",
    }
    values = {
        "RLGUARD_JOB": place.job,
        "RLGUARD_GROUP": str(place.group),
        "RLGUARD_INDEX": str(place.index),
        "RLGUARD_SIZE": str(place.size),
        "RLGUARD_CONTROLLER": context.controller,
        "RLGUARD_CA": context.authority,
        "RLGUARD_ROOT": root,
        "RLGUARD_AGENT_PORT": str(context.agent_port),
        "RLGUARD_GRACE": str(grace),
    }
    return parts.downward(fields) + parts.variables(values)


def _containers(
    spec: Json, trainer: Json, context: Context, resources: Json, environment: list[Json], mounts: list[Json]
) -> list[Json]:
    image = {"image": context.image, "imagePullPolicy": context.pull_policy}
    security = parts.security_of(spec, trainer)
    return [
        parts.install_container(image, security, resources),
        parts.sidecar_container(image, environment, mounts, security, resources),
    ]


def _wrap(trainer: Json, command: list[str], ranks: int | None) -> None:
    """Make the launcher the trainer's first process; what the user wrote follows it unchanged."""
    trainer["command"], trainer["args"] = list(parts.LAUNCH), command
    values = {"RLGUARD_RUN": f"{parts.HOME}/run", "RLGUARD_SHM": f"{parts.HOME}/shm"}
    if ranks is not None:
        values["RLGUARD_NPROC_PER_NODE"] = str(ranks)
    theirs = [entry for entry in trainer.get("env") or [] if entry["name"] not in values]
    trainer["env"] = theirs + parts.variables(values)
    mounts = [mount for mount in trainer.get("volumeMounts") or [] if mount["name"] not in parts.VOLUMES]
    trainer["volumeMounts"] = mounts + parts.trainer_mounts()


def _put_elsewhere(spec: Json, annotations: dict[str, str], avoid: tuple[str, ...]) -> None:
    spec["tolerations"] = placement.patient(spec.get("tolerations") or [])
    before = [node for node in annotations.get(AVOID, "").split(",") if node]
    affinity = placement.avoiding(spec.get("affinity"), before, avoid)
    spec.pop("affinity", None)
    if affinity is not None:
        spec["affinity"] = affinity
    annotations[AVOID] = ",".join(avoid)


def _digest(injected: list[Any]) -> str:
    return hashlib.sha256(json.dumps(injected, sort_keys=True).encode()).hexdigest()[:16]
