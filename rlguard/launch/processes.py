"""What the launcher needs of Linux: adopting orphans, dying with a parent, and walking the tree of processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_PROC: Final = Path("/proc")
_ZOMBIE_STATES: Final = ("Z", "X")
_PARENT_FIELD: Final = 1  # counted from the state, the first field after the command's name; see proc(5)
_EXIT_CODE_FIELD: Final = 49


def adopt_orphans() -> None:
    """Make every descendant whose parent dies a child of this process. Raises OSError."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when the thread of `parent` that started it ends. Raises OSError."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the line above
        os.kill(os.getpid(), signal.SIGKILL)


def descendants(root: int) -> list[int]:
    """Every live process below `root`, in no particular order. Zombies are dead."""
    below: dict[int, list[int]] = {}
    dead = set()
    for pid in (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal()):
        fields = _stat(pid)
        if fields is None:
            continue
        below.setdefault(int(fields[_PARENT_FIELD]), []).append(pid)
        if fields[0] in _ZOMBIE_STATES:
            dead.add(pid)
    found, queue = [], [root]
    while queue:
        children = below.get(queue.pop(), [])
        queue += children
        found += children
    return [pid for pid in found if pid not in dead]


def has_children() -> bool:
    """Whether this process has any child, dead ones not yet waited for included. Exact, as a walk of /proc is not."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def kill_group(leader: int) -> None:
    """Kill a process group in one step: not even a process that forks and ends all the time slips through."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def children(parent: int) -> list[int]:
    """Direct children of one process; empty when it is gone or the kernel does not tell."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in (_PROC / str(parent) / "task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found


def is_rank(pid: int) -> bool:
    """Whether this process carries a rank's environment (torchrun sets LOCAL_RANK in each one it starts)."""
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return False
    return b"\0LOCAL_RANK=" in b"\0" + environment


def status_of_dead(pid: int) -> int | None:
    """Return the wait status of a process that ended and was not yet waited for; None when it can't be told."""
    fields = _stat(pid)
    if fields is None or fields[0] not in _ZOMBIE_STATES:
        return None
    return int(fields[_EXIT_CODE_FIELD])


def send(pids: list[int], number: signal.Signals) -> None:
    """Signal each of them; one that has just gone is no error."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _stat(pid: int) -> list[str] | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}, {value}): {os.strerror(number)}")
