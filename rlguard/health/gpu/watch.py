"""What is wrong with the GPUs of a node, judged from what NVML shows at each look. Pure.

A value that the driver does not give (None) is never a fault. What lasts a moment only (heat, links, fabric) counts
when it was seen without a break for as long as its row says. What was learned on this boot (the devices, and which of
their links were up) is `Learned`, and must outlive the agent's process: a GPU that is gone shows by nothing else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from rlguard.health.catalogue import Catalogue
from rlguard.health.faults import NODE, Fault
from rlguard.health.gpu.signs import Sign, signs_of
from rlguard.health.gpu.snapshot import Gpu, Hung, Look, Snapshot, Unreadable, XidEvent
from rlguard.health.gpu.table import SignTable
from rlguard.health.xid import Xid
from rlguard.model import Repair, Severity

BREAK: Final = 60.0
"""Seconds between two looks after which what both show was not seen "without a break"."""
WINDOW: Final = 3600.0
SAMPLE_EVERY: Final = 60.0
"""Counters are compared over the window, in seconds; samples are at least half of this apart, so 122 at most."""
GONE: Final = frozenset({"lost", "missing", "reset-required"})
MOST_DEVICES: Final = 64
"""No node has more GPUs (MIG slices are no devices of their own here); more are not remembered."""


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU that was seen on this boot: its PCI address, NVML index, UUID, and the links that were up."""

    pci: str
    index: int
    uuid: str | None = None
    links: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Learned:
    """What was seen on one boot, by PCI address in order; to be kept across restarts of the agent."""

    boot_id: str
    devices: tuple[Device, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """A counter's value at a moment."""

    at: float
    value: int


@dataclass(frozen=True, slots=True)
class GpuView:
    """All that is known of the GPUs. `expected`: how many there must be, None: as many as were seen on this boot."""

    table: SignTable
    learned: Learned
    expected: int | None = None
    at: float | None = None
    count: int = 0
    shown: tuple[Sign, ...] = ()
    since: Mapping[tuple[str, str], float] = field(default_factory=dict)
    samples: Mapping[tuple[str, str], tuple[Sample, ...]] = field(default_factory=dict)
    hung: Hung | None = None
    problem: str = ""

    @property
    def is_incomplete(self) -> bool:
        """Whether GPUs are gone: their return shows only after NVML is initialised anew."""
        return not self.count or any(sign.sign in GONE for sign in self.shown)


def fold(view: GpuView, look: Look, at: float) -> GpuView:
    """The view after one more look, taken at `at` (CLOCK_BOOTTIME, seconds). Never raises."""
    match look:
        case Hung():
            problem = f"the NVIDIA driver did not answer within {look.seconds:g} s; see fault nvml-hung"
            return dataclasses.replace(view, hung=look, problem=problem)
        case Unreadable(reason):
            return dataclasses.replace(view, hung=None, problem=reason)
        case Snapshot():
            return _fold_snapshot(view, look, at)


def faults(view: GpuView) -> tuple[Fault, ...]:
    """Everything that is wrong as of the last look, each fault on each device once."""
    at = view.at or 0.0
    found: dict[tuple[str, str], Fault] = {}
    if view.hung is not None:
        found["nvml-hung", NODE] = view.table.fault("hung", NODE, f"no answer within {view.hung.seconds:g} s")
    for sign in view.shown:
        if at - view.since.get((sign.sign, sign.device), at) >= view.table.rows[sign.sign].lasts:
            fault = view.table.fault(*sign)
            found.setdefault((fault.code, fault.device), fault)
    return tuple(found.values())


def wants_reset(view: GpuView) -> bool:
    """Whether a GPU does not work before it is reset."""
    return any(fault.severity is Severity.FATAL and fault.repair is Repair.RESET_GPU for fault in faults(view))


def xid_fault(catalogue: Catalogue, event: XidEvent) -> Fault:
    """The fault of an Xid that NVML told, by the same code and device as the kernel log's line gives it.

    NVML gives the number alone. Where the line's words decide how bad it is, the milder reading is taken: the line
    says the rest.
    """
    fault = catalogue.fault(Xid(event.pci, event.code, None, None, "told by NVML; the kernel log has the words"))
    nonfatal = catalogue.row(fault.code).nonfatal
    return fault if nonfatal is None else dataclasses.replace(fault, severity=nonfatal)


def _fold_snapshot(view: GpuView, look: Snapshot, at: float) -> GpuView:
    gpus = _by_device(view.learned, look)
    learned = _learn(view.learned, gpus)
    samples = _sample(view, gpus, at)
    shown = [sign for device, gpu in gpus.items() for sign in signs_of(gpu, device, view.table)]
    shown += [*_missing(view, gpus), *_links(learned, gpus), *_slopes(view.table, samples)]
    broken = view.at is None or not 0 <= at - view.at <= BREAK
    before = {} if broken else view.since
    return dataclasses.replace(
        view,
        learned=learned,
        at=at,
        count=len(gpus),
        shown=tuple(shown),
        since={(sign.sign, sign.device): before.get((sign.sign, sign.device), at) for sign in shown},
        samples=samples,
        hung=None,
        problem="" if gpus or learned.devices or view.expected else NO_GPUS,
    )


NO_GPUS: Final = (
    "the NVIDIA driver works and shows no GPU: see `lspci -d 10de:` on the node; if it has none, set "
    "RLGUARD_AGENT_GPUS to off (chart value agent.env), or agent.nodeSelector to your GPU nodes"
)


def _by_device(learned: Learned, look: Snapshot) -> dict[str, Gpu]:
    """The GPUs by PCI address. One that does not even tell its address is known by its index, if it ever was."""
    told = {gpu.pci for gpu in look.gpus}
    quiet = {device.index: device.pci for device in learned.devices if device.pci not in told}
    found: dict[str, Gpu] = {}
    for gpu in look.gpus[:MOST_DEVICES]:
        found.setdefault(gpu.pci or quiet.get(gpu.index, f"gpu-{gpu.index}"), gpu)
    return found


def _learn(learned: Learned, gpus: Mapping[str, Gpu]) -> Learned:
    known = {device.pci: device for device in learned.devices}
    for pci, gpu in gpus.items():
        if gpu.pci is not None:
            old = known.get(pci, Device(pci, gpu.index))
            up = {number for number, link in enumerate(gpu.links) if link}
            known[pci] = Device(pci, gpu.index, gpu.uuid or old.uuid, tuple(sorted({*old.links, *up})))
    devices = tuple(known[pci] for pci in sorted(known))[:MOST_DEVICES]
    return dataclasses.replace(learned, devices=devices)


def _missing(view: GpuView, gpus: Mapping[str, Gpu]) -> Iterator[Sign]:
    gone = [device for device in view.learned.devices if device.pci not in gpus]
    for device in gone:
        yield Sign("missing", device.pci, f"GPU {device.uuid or device.index} is not shown any more")
    never_seen = (view.expected or 0) - len(gpus) - len(gone)
    if never_seen > 0:
        yield Sign("missing", NODE, f"{view.expected} GPUs are expected, {len(gpus)} are shown")


def _links(learned: Learned, gpus: Mapping[str, Gpu]) -> Iterator[Sign]:
    for device in learned.devices:
        links = gpus[device.pci].links if device.pci in gpus else ()
        down = [number for number in device.links if number < len(links) and not links[number]]
        if down:
            yield Sign("nvlink-down", device.pci, f"NVLinks that were up are down: {', '.join(map(str, down))}")


def _sample(view: GpuView, gpus: Mapping[str, Gpu], at: float) -> dict[tuple[str, str], tuple[Sample, ...]]:
    samples = {}
    for device, gpu in gpus.items():
        for sign, value in (("degraded-ecc", gpu.ecc.corrected), ("degraded-nvlink", gpu.link_errors)):
            if value is not None:
                samples[sign, device] = _with_sample(view.samples.get((sign, device), ()), Sample(at, value))
    return samples


def _with_sample(samples: tuple[Sample, ...], new: Sample) -> tuple[Sample, ...]:
    """The samples of the window, and the new one. A counter that fell was reset: what was before says nothing."""
    recent = [sample for sample in samples if new.at - WINDOW <= sample.at <= new.at]
    if not recent or recent[-1].value > new.value:
        return (new,)
    if len(recent) > 1 and new.at - recent[-2].at < SAMPLE_EVERY:
        recent.pop()
    return (*recent, new)


def _slopes(table: SignTable, samples: Mapping[tuple[str, str], tuple[Sample, ...]]) -> Iterator[Sign]:
    for (sign, device), values in samples.items():
        limit = table.rows[sign].limit
        if values[-1].value - values[0].value >= limit:
            yield Sign(sign, device, f"{limit:g} more or above within an hour")
