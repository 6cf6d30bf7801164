"""A kernel log as people have it, and what the agent would have made of it line by line. Pure.

Forms: records of /dev/kmsg (`4,1,5,-;text`), dmesg (`[12.345] text`, `[Mon May 25 12:34:56 2026] text`,
`kern  :err  : [12.345] text`), journald and syslog (`Nov 30 12:00:00 host kernel: text`, the same with
`2026-05-25T12:34:56+0000`), Talos (`kern: warning: [2026-05-25T12:34:56Z]: text`). Text without any prefix is the
kernel's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from rlguard.health.assess import Answered, KernelRead, Source, View, decide, fold
from rlguard.health.catalogue import Catalogue
from rlguard.health.faults import Sighting
from rlguard.health.kmsg import KERNEL, parse_record
from rlguard.model import Notice, Verdict

LINE_LIMIT: Final = 8192
"""Characters of a line that are read."""
COMMENT: Final = "#"
BOOT: Final = "replay00"
"""Stands for the boot id of the machine that the log comes from."""
KNOWN_LIMIT: Final = 4096
"""Kinds of faults, on their devices, that are not shown again while they change nothing."""
STEP_LIMIT: Final = 10_000
_FRESH: Final = View("node", BOOT, frozenset({Source.KERNEL}))


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a log: its number from 1, seconds on the log's own clock, its text, how often it came in a row.

    `boots`: the kernel starts here; what was wrong before is over.
    """

    number: int
    at: float
    text: str
    count: int = 1
    boots: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """What one line changed. `began` are notices that appeared or changed, `ended` ids of those that went.

    `told` are codes that the line tells, those that are mere information among them; it is empty where nothing but
    time has ended a fault.
    """

    number: int
    at: float
    text: str
    told: tuple[str, ...]
    began: tuple[Notice, ...]
    ended: tuple[str, ...]
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Replay:
    """A whole log: what changed, how it ended, and how often each standing fault was told.

    `left_out` counts the steps after the first STEP_LIMIT.
    """

    steps: tuple[Step, ...]
    left_out: int
    verdict: Verdict
    notices: tuple[Notice, ...]
    counts: Mapping[str, int]


# 4,1,5000000,-;text
_KMSG = re.compile(r"[0-9]{1,9},[0-9]{1,18},([0-9]{1,18}),[^;]{0,200};")
# kern  :err   : [   12.345678] text        [   12.345678] text        [12345.678901][ T1234] text
_DMESG = re.compile(r"(?:([a-z0-9]+) *:[a-z]+ *: )?\[ *([0-9]{1,10}\.[0-9]{1,9})\](?:\[ *[TC][0-9]{1,10}\])? ?")
# [Mon May 25 12:34:56 2026] text
_DATED = re.compile(
    r"(?:([a-z0-9]+) *:[a-z]+ *: )?\[(?:[A-Z][a-z]{2}) ([A-Z][a-z]{2} +[0-9]{1,2} [0-9:]{8} [0-9]{4})\] ?"
)
# Nov 30 12:00:00 host kernel: text         2026-05-25T12:34:56.123456+00:00 host kernel: text
_SYSLOG = re.compile(
    r"(?:([A-Z][a-z]{2} +[0-9]{1,2} [0-9:]{8})|([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8})\S{0,20}) "
    r"\S{1,255} ([^\s:\[]{1,64})(?:\[[0-9]{1,10}\])?: ?"
)
# kern: warning: [2026-05-25T12:34:56.789Z]: text
_TALOS = re.compile(r"([a-z0-9]{2,10}): +[a-z]{3,8}: \[([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8})[^\]]{0,20}\]: ?")
# Linux version 6.1.0-18-amd64 (...)            [    0.000000] Linux version 5.4.241 (...)
_BOOT = re.compile(r"(?:\[ *[0-9.]{1,20}\] )?Linux version [0-9]")
# message repeated 5 times: [ text]
_REPEATED = re.compile(r"message repeated ([0-9]{1,9}) times: \[ ?(.*)\]", re.DOTALL)


def read_log(lines: Iterable[str], *, kernel_only: bool = True) -> Iterator[Entry]:
    """The kernel's own lines of a log, or all lines. Never raises; time that goes back stands still."""
    now = 0.0
    for number, line in enumerate(lines, start=1):
        raw = line.rstrip("\r\n")[:LINE_LIMIT]
        if not raw or raw.startswith(COMMENT):
            continue
        at, kernel, text = _split(raw)
        boots = kernel and _BOOT.match(text) is not None
        now = at if boots and at is not None else max(now, now if at is None else at)
        if kernel or not kernel_only:
            count, text = _unrepeated(text)
            yield Entry(number, now, text, count, boots)


