"""The vocabulary: small frozen values that every part speaks in. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, Self

GUARD_LABEL: Final = "rlguard.io/guard"
"""Pod-template label that opts a job in; the only value is `enabled`."""

PORT_OF_AGENT: Final = 7443
"""The agent's one port on its node's address."""


class Incarnation(NamedTuple):
    """One start of a group's ranks: ordered, never used twice.

    `generation` counts lives of the leader pod (given by the controller), `attempt` starts within one life (counted by
    the coordinator). Attempt 0 means: generation known, nothing started yet.
    """

    generation: int
    attempt: int

    def __str__(self) -> str:
        return f"{self.generation}.{self.attempt}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `"3.2"`. Raises ValueError on anything else."""
        if not re.fullmatch(r"[0-9]{1,18}\.[0-9]{1,18}", text):
            raise ValueError(f"not an incarnation: {text!r} (expected GENERATION.ATTEMPT, like 3.2)")
        generation, attempt = text.split(".")
        return cls(int(generation), int(attempt))


class CheckpointId(NamedTuple):
    """A checkpoint's name, ordered by incarnation first: after a roll-back a later step may be the older truth."""

    incarnation: Incarnation
    step: int

    def __str__(self) -> str:
        return f"{self.step}@{self.incarnation}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `"120@3.2"`. Raises ValueError on anything else."""
        step, sign, incarnation = text.partition("@")
        if not sign or not re.fullmatch(r"[0-9]{1,18}", step):
            raise ValueError(f"not a checkpoint name: {text!r} (expected STEP@GENERATION.ATTEMPT, like 120@3.2)")
        return cls(Incarnation.parse(incarnation), int(step))


class GroupKey(NamedTuple):
    """One LWS replica: namespace, LWS name, group index."""

    namespace: str
    job: str
    group: int

    def __str__(self) -> str:
        return f"{self.namespace}/{self.job}/{self.group}"


@dataclass(frozen=True, slots=True)
class Member:
    """One pod of a group. `uid` tells apart two lives of the same name; `address` is the pod's IP."""

    index: int
    uid: str
    pod: str
    node: str
    address: str


@dataclass(frozen=True, slots=True)
class World:
    """The members that train in one incarnation, in rank order; the first one hosts the master."""

    members: tuple[Member, ...]

    @property
    def uids(self) -> frozenset[str]:
        """The pod UIDs of all members."""
        return frozenset(member.uid for member in self.members)


class Severity(StrEnum):
    """How bad a fault is for the work on the node."""

    INFO = "info"
    WARNING = "warning"
    FATAL = "fatal"


class Scope(StrEnum):
    """What a fault takes away."""

    PROCESS = "process"
    GPU = "gpu"
    NVSWITCH = "nvswitch"
    NIC = "nic"
    NODE = "node"


class Repair(StrEnum):
    """What mends a fault."""

    NONE = "none"
    RESTART_PROCESS = "restart-process"
    RESET_GPU = "reset-gpu"
    REBOOT = "reboot"
    REPLACE = "replace"
    FIX_PROGRAM = "fix-program"


class Verdict(StrEnum):
    """What the agent concludes about its node. Blind is UNKNOWN, never HEALTHY."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    LEAVING = "leaving"
    LOST = "lost"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Notice:
    """What an agent (or a terminating pod) tells the sidecars.

    `id` is stable for one fault on one boot, `code` names it (`xid-79`, `spot-reclaim`, `pod-terminating`),
    `seconds_left` is the time until the deadline counted from when the message was sent, None without a deadline:
    deadlines never travel as clock times, because no rule compares two machines' clocks.
    """

    id: str
    code: str
    severity: Severity
    scope: Scope
    repair: Repair
    detail: str
    seconds_left: float | None = None


class Phase(StrEnum):
    """Where a group is, as its Guard shows it."""

    PENDING = "Pending"  # members missing
    STARTING = "Starting"  # ranks ordered, first step not seen
    RUNNING = "Running"
    SAVING = "Saving"  # an ordered stage and flush before ranks stop
    STOPPING = "Stopping"  # old ranks are being taken down
    WAITING = "Waiting"  # for a grant of the controller: a changed world
    RECREATING = "Recreating"
    COMPLETED = "Completed"
    GAVE_UP = "GaveUp"
    BLOCKED = "Blocked"  # nothing more can be done without a person; `why` says what
    UNGUARDED = "Unguarded"


class Rung(StrEnum):
    """The recovery ladder, cheapest first."""

    IN_PLACE = "in-place"
    SHRINK = "shrink"
    REPLACE = "replace"  # same size, one member's pod new
    GROW = "grow"
    RECREATE = "recreate"
    RESIZE = "resize"
    GIVE_UP = "give-up"


@dataclass(frozen=True, slots=True)
class Incident:
    """One recovery, from what broke to the first new step. Times are Unix seconds of the reporter's own clock.

    They are shown to people and never compared by a rule.
    """

    id: str
    fault: str
    detail: str
    detected_at: float
    decision: Rung
    why: str
    decided_at: float
    resumed: CheckpointId | None = None
    lost_steps: int | None = None
    first_step_at: float | None = None
