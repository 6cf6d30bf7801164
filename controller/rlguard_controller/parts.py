"""The containers and volumes that rlguard adds to a pod. Pure: plain Kubernetes JSON in and out.

Names and paths are those of `docs/contracts.md`, "In a guarded pod".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

Json = dict[str, Any]

INSTALL: Final = "rlguard-install"
SIDECAR: Final = "rlguard-sidecar"
_MOUNT: Final[tuple[str, ...]] = ("name", "mountPath", "subPath")
CONTAINERS: Final = (INSTALL, SIDECAR)
LIB, RUN, SHM = "rlguard-lib", "rlguard-run", "rlguard-shm"
STATE, TOKEN = "rlguard-state", "rlguard-token"
VOLUMES: Final = (LIB, RUN, SHM, STATE, TOKEN)
HOME: Final = "/rlguard"
"""Everything of ours in a trainer container lies under this folder."""
AUDIENCE: Final = "rlguard"
LAUNCH: Final = ("python3", f"{HOME}/lib/rlguard/launch/__main__.py", "--")

NON_ROOT: Final = 65532
"""The user of our containers when the pod forbids root and names nobody: kubelet would refuse to start them."""
FOLLOWED: Final = ("runAsUser", "runAsGroup", "runAsNonRoot", "seccompProfile", "seLinuxOptions", "appArmorProfile")
"""What our containers take over from the trainer's security context, so that they pass where it passes."""


def volumes() -> list[Json]:
    """The volumes rlguard adds. The shared memory has no size limit: what fits is found out at run time."""
    token = {"serviceAccountToken": {"audience": AUDIENCE, "expirationSeconds": 3600, "path": "token"}}
    return [
        {"name": LIB, "emptyDir": {}},
        {"name": RUN, "emptyDir": {}},
        {"name": SHM, "emptyDir": {"medium": "Memory"}},
        {"name": STATE, "emptyDir": {}},
        {"name": TOKEN, "projected": {"sources": [token]}},
    ]


def trainer_mounts() -> list[Json]:
    """What the trainer sees of ours: no token among it."""
    return [
        {"name": LIB, "mountPath": f"{HOME}/lib", "readOnly": True},
        {"name": RUN, "mountPath": f"{HOME}/run"},
        {"name": SHM, "mountPath": f"{HOME}/shm"},
    ]


def sidecar_mounts(shared: Iterable[Json]) -> list[Json]:
    """The sidecar's mounts: ours, its token, and the user's shared volumes at the same paths, writable."""
    theirs: list[Json] = [{key: mount[key] for key in _MOUNT if key in mount} for mount in shared]
    ours: list[Json] = [
        {"name": RUN, "mountPath": f"{HOME}/run"},
        {"name": SHM, "mountPath": f"{HOME}/shm"},
        {"name": STATE, "mountPath": "/run/rlguard"},
        {"name": TOKEN, "mountPath": "/var/run/secrets/rlguard", "readOnly": True},
    ]
    return ours + theirs


def install_container(image: Json, security: Json, resources: Json) -> Json:
    """Copies the launcher and the hook into the pod, so that the user's image needs nothing of ours."""
    return {
        "name": INSTALL,
        **image,
        "command": ["python3", "-m", "rlguard.launch.install", f"{HOME}/lib"],
        "volumeMounts": [{"name": LIB, "mountPath": f"{HOME}/lib"}],
        "securityContext": security,
        "resources": resources,
    }


def sidecar_container(
    image: Json, environment: list[Json], mounts: list[Json], security: Json, resources: Json
) -> Json:
    """The native sidecar. No probe and no port: a failing probe would restart it, which costs the group."""
    return {
        "name": SIDECAR,
        **image,
        "restartPolicy": "Always",
        "command": ["python3", "-m", "rlguard_sidecar.supervisor"],
        "env": environment,
        "volumeMounts": mounts,
        "securityContext": security,
        "resources": resources,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def variables(values: Mapping[str, str]) -> list[Json]:
    """Environment entries with literal values; a `$` is doubled, because kubelet expands `$(NAME)`."""
    return [{"name": name, "value": value.replace("$", "$$")} for name, value in values.items()]


def downward(fields: Mapping[str, str]) -> list[Json]:
    """Environment entries that kubelet fills in from the pod's own fields."""
    return [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()]


def security_of(spec: Mapping[str, Any], trainer: Mapping[str, Any]) -> Json:
    """Least rights that still reach the trainer's files: its own user, and no more than what that user may do."""
    of_pod, own = spec.get("securityContext") or {}, trainer.get("securityContext") or {}
    followed = {key: own[key] for key in FOLLOWED if key in own}
    both = {**of_pod, **followed}
    user = both.get("runAsUser")
    if user is None and both.get("runAsNonRoot"):
        user = followed["runAsUser"] = NON_ROOT
    capabilities: Json = {"drop": ["ALL"]}
    if not user:
        # Root without this may not write a folder that belongs to somebody else; the trainer's root may.
        capabilities["add"] = ["DAC_OVERRIDE"]
        followed["runAsUser"] = 0
    return {**followed, "allowPrivilegeEscalation": False, "capabilities": capabilities}


def resources_of(containers: Sequence[Mapping[str, Any]]) -> Json:
    """Small requests and an ample limit; requests equal to limits where the pod is Guaranteed.

    A trainer pinned to its own CPUs (kubelet's static CPU policy) would lose them with the Guaranteed class.
    """
    if containers and all(_is_guaranteed(container) for container in containers):
        fixed = {"cpu": "500m", "memory": "2Gi"}
        return {"requests": fixed, "limits": dict(fixed)}
    return {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "4Gi"}}


def _is_guaranteed(container: Mapping[str, Any]) -> bool:
    resources = container.get("resources") or {}
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    return all(name in limits and requests.get(name, limits[name]) == limits[name] for name in ("cpu", "memory"))
