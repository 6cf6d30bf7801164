"""What Kubernetes Events say about the node: one for each fault that is new, and a bounded number of them. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from rlguard.messages import AgentReport
from rlguard.model import Notice, Repair, Severity

MEMORY: Final = 3600.0
"""Seconds for which a fault that was told is not told again: the API server keeps an Event for an hour."""
MOST_WAITING: Final = 32
MOST_TOLD: Final = 512
MESSAGE_LENGTH: Final = 1000
REASON_LENGTH: Final = 128

TO_DO: Final[Mapping[Repair, str]] = {
    Repair.NONE: "nothing is to be repaired",
    Repair.RESTART_PROCESS: "the process must be started again, which rlguard does",
    Repair.RESET_GPU: "reset the GPU (drain the node, nvidia-smi --gpu-reset)",
    Repair.REBOOT: "reboot the node",
    Repair.REPLACE: "replace the node",
    Repair.FIX_PROGRAM: "correct the program that ran there",
}


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """One Event to write. `key` is the same for the same fault on the same boot."""

    key: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class EventQueue:
    """When each fault was told (`at`, by notice id), what waits (oldest first), and how many never will be written."""

    at: Mapping[str, float] = field(default_factory=dict)
    waiting: tuple[NodeEvent, ...] = ()
    dropped: int = 0


def hear(queue: EventQueue, report: AgentReport, now: float) -> EventQueue:
    """What is to be told after one more report, which came at `now` (seconds of CLOCK_BOOTTIME)."""
    known = {name: at for name, at in queue.at.items() if now - at < MEMORY}
    fresh = {one.id: one for one in report.notices if one.severity is not Severity.INFO and one.id not in known}
    waiting = (*queue.waiting, *(_event(notice) for notice in fresh.values()))
    marked = {**known, **dict.fromkeys(fresh, now)}
    newest = dict(sorted(marked.items(), key=lambda item: item[1])[-MOST_TOLD:])
    return EventQueue(newest, waiting[:MOST_WAITING], queue.dropped + max(0, len(waiting) - MOST_WAITING))


def written(queue: EventQueue, event: NodeEvent) -> EventQueue:
    """What is left to tell once an Event is written."""
    return replace(queue, waiting=tuple(one for one in queue.waiting if one != event))


def _event(notice: Notice) -> NodeEvent:
    device = notice.id.partition("/")[2].partition("/")[2]
    end = "" if notice.seconds_left is None else f" In {notice.seconds_left:.0f} s it is gone."
    message = f"{device}: {notice.detail}.{end} To do: {TO_DO[notice.repair]}."[:MESSAGE_LENGTH]
    key = hashlib.sha256(notice.id.encode()).hexdigest()[:16]
    return NodeEvent(key, notice.code[:REASON_LENGTH], message)
