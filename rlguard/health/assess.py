"""The verdict on one node: facts of the sources are folded into a view, and the view is judged at a moment. Pure.

- The same fault is one fault, however often and in whatever order it is told; its notice has one id for one boot.
- A fault that an event told is gone when its own rule says so (`faults.Clears`), at the latest with another boot, which
  is another view; one that a source looks at again and again stands as long as it is seen.
- Blind is UNKNOWN: a source that has not answered lately, and a hole in the kernel log until what the missing records
  could have told has been looked for on the devices themselves.

All moments are seconds of this machine's CLOCK_BOOTTIME.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from rlguard.decision import Decision
from rlguard.health import cloud, grouping, spot
from rlguard.health.faults import NODE, Fault, Named, Told
from rlguard.health.standing import FAULT_LIMIT, RANK, FaultKey, Standing, key_of, quiet_of, with_names, with_told
from rlguard.messages import AgentReport
from rlguard.model import Notice, Scope, Severity, Verdict


class Source(StrEnum):
    """Where facts come from."""

    KERNEL = "kernel-log"
    METADATA = "metadata"
    NODE = "node-object"
    GPU = "nvml"
    RDMA = "rdma"
    STORAGE = "storage"
    HOST = "host"


PATIENCE: Final[Mapping[Source, float]] = {
    Source.KERNEL: 15.0,
    Source.METADATA: 10.0,
    Source.NODE: 90.0,
    Source.GPU: 30.0,
    Source.RDMA: 15.0,
    Source.STORAGE: 60.0,
    Source.HOST: 30.0,
}
"""A source whose last answer is older, in seconds, is blind; each answers several times within that."""
RESCANS: Final = (Source.GPU, Source.RDMA)
"""These look at the devices that the kernel log tells of. Without the first nobody can fill a hole in it."""
HUNG: Final = frozenset({"nvml-hung", "rdma-hung"})
"""A source that tells one of these did not see its devices."""
SETTLED: Final[Mapping[Source, float]] = {Source.GPU: 300.0, Source.STORAGE: 30.0}
"""So many seconds of looking it takes a fresh process to see what lasts, and to know whose mounts count: until then
what an earlier one saw stands. The other sources see all at once."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The source has looked, just now, and saw nothing new."""

    source: Source
    at: float


@dataclass(frozen=True, slots=True)
class CannotLook:
    """The source could not look; `reason` says why and what to do."""

    source: Source
    reason: str


@dataclass(frozen=True, slots=True)
class KernelRead:
    """The kernel log up to `position`: what its records tell, in their order, and how often records were missing.

    `caught_up` is false while more records wait: not all was looked at. `anew`: the old position is none of this log.
    """

    at: float
    position: int | None
    told: tuple[Told, ...]
    gaps: int
    caught_up: bool
    anew: bool = False


