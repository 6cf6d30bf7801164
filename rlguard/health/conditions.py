"""What others have written onto this machine's Node object: conditions, taints, the cordon, its deletion. Pure.

Of the conditions only those that this table names count; they are faults for as long as they stand. The GPU ones are
written by Tencent's NPDPlus (document 457/127502 and following).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from rlguard.health.catalogue import Rating
from rlguard.health.faults import NODE, Fault
from rlguard.health.remediators import acting_on, taint_keys
from rlguard.model import Repair, Scope, Severity

OURS: Final = "rlguard.io/Healthy"
"""The condition that the agent writes; never read back."""
CORDONED: Final = "node-cordoned"
DELETING: Final = "node-deleting"
OUT_OF_SERVICE: Final = "node-out-of-service"
OUT_OF_SERVICE_TAINT: Final = "node.kubernetes.io/out-of-service"
"""Put on by a person (or their tool) who knows that the machine is down or not coming back (Kubernetes documentation,
non-graceful node shutdown): its pods are deleted by force."""

_FATAL_GPU: Final = (Severity.FATAL, Scope.GPU, Repair.REBOOT)
_WARNING_GPU: Final = (Severity.WARNING, Scope.GPU, Repair.NONE)
_PRESSURE: Final = (Severity.WARNING, Scope.NODE, Repair.NONE)

TRUE_IS_BAD: Final[Mapping[str, Rating]] = {
    "GPUXIDFatalError": _FATAL_GPU,
    "GPUDeviceLost": _FATAL_GPU,
    "GPUDoubleBitEccError": (Severity.FATAL, Scope.GPU, Repair.RESET_GPU),
    "GPUNvlinkError": _WARNING_GPU,
    "GPUPCIeError": _WARNING_GPU,
    "GPUPendingRetiredPages": (Severity.WARNING, Scope.GPU, Repair.RESET_GPU),
    "GPUXIDWarningError": _WARNING_GPU,
    "GPUHighSingleBitEccError": _WARNING_GPU,
    "GPUInfoROMCorrupted": (Severity.WARNING, Scope.GPU, Repair.REPLACE),
    "GPUPowerError": _WARNING_GPU,
    "GPURemappingRowsError": (Severity.WARNING, Scope.GPU, Repair.RESET_GPU),
    "GPUTempError": _WARNING_GPU,
    "ReadonlyFilesystem": (Severity.WARNING, Scope.NODE, Repair.REBOOT),
    "KernelDeadlock": (Severity.WARNING, Scope.NODE, Repair.REBOOT),
    "MemoryPressure": _PRESSURE,
    "DiskPressure": _PRESSURE,
    "PIDPressure": _PRESSURE,
    "NetworkUnavailable": (Severity.WARNING, Scope.NODE, Repair.NONE),
}
"""Condition type -> how bad it is when its status is "True"."""


def read_node(node: Any) -> tuple[Fault, ...] | None:
    """What a Node object (as JSON) says against the node, None if it is no Node object. Never raises."""
    if not isinstance(node, dict) or not isinstance(node.get("metadata"), dict):
        return None
    found = [fault for raw in _conditions(node) if (fault := _condition(raw)) is not None]
    return tuple({fault.code: fault for fault in (*found, *_marked(node), *acting_on(node))}.values())


def _marked(node: Mapping[str, Any]) -> Iterable[Fault]:
    """What is said of the whole node by a field or a taint."""
    spec = node.get("spec")
    if isinstance(spec, dict) and spec.get("unschedulable") is True:
        yield Fault(CORDONED, NODE, Severity.INFO, Scope.NODE, Repair.NONE, "the node is cordoned")
    if OUT_OF_SERVICE_TAINT in taint_keys(node):
        said = "the node is marked as out of service"
        yield Fault(OUT_OF_SERVICE, NODE, Severity.FATAL, Scope.NODE, Repair.REPLACE, said)
    if node["metadata"].get("deletionTimestamp"):
        # No deadline: the pods are evicted one by one, and each is told its own.
        said = "the Node object is being deleted"
        yield Fault(DELETING, NODE, Severity.WARNING, Scope.NODE, Repair.REPLACE, said)


def _conditions(node: Mapping[str, Any]) -> list[Any]:
    status = node.get("status")
    conditions = status.get("conditions") if isinstance(status, dict) else None
    return conditions if isinstance(conditions, list) else []


def _condition(raw: Any) -> Fault | None:
    kind = raw.get("type") if isinstance(raw, dict) else None
    if not isinstance(kind, str) or kind not in TRUE_IS_BAD or raw.get("status") != "True":
        return None
    severity, scope, repair = TRUE_IS_BAD[kind]
    detail = f"condition {kind}: {raw.get('reason')}: {raw.get('message')}"[:300]
    return Fault(f"condition-{kind}", NODE, severity, scope, repair, detail)
