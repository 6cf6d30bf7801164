"""Lines about processes: killed for memory, stuck, or holding a CPU for too long. Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from rlguard.health.lines.line import Line, Pattern, first

TELLTALES: Final = (
    "oom-kill:",
    "Kill process",
    "Killed process",
    "blocked for more than",
    "soft lockup",
    "hard LOCKUP",
    "detected stall",
    "detected expedited stall",
)

# .../kubepods/burstable/pod0b7e.../<container>      .../kubepods-burstable-pod0b7e_..._....slice/cri-
#   containerd-...scope
_POD = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")

_PATTERNS = (
    # oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=...,mems_allowed=0,oom_memcg=...,
    #   task_memcg=/kubepods/burstable/pod<uid>/<container>,task=python3,pid=863987,uid=0
    Pattern(
        "oom-kill",
        re.compile(r"oom-kill:constraint=.{0,2000}task_memcg=.{0,600},task=.{0,64},pid=(?P<pid>[0-9]{1,10}),uid="),
        "",
    ),
    # Memory cgroup out of memory: Killed process 23793 (leaker) total-vm:...kB, anon-rss:...kB, ... oom_score_adj:...
    # Comes after a line of the form above, which says more.
    Pattern("oom-killed-process", re.compile(r"Killed process (?P<pid>[0-9]{1,10}) \(.{0,64}\),? (?:total-vm|UID)")),
    # Out of memory: Kill process 25169 (x) score 2109 or sacrifice child                            (older)
    Pattern(
        "oom-kill", re.compile(r"Kill process (?P<pid>[0-9]{1,10}) \(.{0,64}\) score [0-9]{1,6} or sacrifice child")
    ),
    # Killed process 123, UID 48, (httpd)                                                            (very old)
    Pattern("oom-kill", re.compile(r"Killed process (?P<pid>[0-9]{1,10}), UID [0-9]{1,10}, \(.{0,64}\)")),
    # INFO: task objcopy:24916 blocked for more than 120 seconds.
    Pattern(
        "hung-task", re.compile(r"INFO: task .{1,64}:(?P<pid>[0-9]{1,10}) blocked for more than [0-9]{1,6} seconds")
    ),
    # watchdog: BUG: soft lockup - CPU#18 stuck for 27s! [python3:2254956]
    Pattern(
        "soft-lockup",
        re.compile(r"BUG: soft lockup - CPU#[0-9]{1,5} stuck for [0-9]{1,8}s! \[.{0,64}:(?P<pid>[0-9]{1,10})\]"),
    ),
    # NMI watchdog: Watchdog detected hard LOCKUP on cpu 5
    Pattern(
        "hard-lockup",
        re.compile(r"[Ww]atchdog(?:: CPU[0-9]{1,5}:)? (?:Watchdog )?detected hard LOCKUP on cpu [0-9]{1,5}"),
    ),
    # rcu: INFO: rcu_sched self-detected stall on CPU
    # rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:
    Pattern("rcu-stall", re.compile(r"INFO: rcu_\w{1,32} (?:self-)?detected (?:expedited )?stalls? on CPU")),
)


def read(text: str) -> Line | None:
    """What a line tells of processes and CPUs, None if nothing. Never raises."""
    line = first(_PATTERNS, text)
    if line is None or line.code != "oom-kill":
        return line
    pod = pod_of(text)
    return replace(line, device=f"pod/{pod}" if pod else "node")


def pod_of(text: str) -> str | None:
    """The UID of the pod whose cgroup a line names last (of an OOM kill: the victim's), None if it names none."""
    found = _POD.findall(text)
    return found[-1].replace("_", "-") if found else None