def _split(raw: str) -> tuple[float | None, bool, str]:
    """Seconds (None if the line has none), whether the kernel wrote it, and the text."""
    if found := _KMSG.match(raw):
        record = parse_record(raw.encode("utf-8", "replace"))
        text = record.text if record else raw[found.end() :]
        return int(found[1]) / 1e6, record is None or record.facility == KERNEL, text
    if found := _DMESG.match(raw):
        return float(found[2]), found[1] in (None, "kern"), raw[found.end() :]
    if found := _DATED.match(raw):
        return _seconds(found[2], "%b %d %H:%M:%S %Y"), found[1] in (None, "kern"), raw[found.end() :]
    if found := _SYSLOG.match(raw):
        at = _seconds(f"2000 {found[1]}", "%Y %b %d %H:%M:%S") if found[1] else _seconds(found[2], "%Y-%m-%dT%H:%M:%S")
        return at, found[3] == "kernel", raw[found.end() :]
    if found := _TALOS.match(raw):
        return _seconds(found[2], "%Y-%m-%dT%H:%M:%S"), found[1] == "kern", raw[found.end() :]
    return None, True, raw


def _seconds(text: str, form: str) -> float | None:
    try:
        return datetime.strptime(text, form).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _unrepeated(text: str) -> tuple[int, str]:
    found = _REPEATED.match(text)
    return (int(found[1]), found[2]) if found else (1, text)


def replay(entries: Iterable[Entry], catalogue: Catalogue) -> Replay:
    """What an agent that watches nothing but this log makes of it, from its first line on."""
    player = _Player(catalogue)
    for entry in entries:
        player.play(entry)
    return player.summary()


class _Player:
    """Goes through a log; what one line changes is a step."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._view = _FRESH
        self._standing: Mapping[str, Notice] = {}
        self._steps: list[Step] = []
        self._known: set[tuple[str, str]] = set()
        self._left_out = 0
        self._last = 0.0

    def play(self, entry: Entry) -> None:
        self._last = entry.at
        if entry.boots:
            self._view = _FRESH
            self._note(entry, (), fresh=False)
        told = self._catalogue.read_line(entry.text, entry.count)
        if not told:
            return
        self._note(Entry(0, entry.at, ""), (), fresh=False)  # time alone may have ended something
        self._view = fold(self._view, KernelRead(entry.at, None, told, 0, caught_up=True))
        keys = [(fact.fault.code, fact.fault.device) for fact in told if isinstance(fact, Sighting)]
        fresh = not self._known.issuperset(keys)
        if len(self._known) < KNOWN_LIMIT:
            self._known.update(keys)
        self._note(entry, tuple(code for code, _ in keys), fresh=fresh)

    def summary(self) -> Replay:
        notices, verdict = self._judge(self._last)
        counts = {f"{BOOT}/{code}/{device}": one.count for (code, device), one in self._view.faults.items()}
        kept = {name: counts[name] for name in notices}
        return Replay(tuple(self._steps), self._left_out, verdict, tuple(notices.values()), kept)

    def _note(self, entry: Entry, told: tuple[str, ...], *, fresh: bool) -> None:
        before, (after, verdict) = self._standing, self._judge(entry.at)
        began = tuple(notice for name, notice in after.items() if _gist(before.get(name)) != _gist(notice))
        ended = tuple(name.partition("/")[2] for name in before if name not in after)
        if (began or ended or fresh) and len(self._steps) >= STEP_LIMIT:
            self._left_out += 1
        elif began or ended or fresh:
            self._steps.append(Step(entry.number, entry.at, entry.text, told, began, ended, verdict))
        self._standing = after

    def _judge(self, at: float) -> tuple[Mapping[str, Notice], Verdict]:
        """Notices by their id, and the verdict: the log is read up to here."""
        self._view = fold(self._view, Answered(Source.KERNEL, at))
        report = next(one.report for one in decide(self._view, at).actions)
        return {notice.id: notice for notice in report.notices}, report.verdict


def _gist(notice: Notice | None) -> tuple[str, ...] | None:
    return None if notice is None else (notice.severity, notice.scope, notice.repair)
