"""What a person may set, typed and checked: the `spec` of a Guard. Pure.

Every field has its unit in its name or docstring, a default that is safe, and a range; `parse_spec` names the field
that is wrong. The same ranges stand as CEL rules in the CRD; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from rlguard.errors import BadConfigError
from rlguard.messages import Timing

HEARTBEAT: Final = 1.0
"""Every process repeats its snapshot this often, in seconds."""
SUSPECT: Final = 5.0
"""A peer silent for so long is suspected; nothing is decided on it alone."""
T_SELF: Final = 15.0
"""A worker with proof that it is cut off from coordinator and controller kills its own ranks after this (A5)."""
NODE_LOST: Final = T_SELF + 5.0
"""The controller's silence limit for a node, longer than `T_SELF`: a cut-off worker has stopped by then (A4)."""
FAIL_OPEN: Final = 120.0
"""Without a controller for so long at the first start, and nothing to resume: run the user's command untouched (A9)."""
SAVE_LIMIT: Final = 120.0
"""How long a save without a deadline may take, in seconds, before the ranks are stopped without it."""
LEAVE_MARGIN: Final = 5.0
"""Seconds that the coordinator keeps free before a deadline, for stopping the ranks."""
MOST_RANKS: Final = 1024
"""Local ranks of one pod; more is a mistake of the job, or a trainer that means ill."""
REPLACE_WAIT: Final = 20.0
"""How long a group waits for a replacement pod that can still be scheduled before it goes on smaller."""


class OnGiveUp(StrEnum):
    """What happens to the pods when the budget is spent: kept, idle, for a person to look; or scaled to 0."""

    HOLD = "hold"
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class Elastic:
    """How many members a group may train with. `min_members` 0 means: its full size, no shrinking."""

    min_members: int = 0


@dataclass(frozen=True, slots=True)
class CheckpointPolicy:
    """Where and how often state is made safe.

    `path`: a folder on one of the trainer's RWX volumes; empty: the only one it has. `stage_interval_seconds`: copy to
    local memory, which bounds the steps lost to a crash. `flush_interval_seconds`: commit to the shared file system,
    which bounds the steps lost with a node. `keep`: committed checkpoints of the chain that stay; what a lineage
    record began from stays besides.
    """

    path: str = ""
    stage_interval_seconds: float = 30.0
    flush_interval_seconds: float = 120.0
    keep: int = 3


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When to stop trying: `attempts` in `window_seconds`, or `same_step_limit` failures at one step."""

    attempts: int = 20
    window_seconds: float = 3600.0
    same_step_limit: int = 3
    stall_limit_seconds: float = 900.0
    recreations: int = 10


@dataclass(frozen=True, slots=True)
class GuardSpec:
    """The policy of one job. Defaults are what a Guard made by the controller has."""

    elastic: Elastic = field(default_factory=Elastic)
    checkpoint: CheckpointPolicy = field(default_factory=CheckpointPolicy)
    restart: RestartPolicy = field(default_factory=RestartPolicy)
    on_give_up: OnGiveUp = OnGiveUp.HOLD

    @property
    def timing(self) -> Timing:
        """The part the coordinator needs."""
        return Timing(
            stage_interval=self.checkpoint.stage_interval_seconds,
            flush_interval=self.checkpoint.flush_interval_seconds,
            stall_limit=self.restart.stall_limit_seconds,
            same_step_limit=self.restart.same_step_limit,
            attempts=self.restart.attempts,
            attempts_window=self.restart.window_seconds,
            keep=self.checkpoint.keep,
        )


@dataclass(frozen=True, slots=True)
class Range:
    """A number's bounds, inclusive, and whether it is whole."""

    low: float
    high: float
    whole: bool = False


RANGES: Final[dict[str, Range]] = {
    "elastic.minMembers": Range(0, 100_000, whole=True),
    "checkpoint.stageIntervalSeconds": Range(0.1, 86_400),
    "checkpoint.flushIntervalSeconds": Range(0.1, 86_400),
    "checkpoint.keep": Range(2, 1_000, whole=True),
    "restart.attempts": Range(0, 10_000, whole=True),
    "restart.windowSeconds": Range(1, 604_800),
    "restart.sameStepLimit": Range(1, 1_000, whole=True),
    "restart.stallLimitSeconds": Range(1, 86_400),
    "restart.recreations": Range(0, 10_000, whole=True),
}


def parse_spec(spec: Mapping[str, Any] | None) -> GuardSpec:
    """The `spec` of a Guard, defaults filled in. Raises BadConfigError naming the field, its value and the range."""
    spec = {} if spec is None else spec
    if not isinstance(spec, Mapping):
        raise BadConfigError(f"spec: expected an object, got {spec!r:.60}")
    return GuardSpec(
        elastic=Elastic(min_members=int(_number(spec, "elastic.minMembers", 0))),
        checkpoint=_parse_checkpoint(spec),
        restart=_parse_restart(spec),
        on_give_up=_parse_on_give_up(spec),
    )


def _parse_checkpoint(spec: Mapping[str, Any]) -> CheckpointPolicy:
    path = _lookup(spec, "checkpoint.path")
    if path is not None and not (isinstance(path, str) and (not path or path.startswith("/"))):
        raise BadConfigError(f"spec.checkpoint.path: {path!r} is not an absolute path in the trainer container")
    return CheckpointPolicy(
        path=path or "",
        stage_interval_seconds=_number(spec, "checkpoint.stageIntervalSeconds", 30.0),
        flush_interval_seconds=_number(spec, "checkpoint.flushIntervalSeconds", 120.0),
        keep=int(_number(spec, "checkpoint.keep", 3)),
    )


def _parse_restart(spec: Mapping[str, Any]) -> RestartPolicy:
    return RestartPolicy(
        attempts=int(_number(spec, "restart.attempts", 20)),
        window_seconds=_number(spec, "restart.windowSeconds", 3600.0),
        same_step_limit=int(_number(spec, "restart.sameStepLimit", 3)),
        stall_limit_seconds=_number(spec, "restart.stallLimitSeconds", 900.0),
        recreations=int(_number(spec, "restart.recreations", 10)),
    )


def _parse_on_give_up(spec: Mapping[str, Any]) -> OnGiveUp:
    value = spec.get("onGiveUp", OnGiveUp.HOLD.value)
    try:
        return OnGiveUp(value)
    except ValueError as error:
        raise BadConfigError(f"spec.onGiveUp: {value!r} is neither hold nor release") from error


def _lookup(spec: Mapping[str, Any], path: str) -> Any:
    section, name = path.split(".")
    part = spec.get(section)
    part = {} if part is None else part
    if not isinstance(part, Mapping):
        raise BadConfigError(f"spec.{section}: expected an object, got {part!r:.60}")
    return part.get(name)


def _number(spec: Mapping[str, Any], path: str, default: float) -> float:
    value = _lookup(spec, path)
    if value is None:
        return default
    bounds = RANGES[path]
    kinds = (int,) if bounds.whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not bounds.low <= value <= bounds.high:
        kind = "a whole number" if bounds.whole else "a number"
        raise BadConfigError(f"spec.{path}: {value!r:.60} is not {kind} from {bounds.low:g} to {bounds.high:g}")
    return float(value)
