"""What the controller does to the world: data, each safe to do twice. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from rlguard.cluster.facts import JobKey
from rlguard.cluster.status import GuardStatus
from rlguard.messages import Grant


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes Event on the Guard and its LWS. `warning`: type Warning instead of Normal."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class EnsureGuard:
    """Create a Guard with defaults, owned by the LWS with this UID. One that exists stays as it is."""

    key: JobKey
    job_uid: str


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Write the status if the Guard still has this resource version; then, and only then, tell the events."""

    key: JobKey
    uid: str
    job_uid: str
    resource_version: str
    status: GuardStatus
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class TellGrant:
    """Say this to the sidecar of the pod with this UID, now and whenever it calls again."""

    uid: str
    grant: Grant


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete the pod if it still has this UID.

    `force`: at once, because its node is proven lost. `foreground`: a leader, together with what it owns.
    `nothing_to_save`: no sidecar and no launcher are in it that would need its termination grace.
    """

    namespace: str
    name: str
    uid: str
    force: bool
    foreground: bool
    nothing_to_save: bool = False


@dataclass(frozen=True, slots=True)
class ScaleJob:
    """Set the LWS's replicas if it still has this resource version."""

    key: JobKey
    replicas: int
    resource_version: str


@dataclass(frozen=True, slots=True)
class AddTaint:
    """Put our taint with this value on a Node if it still has this resource version. `first`: it has no taint yet."""

    node: str
    resource_version: str
    value: str
    first: bool
    reason: str


@dataclass(frozen=True, slots=True)
class RemoveTaint:
    """Take our taint off a Node if it still has this resource version; there it is at `place` in the list, from 0."""

    node: str
    resource_version: str
    place: int
    reason: str


Action = EnsureGuard | WriteStatus | TellGrant | DeletePod | ScaleJob | AddTaint | RemoveTaint
