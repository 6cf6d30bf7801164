"""The machine's RDMA ports over time: looks are folded into a view, and the view says what is wrong. Pure.

- What a port has shown on this boot is what is expected of it: one that was never active is not missed.
- Nothing is believed at once: a sign becomes a fault after its row's seconds and looks, and ends by its row's rule.
- Not judged: virtual functions and devices made of software, and beside other ports the one with the default route,
  which is the machine's own and no job's.

All moments are seconds of this machine's CLOCK_BOOTTIME. A look that comes late or twice changes nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from rlguard.health.faults import NODE, Fault
from rlguard.health.rdma.counters import Slope, Window
from rlguard.health.rdma.learned import Expectation, Learned, Memory
from rlguard.health.rdma.signs import Signs, signs_of
from rlguard.health.rdma.snapshot import INFINIBAND, PORT_LIMIT, Netdev, Port, Snapshot
from rlguard.health.rdma.table import Code, Row, Rule, Table
from rlguard.model import Severity

FLAPS: Final = 3
FLAPS_WITHIN: Final = 3600.0
"""So many link downs within so many seconds are too many."""
BOOTING: Final = 300.0
"""Seconds after boot in which drivers are loaded, bonds made and links trained: nothing is counted then, and
BOOT_PATIENCE is the least time in seconds after which anything is believed (NVSentinel #1034)."""
BOOT_PATIENCE: Final = 60.0
ACCEPTED_AFTER: Final = 600.0
"""Seconds after which another address is the port's address."""


@dataclass(frozen=True, slots=True)
class Watch:
    """One sign over time: seen since, at how many looks, believed or not, and since when not seen any more."""

    since: float
    looks: int = 0
    stands: bool = False
    good_since: float | None = None
    detail: str = ""

    def bad(self, detail: str, at: float, row: Row) -> Watch:
        """Seen again."""
        looks = min(self.looks + 1, row.looks)
        after = row.after if at >= BOOTING else max(row.after, BOOT_PATIENCE)
        stands = self.stands or (looks >= row.looks and at - self.since >= after)
        return Watch(self.since, looks, stands, None, detail)

    def good(self, at: float, row: Row) -> Watch | None:
        """Not seen; None: over."""
        since = at if self.good_since is None else self.good_since
        if not self.stands or at - since >= row.clears_after:
            return None
        return dataclasses.replace(self, good_since=since)

    def unseen(self) -> Watch | None:
        """Nobody can tell: what stands goes on to stand, what does not begins anew."""
        return dataclasses.replace(self, good_since=None) if self.stands else None


Watches = Mapping[Code, Watch]
NO_DOWNS: Final = Window()
LEARN_ALL: Final = Expectation()


@dataclass(frozen=True, slots=True)
class Track:
    """One port that was active on this boot. `port` is as last seen, None while its device is gone."""

    learned: Learned
    port: Port | None = None
    watches: Watches = field(default_factory=dict)
    downs: Window = NO_DOWNS
    slopes: Mapping[str, Slope] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hang:
    """Reading has not returned, between these two moments, at this device."""

    device: str
    since: float
    last: float


@dataclass(frozen=True, slots=True)
class View:
    """All that is known of the ports on one boot."""

    table: Table
    expected: Expectation = LEARN_ALL
    tracks: Mapping[str, Track] = field(default_factory=dict)
    management: frozenset[str] = frozenset()
    missing: Watches = field(default_factory=dict)
    hang: Hang | None = None
    at: float | None = None


def recall(view: View, memory: Memory | None, boot_id: str, at: float) -> View:
    """A fresh view with what was learned before, if it was learned on this boot."""
    if memory is None or memory.boot_id != boot_id:
        return view
    tracks = {learned.key: Track(learned, watches=_stood(learned, at)) for learned in memory.ports[:PORT_LIMIT]}
    return dataclasses.replace(view, tracks=tracks, management=frozenset(memory.management[:PORT_LIMIT]))


def remember(view: View, boot_id: str) -> Memory:
    """What must outlive the process."""
    ports = []
    for key in sorted(view.tracks):
        track = view.tracks[key]
        standing = sorted(code.value for code, watch in track.watches.items() if watch.stands)
        ports.append(dataclasses.replace(track.learned, standing=tuple(standing)))
    return Memory(boot_id, tuple(sorted(view.management)), tuple(ports))


def fold(view: View, snapshot: Snapshot, at: float) -> View:
    """The view after one more look at all ports."""
    if view.at is not None and at <= view.at:
        return view
    management = management_of(snapshot, view.management)
    ports = {port.key: port for port in snapshot.ports if port.physical and port.key not in management}
    bonded = {slave.name for port in ports.values() for slave in port.slaves}
    known = {
        key: track
        for key, track in view.tracks.items()
        if key in ports or not (key in management or _given_away(track.learned, bonded, snapshot))
    }
    new = [key for key, port in ports.items() if port.up and key not in known][: PORT_LIMIT - len(known)]
    known.update({key: Track(Learned(key, ports[key].name)) for key in new})
    tracks = {key: _step(view, track, ports.get(key), at) for key, track in known.items()}
    after = dataclasses.replace(view, tracks=tracks, management=management, hang=None, at=at)
    missing = _missing(after)
    signs = Signs({Code.PORTS_MISSING: missing} if missing else {}, frozenset())
    return dataclasses.replace(after, missing=_watch(view.table, view.missing, signs, at))


def fold_hang(view: View, device: str, at: float) -> View:
    """The view after a look that has not returned, at this device."""
    since = at if view.hang is None else view.hang.since
    return dataclasses.replace(view, hang=Hang(device, since, max(at, since)))


def faults(view: View) -> tuple[Fault, ...]:
    """Everything that is wrong, as of the last look; predictions among it, by codes of their own."""
    enough = view.expected.ports is not None and _usable(view) >= view.expected.ports
    found = [
        view.table.fault(code, key, watch.detail, spare=enough)
        for key, track in view.tracks.items()
        for code, watch in track.watches.items()
        if watch.stands
    ]
    found += [view.table.fault(code, NODE, watch.detail) for code, watch in view.missing.items() if watch.stands]
    if view.hang is not None and view.hang.last - view.hang.since >= view.table.rows[Code.HUNG].after:
        found.append(view.table.fault(Code.HUNG, NODE, view.hang.device))
    return tuple(sorted(found, key=lambda fault: (fault.code, fault.device)))


def unknown_slopes(view: View) -> tuple[tuple[str, str], ...]:
    """Port and counter where the counter is at its highest number, so that nobody knows whether it rises."""
    return tuple(
        (key, name)
        for key, track in sorted(view.tracks.items())
        for name, slope in sorted(track.slopes.items())
        if slope.saturated
    )


def _stood(learned: Learned, at: float) -> Watches:
    codes = [code for code in Code if code.value in learned.standing]
    return {code: Watch(at, stands=True, detail=learned.name) for code in codes}


def management_of(snapshot: Snapshot, before: frozenset[str]) -> frozenset[str]:
    """Keys of the ports with the default route, once seen (`before`), unless there are no others: then jobs use them,
    too.
    """
    device = snapshot.default_route.partition(".")[0]
    physical = [port for port in snapshot.ports if port.physical]
    own = {port.key for port in physical if device and port.netdev and port.netdev.name == device}
    others = [port for port in physical if port.key not in own]
    return before | own if others and len(before | own) <= PORT_LIMIT else before


def _given_away(learned: Learned, bonded: set[str], snapshot: Snapshot) -> bool:
    """True when a device that is not there is not missing.

    It was given to a pod, which takes it out of the node's sight unless namespaces share devices; or its link is now
    part of a bond, whose RDMA device is that of the bond's first link.
    """
    return snapshot.shared is False or learned.netdev in bonded


def _step(view: View, track: Track, port: Port | None, at: float) -> Track:
    signs = signs_of(track.learned, port, view.expected)
    downs = track.downs.plus(_downs(track.port, port) if at >= BOOTING else 0, at, FLAPS_WITHIN)
    slopes = _slopes(track.slopes, port, view.table.rules, at)
    bad = {**signs.bad, **_rising(downs, slopes, view.table.rules, track.learned.name)}
    watches = _watch(view.table, track.watches, Signs(bad, signs.unjudged), at)
    learned = track.learned
    if port is not None and port.up:
        changed = watches.get(Code.GID_CHANGED)
        accepted = changed is not None and at - changed.since >= ACCEPTED_AFTER
        learned = learned.relearned(port, view.expected) if accepted else learned.seeing(port, view.expected)
    return Track(learned, port, watches, downs, slopes)


def _watch(table: Table, before: Watches, signs: Signs, at: float) -> Watches:
    after: dict[Code, Watch | None] = {}
    for code, watch in before.items():
        after[code] = watch.unseen() if code in signs.unjudged else watch.good(at, table.rows[code])
    for code, detail in signs.bad.items():
        after[code] = before.get(code, Watch(at)).bad(detail, at, table.rows[code])
    return {code: watch for code, watch in after.items() if watch is not None}


def _slopes(before: Mapping[str, Slope], port: Port | None, rules: tuple[Rule, ...], at: float) -> Mapping[str, Slope]:
    counters = port.counters if port is not None else None
    if counters is None:
        return before
    read = {rule.name: rule for rule in rules if rule.name in counters or rule.name in before}
    known = before if at >= BOOTING else {}
    return {name: known.get(name, Slope()).then(counters.get(name), at, rule) for name, rule in read.items()}


def _rising(downs: Window, slopes: Mapping[str, Slope], rules: tuple[Rule, ...], name: str) -> dict[Code, str]:
    told: dict[Code, str] = {}
    for rule in rules:
        total = slopes[rule.name].window.total if rule.name in slopes else 0
        if total >= rule.limit:
            # No exact figures: words that change at each look would be written to the Node at each look.
            told[rule.code] = f"{told.get(rule.code, name)}, {rule.name} by {rule.limit} in {rule.within / 60:g} min"
    if downs.total >= FLAPS:
        told[Code.FLAPPING] = f"{name}: {FLAPS} link downs or more in {FLAPS_WITHIN / 60:g} min"
    return told


def _downs(before: Port | None, after: Port | None) -> int:
    """How often the link went down between two looks: the carriers count it, where there are any that matter."""
    if before is None or after is None:
        return 0
    earlier = {link.name: link for link in _links(before)}
    counted = [_carrier_downs(earlier[link.name], link) for link in _links(after) if link.name in earlier]
    known = [count for count in counted if count is not None]
    return max(known) if known else int(before.up is True and after.up is False)


def _links(port: Port) -> tuple[Netdev, ...]:
    if port.link_layer == INFINIBAND:
        return ()
    return (*port.slaves, *filter(None, (port.netdev,)))


def _carrier_downs(before: Netdev, after: Netdev) -> int | None:
    """Changes of the carrier, up and down in turn, of which the last led to how it is now."""
    if before.carrier_changes is None or after.carrier_changes is None:
        return None
    changes = min(max(0, after.carrier_changes - before.carrier_changes), 1000)
    return (changes + 1) // 2 if after.lost else changes // 2


def _missing(view: View) -> str:
    """In words, that too few ports have been active on this boot; empty when that is not so or not asked."""
    wanted, rate = view.expected.ports, view.expected.rate or 0.0
    if wanted is None:
        return ""
    there = sum(track.learned.rate >= rate for track in view.tracks.values())
    fast = f" at {rate:g} Gb/s" if rate else ""
    return f"{there} of {wanted} ports{fast}" if there < wanted else ""


def _usable(view: View) -> int:
    """Ports that are active and without a fatal fault."""
    return sum(
        track.port is not None and track.port.up is True and not _fatal(view, track) for track in view.tracks.values()
    )


def _fatal(view: View, track: Track) -> bool:
    return any(
        view.table.rows[code].severity is Severity.FATAL for code, watch in track.watches.items() if watch.stands
    )