@dataclass(frozen=True, slots=True)
class CloudSaid:
    """An answer of the cloud's metadata server to one of the questions that it is asked."""

    at: float
    answer: spot.Answer
    question: str = "spot"


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that a source sees wrong since it began to look at `at`; what it does not see any more is over."""

    source: Source
    at: float
    faults: tuple[Fault, ...]


@dataclass(frozen=True, slots=True)
class Happened:
    """What a source saw happen. It stands by the rules of an event, as what a line of the kernel log tells."""

    source: Source
    at: float
    faults: tuple[Fault, ...]


Fact = Answered | CannotLook | KernelRead | CloudSaid | Observed | Happened


@dataclass(frozen=True, slots=True)
class View:
    """All that is known of one node on one boot. `sources` are those configured, and those that ever told anything.

    `good` are devices that an event told to be good at something: what could go wrong with it was over, or never was.
    `names` are other names of devices, for people: the UUIDs of GPUs. `gaps`: holes in the kernel log, the newest known
    since `gap_at`, behind which not all devices were `scanned` yet. `recalled`: what an earlier process saw, of sources
    that have not looked for long enough in this one; `settling`: since when they look.
    """

    node: str
    boot_id: str
    sources: frozenset[Source]
    faults: Mapping[FaultKey, Standing] = field(default_factory=dict)
    observed: Mapping[Source, tuple[Fault, ...]] = field(default_factory=dict)
    recalled: Mapping[Source, tuple[Fault, ...]] = field(default_factory=dict)
    settling: Mapping[Source, float] = field(default_factory=dict)
    cloud: Mapping[str, cloud.Announced] = field(default_factory=dict)
    answered: Mapping[Source, float] = field(default_factory=dict)
    problems: Mapping[Source, str] = field(default_factory=dict)
    position: int | None = None
    gaps: int = 0
    gap_at: float = 0.0
    scanned: Mapping[Source, float] = field(default_factory=dict)
    good: frozenset[FaultKey] = frozenset()
    names: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Good:
    """A device that was told not to have the fault `code`."""

    code: str
    device: str


@dataclass(frozen=True, slots=True)
class Seen:
    """A fault that a source saw when it looked last."""

    source: Source
    fault: Fault


@dataclass(frozen=True, slots=True)
class Memory:
    """What must outlive the agent's process: what it knows of this boot and its sources will not tell again."""

    boot_id: str
    position: int | None
    gaps: int
    faults: tuple[Standing, ...]
    good: tuple[Good, ...] = ()
    names: tuple[Named, ...] = ()
    cloud: tuple[cloud.Announced, ...] = ()
    seen: tuple[Seen, ...] = ()


@dataclass(frozen=True, slots=True)
class Condition:
    """The Node condition: status `True`, `False` or `Unknown`, the code of the worst fault, and words for people."""

    status: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Assessment:
    """The one action of `decide`: what to tell (sidecars, controller), to write (Node) and to keep (own disk)."""

    report: AgentReport
    condition: Condition
    memory: Memory


def recall(view: View, memory: Memory | None) -> View:
    """A fresh view with what was known before, if it was known of this boot."""
    if memory is None or memory.boot_id != view.boot_id:
        return view
    faults = {key_of(standing.fault): standing for standing in memory.faults[:FAULT_LIMIT]}
    good = frozenset((one.code, one.device) for one in memory.good[:FAULT_LIMIT])
    names = with_names({}, memory.names)
    announced = {one.question: one for one in cloud.remembered({one.question: one for one in memory.cloud})}
    recalled = {source: tuple(one.fault for one in memory.seen if one.source is source) for source in view.sources}
    seen = dataclasses.replace(view, faults=faults, good=good, names=names, cloud=announced, recalled=recalled)
    return dataclasses.replace(seen, position=memory.position, gaps=memory.gaps)


def source_of(fact: Fact) -> Source:
    """The source that told a fact."""
    match fact:
        case Answered(source) | CannotLook(source) | Observed(source) | Happened(source):
            return source
        case CloudSaid():
            return Source.METADATA
    return Source.KERNEL


def fold(view: View, fact: Fact) -> View:
    """The view with one more fact in it. A source that appeared later is missed from then on, as the others are."""
    source = source_of(fact)
    return _fold(view if source in view.sources else dataclasses.replace(view, sources=view.sources | {source}), fact)


def _fold(view: View, fact: Fact) -> View:
    match fact:
        case Answered(source, at):
            return _answered(view, source, at)
        case CannotLook(source, reason):
            return dataclasses.replace(view, problems={**view.problems, source: reason})
        case KernelRead():
            return _fold_kernel(view, fact)
        case CloudSaid():
            return _fold_cloud(view, fact)
        case Observed(source, at, faults):
            seen = {**view.observed, source: tuple(sorted(faults, key=_worst_first)[:FAULT_LIMIT])}
            looked = _settled(_answered(view, source, at), source, at)
            return _scanned(dataclasses.replace(looked, observed=seen), fact)
        case Happened(_, at, faults):
            return _with_told(view, faults, at)


def _answered(view: View, source: Source, at: float) -> View:
    newest = max(at, view.answered.get(source, at))
    problems = {other: why for other, why in view.problems.items() if other is not source}
    return dataclasses.replace(view, answered={**view.answered, source: newest}, problems=problems)


