"""What looks wrong with one port at one look, before anybody believes it. Pure.

A sign is a code and words. What cannot be told now (`unjudged`) neither starts a fault nor ends one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from rlguard.health.rdma.learned import Expectation, Learned, address_of, addresses, dotted
from rlguard.health.rdma.snapshot import INFINIBAND, WAITING, Port
from rlguard.health.rdma.table import Code

OF_ACTIVE: Final = frozenset({Code.GID_LOST, Code.GID_CHANGED, Code.GID_MISSING, Code.RATE_LOW, Code.BOND_DEGRADED})
"""What only a port that is active shows."""
OF_STATE: Final = frozenset({Code.PORT_DOWN, Code.NO_SUBNET, *OF_ACTIVE})
OF_PRESENT: Final = frozenset({Code.UNREADABLE, *OF_STATE})


@dataclass(frozen=True, slots=True)
class Signs:
    """What one look shows."""

    bad: Mapping[Code, str]
    unjudged: frozenset[Code]


def signs_of(learned: Learned, port: Port | None, expected: Expectation) -> Signs:
    """What is wrong with a port that was once active; None: its device is not there."""
    if port is None:
        return Signs({Code.DEVICE_GONE: learned.name}, OF_PRESENT)
    if port.up is None:
        return Signs({Code.UNREADABLE: port.name}, OF_STATE)
    if not port.up:
        return Signs(_of_silent(port), OF_ACTIVE)
    return _of_active(learned, port, expected)


def _of_silent(port: Port) -> dict[Code, str]:
    if port.link_layer == INFINIBAND and port.state in WAITING:
        return {Code.NO_SUBNET: port.name}
    lost = [link.name for link in (*port.slaves, *filter(None, (port.netdev,))) if link.lost]
    carrier = f", no carrier on {', '.join(sorted(set(lost)))}" if lost else ""
    return {Code.PORT_DOWN: f"{port.name}: state {port.state}, physical state {port.phys_state}{carrier}"}


def _of_active(learned: Learned, port: Port, expected: Expectation) -> Signs:
    bad = dict(_of_gid(learned, port, expected)) if port.link_layer != INFINIBAND else {}
    lost = [slave.name for slave in port.slaves if slave.lost and slave.name in learned.slaves]
    if lost:
        # What is left of a bond may also report a lower rate: that is the same fault.
        bad[Code.BOND_DEGRADED] = f"{port.name}: no link on {', '.join(lost)}"
        return Signs(bad, frozenset({Code.RATE_LOW}))
    if port.rate is None:
        return Signs(bad, frozenset({Code.RATE_LOW}))
    if port.rate < learned.rate:
        bad[Code.RATE_LOW] = f"{port.name}: {port.rate:g} of {learned.rate:g} Gb/s"
    return Signs(bad, frozenset())


def _of_gid(learned: Learned, port: Port, expected: Expectation) -> Iterator[tuple[Code, str]]:
    index = expected.gid_index
    current = address_of(port, learned.gid_index if index is None and learned.gid else index)
    if not learned.gid:
        if index is not None and current is None:
            yield Code.GID_MISSING, f"{port.name}: nothing at index {index}"
        return
    if current is None and index is None:
        current = next(iter(addresses(port)), None)
    if current is None:
        yield Code.GID_LOST, f"{port.name}: {dotted(learned.gid)} is not at index {learned.gid_index}"
    elif (current.gid, current.index) != (learned.gid, learned.gid_index):
        was, now = f"{dotted(learned.gid)} at {learned.gid_index}", f"{dotted(current.gid)} at {current.index}"
        yield Code.GID_CHANGED, f"{port.name}: was {was}, is {now}"
