"""The signs of trouble that one look at one GPU shows, without memory of earlier looks. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from rlguard.health.gpu.snapshot import Fabric, Gpu, Heat, Rows
from rlguard.health.gpu.table import SignTable

NO_VALUE: Final = frozenset({2, 3, 6, 13, 21, 22, 24, 25, 26, 27})
"""Return codes by which a driver says that a value does not exist there: invalid argument, not supported, not found,
no such function, no data, no ECC on a vGPU, no such frequency, version mismatch, deprecated, not ready."""
TELLING: Final = {8: "power-missing", 11: "interrupts", 14: "inforom", 15: "lost", 16: "reset-required"}
"""Return codes (nvml.h, nvmlReturn_t) that tell of the GPU itself."""
SIGNS_OF_DEATH: Final = frozenset({"lost", "reset-required", "power-missing", "interrupts"})
"""With one of these nothing else that the GPU says counts."""
KNOWN_ACTIONS: Final = range(1, 8)

MANY: Final = 10
"""What is told of a fault must not change at each look: it is written onto the Node whenever it does."""

HW_SLOWDOWN: Final = 0x8
THERMAL: Final = 0x20 | 0x40
POWER_BRAKE: Final = 0x80

FABRIC_STARTING: Final = (1, 2)
FABRIC_COMPLETED: Final = 3


class Sign(NamedTuple):
    """One sign: its row in the table, the device, and what was seen, in words."""

    sign: str
    device: str
    seen: str


def signs_of(gpu: Gpu, device: str, table: SignTable) -> list[Sign]:
    """Everything that this look at the GPU shows. Never raises."""
    told = dict(_refusals(gpu))
    deadly = {sign: seen for sign, seen in told.items() if sign in SIGNS_OF_DEATH}
    found = deadly or {**told, **dict(_readings(gpu, table))}
    return [Sign(sign, device, seen) for sign, seen in found.items()]


def _refusals(gpu: Gpu) -> Iterator[tuple[str, str]]:
    unclear = []
    for refused in gpu.refused:
        if refused.code in TELLING:
            yield TELLING[refused.code], f"{refused.call} says so (NVML code {refused.code})"
        elif refused.code not in NO_VALUE or gpu.pci is None:
            unclear.append(f"{refused.call} failed with NVML code {refused.code}")
    if unclear:
        yield "unreadable", ", ".join(unclear[:3])


def _readings(gpu: Gpu, table: SignTable) -> Iterator[tuple[str, str]]:
    yield from _memory(gpu, _limit(table, "ecc-uncorrected"))
    yield from _rows(gpu.rows, _limit(table, "degraded-remaps"))
    yield from _action(gpu.action)
    yield from _heat(gpu.heat, _limit(table, "degraded-heat"))
    yield from _fabric(gpu.fabric)


def _limit(table: SignTable, sign: str) -> float:
    return table.rows[sign].limit


def _memory(gpu: Gpu, limit: float) -> Iterator[tuple[str, str]]:
    count = gpu.ecc.uncorrected
    if count is not None and count >= limit:
        yield "ecc-uncorrected", f"{count if count < MANY else f'{MANY} or more'} uncorrected memory errors"


def _rows(rows: Rows, limit: float) -> Iterator[tuple[str, str]]:
    if rows.pending:
        yield "remap-pending", "a row remap is pending"
    if rows.failed:
        yield "remap-failed", "a row remap has failed"
    if rows.pages_pending:
        yield "pages-pending", "a page retirement is pending"
    if rows.banks_exhausted is not None and rows.banks_exhausted >= limit:
        yield "degraded-remaps", f"{rows.banks_exhausted} memory banks without a spare row"


def _action(action: int | None) -> Iterator[tuple[str, str]]:
    if action is not None and action != 0:
        yield f"action-{action if action in KNOWN_ACTIONS else 'other'}", f"NVML recovery action {action}"


def _heat(heat: Heat, margin: float) -> Iterator[tuple[str, str]]:
    reasons = heat.reasons or 0
    if reasons & THERMAL:
        yield "throttle-thermal", "clocks held down by heat"
    if reasons & POWER_BRAKE:
        yield "throttle-brake", "clocks held down by the power brake"
    if reasons & HW_SLOWDOWN and not reasons & (THERMAL | POWER_BRAKE):
        yield "throttle-hardware", "clocks held down by the hardware"
    if heat.temperature is not None and heat.slowdown_at and heat.temperature >= heat.slowdown_at - margin:
        yield "degraded-heat", f"{margin:g} degrees or less below {heat.slowdown_at}, where it slows down"


def _fabric(fabric: Fabric) -> Iterator[tuple[str, str]]:
    if fabric.state == FABRIC_COMPLETED and fabric.status:
        yield "fabric-failed", f"the fabric's status is NVML code {fabric.status}"
    if fabric.state in FABRIC_STARTING:
        yield "fabric-not-ready", f"the fabric's state is {fabric.state}"
    yield from _mask(fabric.health or 0)


MASK: Final[tuple[tuple[int, int, str, Callable[[int], bool], str], ...]] = (
    (0, 0x3, "degraded-fabric", lambda value: value == 1, "bandwidth degraded"),
    (4, 0x3, "fabric-unhealthy", lambda value: value == 1, "route unhealthy"),
    (6, 0x3, "fabric-unhealthy", lambda value: value == 1, "recovering from access time-outs"),
    (8, 0xF, "fabric-unhealthy", lambda value: value > 1, "configured wrongly"),
)
"""NVML_GPU_FABRIC_HEALTH_MASK: shift, width, sign, when; a value of 0 is "not supported" in each."""


def _mask(health: int) -> Iterator[tuple[str, str]]:
    told: dict[str, list[str]] = {}
    for shift, width, sign, bad, words in MASK:
        if bad((health >> shift) & width):
            told.setdefault(sign, []).append(words)
    for sign, parts in told.items():
        yield sign, f"fabric: {', '.join(parts)} (mask {health:#x})"