def _settled(view: View, source: Source, at: float) -> View:
    """After one more look: what is recalled of the source is let go of when it has looked for long enough."""
    since = min(at, view.settling.get(source, at))
    held = at - since < SETTLED.get(source, 0.0)
    kept = tuple(fault for fault in view.recalled.get(source, ()) if held and fault.code not in HUNG)
    recalled, settling = {**view.recalled, source: kept}, {**view.settling, source: since}
    return dataclasses.replace(view, recalled=recalled, settling=settling)


def _scanned(view: View, fact: Observed) -> View:
    if fact.source not in RESCANS or any(fault.code in HUNG for fault in fact.faults):
        return view
    scanned = {**view.scanned, fact.source: max(fact.at, view.scanned.get(fact.source, fact.at))}
    looking = [source for source in RESCANS if source in view.sources]
    filled = Source.GPU in looking and all(scanned.get(source, 0.0) > view.gap_at for source in looking)
    return dataclasses.replace(view, scanned=scanned, gaps=0 if filled else view.gaps)


def _fold_kernel(view: View, fact: KernelRead) -> View:
    seen = _answered(view, Source.KERNEL, fact.at) if fact.caught_up else view
    positions = (None if fact.anew else view.position, fact.position)
    position = max((p for p in positions if p is not None), default=None)
    gap_at = max(view.gap_at, fact.at) if fact.gaps else view.gap_at
    seen = dataclasses.replace(seen, position=position, gaps=view.gaps + fact.gaps, gap_at=gap_at)
    return _with_told(seen, fact.told, fact.at)


def _fold_cloud(view: View, fact: CloudSaid) -> View:
    before = view.cloud.get(fact.question, cloud.Announced(fact.question))
    announced = {**view.cloud, fact.question: cloud.hear(before, fact.answer, fact.at)}
    seen, looked = dataclasses.replace(view, cloud=announced), cloud.last_look(announced)
    if looked is not None:
        seen = _answered(seen, Source.METADATA, looked)
    problem = next((one.problem for one in announced.values() if one.problem), "")
    return fold(seen, CannotLook(Source.METADATA, problem)) if problem else seen


def _with_told(view: View, told: tuple[Told, ...], at: float) -> View:
    if not told:
        return view
    faults, good = with_told(view.faults, view.good, told, at)
    return dataclasses.replace(view, faults=faults, good=good, names=with_names(view.names, told))


def decide(view: View, now: float) -> Decision:
    """Judge the view at `now`. The one action is an Assessment; `why` is the Verdict."""
    standing = _standing(view, now)
    faults = sorted(_all_faults(view, standing), key=_worst_first)
    blind = blindness(view, now)
    verdict = _verdict(faults, blind)
    notices = tuple(_notice(view, fault, now) for fault in faults)
    assessment = Assessment(
        AgentReport(view.node, view.boot_id, verdict, notices),
        _condition(verdict, faults, blind),
        _memory(view, standing),
    )
    return Decision((assessment,), verdict, _wake_at(view, standing, now))


def blindness(view: View, now: float) -> tuple[str, ...]:
    """Why not everything can be seen at `now`, in words; empty when all is in sight."""
    gap = f"{Source.KERNEL}: records were overwritten before they were read; a fault may be among them"
    reasons = [*(_blind(view, source, now) for source in sorted(view.sources)), gap if view.gaps else ""]
    return tuple(reason for reason in reasons if reason)


def _blind(view: View, source: Source, now: float) -> str:
    if (last := view.answered.get(source)) is not None and now - last <= PATIENCE[source]:
        return ""
    return f"{source}: {view.problems.get(source, 'no answer yet' if last is None else 'no answer lately')}"


def _standing(view: View, now: float) -> Mapping[FaultKey, Fault]:
    """What events told and nothing has ended, each in the light of the others; consequences are information."""
    grouped = grouping.regroup(view.faults)
    ends = {key: _over_at(view, key, fault) for key, fault in grouped.items()}
    return {key: fault for key, fault in grouped.items() if (end := ends[key]) is None or end >= now}


