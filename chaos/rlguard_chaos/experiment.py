"""Experiments: what to break, what to watch for, and what counts as recovered. Pure.

An experiment is a YAML file that runs the same on the lab and on any cluster: it names members of a job (`leader`,
`worker`), never machines. `parse` says which field of which step is wrong and what it may be.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar

from rlguard.errors import BadConfigError
from rlguard.model import Rung

E = TypeVar("E", bound=StrEnum)


class Fault(StrEnum):
    """The chaos vocabulary: what can be done to a running job."""

    KILL_RANK = "kill-rank"  # SIGKILL to one training process
    KERNEL_LINE = "kernel-line"  # a line in a node's kernel log
    SPOT_NOTICE = "spot-notice"  # the cloud says the node will be reclaimed
    KILL_NODE = "kill-node"  # everything on the node dies without a word
    START_NODE = "start-node"  # a dead node comes back, newly booted
    REBOOT_NODE = "reboot-node"
    KILL_SIDECAR = "kill-sidecar"  # SIGKILL to the sidecar process of one pod
    RDMA_PORT_DOWN = "rdma-port-down"  # a bond of the node loses both links
    RDMA_PORT_UP = "rdma-port-up"  # they are back; a node without RDMA ports gets some
    RDMA_GID_LOST = "rdma-gid-lost"  # a bond loses its IPv4 address while its port stays active
    FINISH_JOB = "finish-job"  # ask the training script to end soon, successfully


@dataclass(frozen=True, slots=True)
class Injection:
    """One fault. `target`: `leader`, `worker`, `avoided` (all nodes on the avoid list) or a name given by `named`.

    `port`: which RDMA port of the node, counted from 0.
    """

    fault: Fault
    target: str = ""
    named: str = ""
    text: str = ""
    seconds: float | None = None
    port: int = 0


@dataclass(frozen=True, slots=True)
class Expectation:
    """What must be seen after a step's faults, each None: not asked.

    `lost_steps`: at most so many steps done again. `within`: seconds from the fault to the first new step (or, without
    a decision, to the phase). `before_deadline`: decided and saved before the notice's time was over.
    """

    within: float
    decision: Rung | None = None
    world: int | None = None
    phase: str | None = None
    lost_steps: int | None = None
    before_deadline: bool = False
    keeps_committed: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """Faults injected one after the other, then what must be seen. Without `expect` the next step follows at once."""

    inject: tuple[Injection, ...]
    expect: Expectation | None


@dataclass(frozen=True, slots=True)
class Experiment:
    """A named chain of steps on one job. `measured` is the index of the step whose figures stand in the report."""

    name: str
    title: str
    steps: tuple[Step, ...]
    measured: int = 0

    def limited(self, within: float) -> Experiment:
        """The same with no step that may take longer than so many seconds."""
        return replace(self, steps=tuple(_limited(step, within) for step in self.steps))


def _limited(step: Step, within: float) -> Step:
    if step.expect is None:
        return step
    return replace(step, expect=replace(step.expect, within=min(step.expect.within, within)))


def parse(document: Any, source: str) -> Experiment:
    """Read one YAML document. Raises BadConfigError with `source`, the place, and what may stand there."""
    top = _mapping(document, source)
    _known(top, {"name", "title", "steps", "measured"}, source)
    steps = top.get("steps")
    if not isinstance(steps, list) or not steps:
        raise BadConfigError(f"{source}: steps: expected a list with at least one step")
    parsed = tuple(_step(step, f"{source}: steps[{index}]") for index, step in enumerate(steps))
    measured = top.get("measured", 0)
    if not isinstance(measured, int) or not 0 <= measured < len(parsed):
        raise BadConfigError(f"{source}: measured: {shown(measured)} is no step's index (0 to {len(parsed) - 1})")
    return Experiment(_text(top, "name", source), _text(top, "title", source), parsed, measured)


def _step(document: Any, at: str) -> Step:
    step = _mapping(document, at)
    _known(step, {"inject", "expect"}, at)
    injections = step.get("inject", [])
    if not isinstance(injections, list):
        raise BadConfigError(f"{at}.inject: expected a list of faults")
    parsed = tuple(_injection(item, f"{at}.inject[{index}]") for index, item in enumerate(injections))
    expect = step.get("expect")
    return Step(parsed, _expectation(expect, f"{at}.expect") if expect is not None else None)


def _injection(document: Any, at: str) -> Injection:
    item = _mapping(document, at)
    _known(item, {"fault", "target", "named", "text", "seconds", "port"}, at)
    fault = _member(Fault, item.get("fault"), f"{at}.fault")
    if fault is not Fault.FINISH_JOB and not item.get("target"):
        raise BadConfigError(
            f"{at}.target: {fault} needs a target: leader, worker, avoided, or a name given with 'named'"
        )
    if fault is Fault.KERNEL_LINE and not item.get("text"):
        raise BadConfigError(f"{at}.text: kernel-line needs the line to write")
    seconds, port = _number(item, "seconds", at), _whole(item, "port", at) or 0
    target, named, text = (str(item.get(name, "")) for name in ("target", "named", "text"))
    return Injection(fault, target, named, text, seconds, port)


def _expectation(document: Any, at: str) -> Expectation:
    item = _mapping(document, at)
    _known(item, {"within", "decision", "world", "phase", "lostSteps", "beforeDeadline", "keepsCommitted"}, at)
    within = _number(item, "within", at)
    if within is None:
        raise BadConfigError(f"{at}.within: how many seconds may it take?")
    decision = item.get("decision")
    return Expectation(
        within=within,
        decision=None if decision is None else _member(Rung, decision, f"{at}.decision"),
        world=_whole(item, "world", at),
        phase=_text(item, "phase", at) if "phase" in item else None,
        lost_steps=_whole(item, "lostSteps", at),
        before_deadline=bool(item.get("beforeDeadline", False)),
        keeps_committed=bool(item.get("keepsCommitted", False)),
    )


def shown(value: Any) -> str:
    """A value of any size in a few words."""
    return reprlib.repr(value)[:60]


def _mapping(document: Any, at: str) -> Mapping[str, Any]:
    if not isinstance(document, Mapping):
        raise BadConfigError(f"{at}: expected a mapping, got {shown(document)}")
    return document


def _known(item: Mapping[str, Any], names: set[str], at: str) -> None:
    unknown = sorted(set(map(str, item)) - names)
    if unknown:
        raise BadConfigError(f"{at}: unknown field {unknown[0]!r} (known: {', '.join(sorted(names))})")


def _text(item: Mapping[str, Any], name: str, at: str) -> str:
    value = item.get(name)
    if not isinstance(value, str) or not value:
        raise BadConfigError(f"{at}: {name}: expected some text")
    return value


def _number(item: Mapping[str, Any], name: str, at: str) -> float | None:
    value = item.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 86_400:  # noqa: PLR2004 - a day
        raise BadConfigError(f"{at}.{name}: {shown(value)} is not a number of seconds from 0 to 86400")
    return float(value)


def _whole(item: Mapping[str, Any], name: str, at: str) -> int | None:
    value = item.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise BadConfigError(f"{at}.{name}: {shown(value)} is not a whole number from 0")
    return value


def _member(kind: type[E], value: Any, at: str) -> E:
    try:
        return kind(value)
    except ValueError as error:
        raise BadConfigError(f"{at}: {shown(value)} is none of: {', '.join(kind)}") from error
