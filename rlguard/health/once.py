"""What one single look at a machine tells, by somebody who was not there before and does not stay. Pure.

The agent believes what lasts, and compares with what it saw earlier on the same boot. One look can do neither. So what
would have to last, or to be compared, is told as a warning with those words, and never condemns a machine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rlguard.health.assess import KernelRead
from rlguard.health.catalogue import Catalogue
from rlguard.health.faults import NODE, Fault
from rlguard.health.gpu.snapshot import Look
from rlguard.health.gpu.table import SignTable
from rlguard.health.gpu.watch import GpuView, Learned, fold
from rlguard.health.gpu.watch import faults as gpu_faults
from rlguard.health.kmsg import OVERRUN, gather, parse_record
from rlguard.health.lines.dispatch import worth_reading
from rlguard.health.rdma.learned import Expectation
from rlguard.health.rdma.learned import Learned as LearnedPort
from rlguard.health.rdma.signs import signs_of
from rlguard.health.rdma.snapshot import Port, Snapshot
from rlguard.health.rdma.table import Code, Table
from rlguard.health.rdma.watch import management_of
from rlguard.health.replay import read_log
from rlguard.model import Repair, Severity

TWO_LOOKS: Final = 10.0
"""Seconds. What the table wants to see for no longer than this guards against one bad reading; more is patience."""
MOST_TELLING: Final = 50_000
"""Records that may tell something and are read: that many take some seconds."""
UNCOMPARED: Final = "one look does not say whether it was ever otherwise; if it should be, see cable and switch"


@dataclass(frozen=True, slots=True)
class KernelSeen:
    """The whole kernel log at once: what it tells, record by record, and what to say about the log itself.

    `first` is the sequence number of its oldest record; above 0, older ones were overwritten. None: it is empty.
    `left_out` counts the oldest records that may tell something and were not read: only MOST_TELLING are.
    """

    facts: tuple[KernelRead, ...]
    records: int
    first: int | None
    garbage: int
    left_out: int


def kernel_log(packets: Sequence[bytes], catalogue: Catalogue, now: float) -> KernelSeen:
    """The log as it was read at `now` (CLOCK_BOOTTIME, seconds), each record at the moment that it bears. Never raises.

    So what ends by itself after some time (an out-of-memory kill, three days ago) is over when it is.
    """
    gathered = gather(None, packets, kernel_only=True, about=lambda _: False)
    telling = [packet for packet in packets if packet != OVERRUN and worth_reading(packet)]
    lines = map(_line, telling[-MOST_TELLING:])
    told = [
        KernelRead(min(entry.at, now), None, facts, 0, caught_up=False)
        for entry in read_log(line for line in lines if line)
        if (facts := catalogue.read_line(entry.text, entry.count))
    ]
    last = KernelRead(now, gathered.position, (), gathered.overruns, caught_up=True)
    left_out = max(0, len(telling) - MOST_TELLING)
    return KernelSeen((*told, last), gathered.records, _first(packets), gathered.garbage, left_out)


def _line(packet: bytes) -> str:
    """The record's first line, empty for what is no record: without its head anything would pass for the kernel's."""
    return packet.split(b"\n", 1)[0].decode("utf-8", "replace") if parse_record(packet) else ""


def _first(packets: Iterable[bytes]) -> int | None:
    return next((record.sequence for packet in packets if (record := parse_record(packet))), None)


@dataclass(frozen=True, slots=True)
class GpusSeen:
    """What is wrong with the GPUs, how many the driver shows, and why it could not be looked at (empty: it could)."""

    faults: tuple[Fault, ...]
    count: int
    problem: str


def gpus(look: Look, at: float, signs: SignTable, expected: int | None = None) -> GpusSeen:
    """One look at the GPUs; `expected`: how many there must be. Never raises."""
    rows = {name: dataclasses.replace(row, lasts=0.0) for name, row in signs.rows.items()}
    view = fold(GpuView(dataclasses.replace(signs, rows=rows), Learned(""), expected), look, at)
    patience = {row.fault: row.lasts for row in signs.rows.values() if row.lasts > TWO_LOOKS}
    found = tuple(_seen_once(fault, patience.get(fault.code, 0.0)) for fault in gpu_faults(view))
    return GpusSeen(found, view.count, view.problem)


def _seen_once(fault: Fault, lasts: float) -> Fault:
    if not lasts:
        return fault
    detail = f"{fault.detail} (seen at one look; it counts after {lasts:g} s)"
    return dataclasses.replace(fault, severity=_at_most_warning(fault.severity), detail=detail)


def _at_most_warning(severity: Severity) -> Severity:
    return Severity.WARNING if severity is Severity.FATAL else severity


@dataclass(frozen=True, slots=True)
class PortsSeen:
    """What is wrong with the RDMA ports, how many of how many carry traffic."""

    faults: tuple[Fault, ...]
    up: int
    count: int


def ports(snapshot: Snapshot, table: Table, expected: Expectation) -> PortsSeen:
    """One look at the RDMA ports. Virtual functions, software, and the machine's own network are not judged."""
    management = management_of(snapshot, frozenset())
    judged = {port.key: port for port in snapshot.ports if port.physical and port.key not in management}
    up = [port for port in judged.values() if port.up and (port.rate or 0.0) >= (expected.rate or 0.0)]
    found = [fault for port in judged.values() for fault in _of_port(port, table, expected)]
    if expected.ports is not None and len(up) < expected.ports:
        fast = f" at {expected.rate:g} Gb/s" if expected.rate else ""
        found.append(table.fault(Code.PORTS_MISSING, NODE, f"{len(up)} of {expected.ports} ports{fast} carry traffic"))
    return PortsSeen(tuple(found), len(up), len(judged))


def _of_port(port: Port, table: Table, expected: Expectation) -> Iterator[Fault]:
    links = tuple(slave.name for slave in port.slaves)
    learned = LearnedPort(port.key, port.name, rate=expected.rate or 0.0, slaves=links)
    bad: Mapping[Code, str] = signs_of(learned, port, expected).bad
    for code, words in bad.items():
        row = table.rows[code]
        severity, detail = _at_most_warning(row.severity), f"{words}; {UNCOMPARED}"
        yield Fault(code.value, port.key, severity, row.scope, Repair.NONE, detail)