def _over_at(view: View, key: FaultKey, fault: Fault) -> float | None:
    quiet = quiet_of(fault)
    return None if quiet is None else view.faults[key].last + quiet


def _all_faults(view: View, standing: Mapping[FaultKey, Fault]) -> list[Fault]:
    """What is told and what is seen; where two sources know the same fault, the worse account of it."""
    told = (fault for fault in standing.values() if fault.severity is not Severity.INFO)
    every = [*told, *(one.fault for one in _seen(view)), *cloud.standing(view.cloud)]
    return list({key_of(fault): fault for fault in sorted(every, key=_worst_first, reverse=True)}.values())


def _seen(view: View) -> list[Seen]:
    """What the sources see, and what an earlier process saw that they may only not see yet."""
    seen = {source: {key_of(fault): fault for fault in faults} for source, faults in view.recalled.items()}
    for source, faults in view.observed.items():
        seen[source] = {**seen.get(source, {}), **{key_of(fault): fault for fault in faults}}
    return [Seen(source, fault) for source in sorted(seen) for fault in seen[source].values()]


def _memory(view: View, standing: Mapping[FaultKey, Fault]) -> Memory:
    faults = tuple(view.faults[key] for key in sorted(standing))
    good = tuple(Good(*key) for key in sorted(view.good))
    names = tuple(Named(*pair) for pair in sorted(view.names.items()))
    announced, seen = cloud.remembered(view.cloud), tuple(_seen(view)[:FAULT_LIMIT])
    return Memory(view.boot_id, view.position, view.gaps, faults, good, names, announced, seen)


def _worst_first(fault: Fault) -> tuple[int, bool, str, str]:
    return -RANK[fault.severity], fault.deadline is not None, fault.code, fault.device


def _verdict(faults: list[Fault], blind: tuple[str, ...]) -> Verdict:
    fatal = [fault for fault in faults if fault.severity is Severity.FATAL]
    if any(fault.deadline is None for fault in fatal):
        return Verdict.LOST
    if fatal:
        return Verdict.LEAVING
    if blind:
        return Verdict.UNKNOWN
    return Verdict.DEGRADED if any(_degrades(fault) for fault in faults) else Verdict.HEALTHY


def _degrades(fault: Fault) -> bool:
    return fault.severity is Severity.WARNING and fault.scope is not Scope.PROCESS


def _notice(view: View, fault: Fault, now: float) -> Notice:
    left = None if fault.deadline is None else round(max(0.0, fault.deadline - now), 1)
    name = notice_id(view.boot_id, fault.code, fault.device)
    detail = f"{fault.detail} [{view.names[fault.device]}]" if fault.device in view.names else fault.detail
    return Notice(name, fault.code, fault.severity, fault.scope, fault.repair, detail, left)


def notice_id(boot_id: str, code: str, device: str = NODE) -> str:
    """What the notice of a fault is called for as long as the machine is not booted anew."""
    return f"{boot_id[:8]}/{code}/{device}"


def _condition(verdict: Verdict, faults: list[Fault], blind: tuple[str, ...]) -> Condition:
    if verdict is Verdict.UNKNOWN:
        return Condition("Unknown", "blind", "; ".join(blind)[:1000])
    status = "True" if verdict in (Verdict.HEALTHY, Verdict.DEGRADED) else "False"
    told = [fault for fault in faults if fault.severity is Severity.FATAL or _degrades(fault)]
    if not told:
        return Condition(status, "no-fault-known", "")
    return Condition(status, told[0].code, "; ".join(f"{f.device}: {f.detail}" for f in told)[:1000])


def _wake_at(view: View, standing: Mapping[FaultKey, Fault], now: float) -> float | None:
    ends = [view.answered[source] + PATIENCE[source] for source in view.sources if source in view.answered]
    quiet = [_over_at(view, key, fault) for key, fault in standing.items()]
    return min((end for end in (*ends, *quiet) if end is not None and end > now), default=None)
