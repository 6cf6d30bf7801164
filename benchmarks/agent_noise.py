"""Thirty days of a healthy node in a noisy world, simulated: every verdict other than healthy is a false one. Seeded.

The node is judged every two minutes or so, each time with answers as old as the sources' own pace, jitter and hiccups
make them: the API server reconnects, the metadata server stumbles, the kernel log has lines that mean nothing.
"""

from __future__ import annotations

import random
from collections import Counter

from rlguard.health.assess import (
    Answered,
    CannotLook,
    CloudSaid,
    Fact,
    KernelRead,
    Observed,
    Source,
    View,
    decide,
    fold,
)
from rlguard.health.catalogue import Catalogue, builtin
from rlguard.health.faults import Told
from rlguard.health.spot import NoNotice, Unreadable
from rlguard.model import Verdict

DAYS = 30
EVERY_S = 120.0
PACE_S = {Source.NODE: 60.0, Source.GPU: 10.0, Source.RDMA: 2.0, Source.STORAGE: 10.0, Source.HOST: 5.0}
"""Seconds between two answers in quiet times."""
HICCUP_S = {Source.NODE: 25.0, Source.GPU: 15.0, Source.RDMA: 8.0, Source.STORAGE: 20.0, Source.HOST: 15.0}
"""Seconds that one answer comes late at most when something stumbles."""
HICCUP = 0.02
LINES = (
    "audit: type=1400 apparmor=DENIED operation=open name=/proc/1/environ pid={n} comm=cat",
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15",
    "nvidia-uvm: Loaded the UVM driver, major device number {n}.",
    "mlx5_core 0000:10:00.0 eth1: Link up",
    "EXT4-fs (nvme0n1p1): mounted filesystem with ordered data mode",
    "IPv6: ADDRCONF(NETDEV_CHANGE): eth{n}: link becomes ready",
    "Memory cgroup out of memory: Killed process {n} (python3) total-vm:1kB",
    "perf: interrupt took too long (2512 > 2500), lowering kernel.perf_event_max_sample_rate to {n}",
    "nfs: server 10.0.0.9 OK",
)
"""What a healthy node's kernel says."""
CRASH = "NVRM: Xid (PCI:0000:{bus:02x}:00): 31, pid={n}, name=python3, Ch 00000008"
"""What it says of a program that crashes, for each of its GPUs."""
BUSES = (0x05, 0x06)
CRASHES = 0.01


def false_verdicts(seed: int = 1) -> Counter[str]:
    """How often each verdict but healthy was given."""
    chance, table = random.Random(seed), builtin()  # noqa: S311 - a simulation
    view = View("node-1", "11111111-boot", frozenset(Source))
    counted: Counter[str] = Counter()
    now, position = 1000.0, 0
    while now < DAYS * 86_400.0:
        now += EVERY_S * chance.uniform(0.5, 1.5)
        position += 1
        for fact in [*_cloud(chance, now), *_kernel(chance, table, now, position), *_others(chance, now)]:
            view = fold(view, fact)
        verdict = decide(view, now).why
        counted[str(verdict)] += verdict is not Verdict.HEALTHY
    return +counted


def _others(chance: random.Random, now: float) -> list[Fact]:
    facts: list[Fact] = []
    for source, pace in PACE_S.items():
        late = chance.uniform(0.0, HICCUP_S[source]) if chance.random() < HICCUP else 0.0
        at = now - late - pace * chance.uniform(0.0, 1.1)
        facts.append(Answered(source, at) if source is Source.NODE else Observed(source, at, ()))
        if late:
            facts.append(CannotLook(source, "a hiccup"))
    return facts


def _cloud(chance: random.Random, now: float) -> list[Fact]:
    """The answers of the last seconds; one in fifty rounds ends with some that are none."""
    stumbles = chance.randrange(1, 4) if chance.random() < HICCUP else 0
    at = now - 2.0 * stumbles - chance.uniform(0.0, 2.0)
    missed = [CloudSaid(at + 2.0 * (number + 1), Unreadable("HTTP 503")) for number in range(stumbles)]
    return [CloudSaid(at, NoNotice()), *missed]


def _kernel(chance: random.Random, table: Catalogue, now: float, position: int) -> list[Fact]:
    told: list[Told] = []
    for _ in range(chance.choice((0, 0, 0, 1, 3))):
        told += table.read_line(chance.choice(LINES).format(n=chance.randrange(1, 30_000)))
    if chance.random() < CRASHES:
        pid = chance.randrange(1, 30_000)
        told += [fact for bus in BUSES for fact in table.read_line(CRASH.format(bus=bus, n=pid))]
    return [KernelRead(now - chance.uniform(0.0, 3.2), position, tuple(told), 0, caught_up=True)]
