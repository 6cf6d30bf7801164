"""What holds for the judgement on GPUs whatever NVML shows, and in whatever order."""

from __future__ import annotations

import dataclasses
from functools import reduce

from hypothesis import given
from hypothesis import strategies as st

from rlguard.health.gpu.snapshot import Ecc, Fabric, Gpu, Heat, Hung, Look, Refused, Rows, Snapshot, Unreadable
from rlguard.health.gpu.table import builtin_signs
from rlguard.health.gpu.watch import MOST_DEVICES, GpuView, Learned, faults, fold
from rlguard.model import Severity
from rlguard.wire import from_json, to_json

TABLE = builtin_signs()
WHOLE = st.none() | st.integers(0, 2**63 - 1) | st.integers(0, 20)
YES = st.none() | st.booleans()
ADDRESSES = st.none() | st.sampled_from(["0000:01:00", "0000:02:00", "0000:03:00", "0018:01:00"])
REFUSED = st.builds(Refused, st.sampled_from(["nvmlDeviceGetUUID", "nvmlDeviceGetSerial"]), st.integers(0, 1000))
GPUS = st.builds(
    Gpu,
    index=st.integers(0, 5),
    pci=ADDRESSES,
    uuid=st.none() | st.text(max_size=3),
    ecc=st.builds(Ecc, WHOLE, WHOLE, WHOLE, WHOLE),
    rows=st.builds(Rows, WHOLE, WHOLE, YES, YES, WHOLE, WHOLE, YES),
    heat=st.builds(Heat, WHOLE, WHOLE, st.none() | st.floats(0, 1000), WHOLE),
    fabric=st.builds(Fabric, WHOLE, WHOLE, WHOLE),
    links=st.lists(st.booleans(), max_size=4).map(tuple),
    link_errors=WHOLE,
    action=WHOLE,
    refused=st.lists(REFUSED, max_size=3).map(tuple),
)
SNAPSHOTS = st.builds(Snapshot, st.lists(GPUS, max_size=5).map(tuple))
LOOKS: st.SearchStrategy[Look] = st.one_of(
    SNAPSHOTS, SNAPSHOTS, st.builds(Hung, st.floats(0, 60)), st.builds(Unreadable, st.text(max_size=5))
)
MOMENTS = st.floats(0, 10_000)
STORY = st.lists(st.tuples(LOOKS, MOMENTS), max_size=8)


def start(expected: int | None = None) -> GpuView:
    return GpuView(TABLE, Learned("boot-1"), expected)


def folded(view: GpuView, story: list[tuple[Look, float]]) -> GpuView:
    return reduce(lambda known, one: fold(known, *one), story, view)


@given(STORY, st.none() | st.integers(0, 16))
def test_whatever_nvml_shows_is_judged_each_fault_on_each_device_once(
    story: list[tuple[Look, float]], expected: int | None
) -> None:
    view = folded(start(expected), story)
    told = faults(view)
    assert len({(fault.code, fault.device) for fault in told}) == len(told)
    assert all(fault.detail and len(fault.detail) <= 400 for fault in told)
    assert len(view.learned.devices) <= MOST_DEVICES


@given(st.lists(st.integers(1, 60), min_size=1, max_size=20))
def test_a_gpu_that_tells_nothing_is_never_a_fault(pauses: list[int]) -> None:
    view, now = start(), 0.0
    for pause in pauses:
        now += pause
        view = fold(view, Snapshot((Gpu(0, "0000:01:00"),)), now)
        assert faults(view) == ()


@given(GPUS, st.integers(0, 6), st.booleans())
def test_what_is_seen_longer_is_never_less(gpu: Gpu, looks: int, gone: bool) -> None:
    """Once told, a fault that is still seen stays told."""
    seen = Snapshot(() if gone else (gpu,))
    view = fold(start(), Snapshot((dataclasses.replace(gpu, pci="0000:01:00"),)), 0.0)
    told: set[tuple[str, str]] = set()
    for number in range(looks):
        view = fold(view, seen, 10.0 * (number + 1))
        now = {(fault.code, fault.device) for fault in faults(view)}
        assert told <= now
        told = now


@given(GPUS, st.sampled_from(["rows", "action", "refused"]))
def test_one_more_trouble_never_makes_a_gpu_look_better(gpu: Gpu, trouble: str) -> None:
    gpu = dataclasses.replace(gpu, pci="0000:01:00")
    bad = {
        "rows": dataclasses.replace(gpu, rows=dataclasses.replace(gpu.rows, failed=True)),
        "action": dataclasses.replace(gpu, action=2),
        "refused": dataclasses.replace(gpu, refused=(*gpu.refused, Refused("nvmlDeviceGetUUID", 15))),
    }[trouble]
    worst = [fault.severity for fault in faults(fold(start(), Snapshot((bad,)), 0.0))]
    assert Severity.FATAL in worst


@given(STORY)
def test_what_is_kept_of_a_boot_can_be_read_back(story: list[tuple[Look, float]]) -> None:
    learned = folded(start(), story).learned
    assert from_json(Learned, to_json(learned)) == learned


@given(SNAPSHOTS)
def test_a_snapshot_travels_from_the_child_as_it_is(snapshot: Snapshot) -> None:
    assert from_json(Snapshot, to_json(snapshot)) == snapshot
