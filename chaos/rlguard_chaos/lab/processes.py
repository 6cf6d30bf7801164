"""Processes of the lab: started into its cgroup, found by it, killed by it, never by a bare number.

Every process joins `rlguard-lab/<owner>/system` before it becomes the program it is, and containers are created below
`rlguard-lab/<node>`; children inherit the cgroup. So membership is exact whatever died or was recycled, and a process
the lab did not start is never in it. The cgroup of the freezer hierarchy is used (cgroup v1) or the only one (v2).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rlguard_chaos.lab import layout
from rlguard_chaos.lab.host import LabError, call

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MOUNT = Path("/sys/fs/cgroup")
CONTROL_PLANE = "control-plane"
CONTROLLERS = ("cpu", "cpuset", "io", "memory", "pids", "hugetlb")
SHARES = {"cpu.shares": "20480", "cpu.weight": "1000"}
"""Files of cgroup v1 and v2, and what is written there: a lab is several machines, but a cgroup with the default share
counts as one single process beside whatever else this machine runs, and its pods starve."""
DEATH_LIMIT_S = 15.0
BURIAL_LIMIT_S = 5.0
JOIN = 'echo 0 > "$1/cgroup.procs" && shift && exec setsid --fork "$@"'


@dataclass(frozen=True)
class Program:
    """One program of the lab: its name in the logs, who owns it (CONTROL_PLANE or a node), and how it is started."""

    name: str
    owner: str
    command: Sequence[str]


def hierarchy() -> Path:
    """Root of the hierarchy whose membership identifies the lab's processes."""
    return MOUNT if (MOUNT / "cgroup.controllers").exists() else MOUNT / "freezer"


def enter(node: str) -> list[str]:
    """The command prefix that runs a program inside the node.

    Not `ip netns exec`: it remounts /sys, which hides the cgroups from the kubelet.
    """
    kinds = {"net": "net", "mnt": "mount", "uts": "uts", "ipc": "ipc"}
    return ["nsenter", *(f"--{flag}={layout.NAMESPACES}/{node}.{kind}" for kind, flag in kinds.items())]


def start(program: Program) -> None:
    """Start the program in its owner's cgroup, detached, its output appended to its log.

    Raises LabError when not even its process could be made.
    """
    group = hierarchy() / layout.CGROUP / program.owner / "system"
    group.mkdir(parents=True, exist_ok=True)
    layout.LOGS.mkdir(parents=True, exist_ok=True)
    inside = enter(program.owner) if program.owner != CONTROL_PLANE else []
    command = ["/bin/sh", "-c", JOIN, "sh", str(group), *inside, *program.command]
    environment = {**os.environ, layout.MARKER: program.name}
    with (layout.LOGS / f"{program.name}.log").open("ab") as log:
        done = subprocess.run(  # noqa: S603  # a list, no shell
            command, cwd="/", env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False
        )
    if done.returncode:
        raise LabError(f"{program.name} could not be started; see {log.name}")


def members(owner: str = "") -> frozenset[int]:
    """Process ids in the owner's cgroup and below; with no owner, of the whole lab."""
    found: set[int] = set()
    for folder in _groups(owner):
        with contextlib.suppress(OSError):
            found.update(int(word) for word in (folder / "cgroup.procs").read_text().split())
    return frozenset(found - {0})


def strays() -> frozenset[int]:
    """Processes with the lab's mark in their environment that had no time to join its cgroup."""
    mark = f"{layout.MARKER}=".encode()
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(entry.startswith(mark) for entry in (folder / "environ").read_bytes().split(b"\0")):
                found.add(int(folder.name))
    return frozenset(found - {os.getpid()})


def running() -> dict[str, int]:
    """Name of each program of the lab that is alive, with its process id."""
    found = {}
    mark = f"{layout.MARKER}=".encode()
    for pid in members():
        with contextlib.suppress(OSError):
            folder = Path("/proc", str(pid))
            state = (folder / "stat").read_text().rpartition(")")[2].split()
            words = (folder / "environ").read_bytes().split(b"\0")
            name = next((word.partition(b"=")[2] for word in words if word.startswith(mark)), b"")
            leads = state[3] == str(pid)  # the session leader is the program, the rest are its children
            if name and leads and state[0] != "Z":
                found[name.decode()] = pid
    return found


def kill(owner: str = "") -> frozenset[int]:
    """SIGKILL everything of the owner at one moment: frozen first, so that no part sees another die.

    Returns the process ids.

    Raises LabError when a process survives, as one in an uninterruptible wait does.
    """
    deadline = time.monotonic() + DEATH_LIMIT_S
    killed: set[int] = set()
    with contextlib.suppress(LabError):
        freeze(owner)
    while left := members(owner) | (frozenset() if owner else strays()):
        killed |= left
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        thaw(owner)
        if time.monotonic() > deadline:
            raise LabError(f"processes {sorted(left)} survive SIGKILL; see /proc/PID/stack for what they wait for")
        time.sleep(0.02)
    return frozenset(killed)


def wait_buried(pids: Iterable[int]) -> None:
    """Wait, within limits, until init has collected these dead processes, so that they are in no listing."""
    deadline = time.monotonic() + BURIAL_LIMIT_S
    while any(_is_zombie(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)


def _is_zombie(pid: int) -> bool:
    """Dead, but not yet collected by init."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False


def freeze(owner: str) -> None:
    """Stop every process of the owner at one moment, as when a machine hangs.

    Raises LabError when they do not stop within a second.
    """
    top = hierarchy() / layout.CGROUP / owner
    if not top.exists():
        return
    _set_frozen(top, frozen=True)
    deadline = time.monotonic() + 1
    while not _is_frozen(top):
        if time.monotonic() > deadline:
            raise LabError(f"the processes in {top} do not freeze")
        time.sleep(0.005)


def thaw(owner: str) -> None:
    """Let every process of the owner go on."""
    for folder in _groups(owner):
        with contextlib.suppress(OSError):
            _set_frozen(folder, frozen=False)


def frozen(owner: str) -> bool:
    """Whether the owner's processes are stopped."""
    top = hierarchy() / layout.CGROUP / owner
    return top.exists() and _is_frozen(top)


def remove_groups(owner: str = "") -> None:
    """Remove the owner's empty cgroups from every hierarchy."""
    for root in _roots():
        top = root / layout.CGROUP / owner
        for folder, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                Path(folder).rmdir()


def create_groups(owner: str) -> None:
    """Create the owner's cgroup in every hierarchy, as the kubelet expects of its root."""
    for root in _roots():
        (root / layout.CGROUP / owner).mkdir(parents=True, exist_ok=True)
    if hierarchy() == MOUNT:  # cgroup v2: a group has the controllers that its parent hands down
        for controller, folder in itertools.product(CONTROLLERS, (MOUNT, MOUNT / layout.CGROUP)):
            with contextlib.suppress(OSError):  # not every kernel has every one; the kubelet names what it misses
                (folder / "cgroup.subtree_control").write_text(f"+{controller}")
    for root, (file, value) in itertools.product(_roots(), SHARES.items()):
        share = root / layout.CGROUP / file
        if share.exists():
            share.write_text(value)


def inside(node: str, *command: str | Path, stdin: str | None = None) -> str:
    """Run a short command inside the node and return its output.

    Raises LabError when it fails.
    """
    return call(*enter(node), *command, stdin=stdin)


def _roots() -> Sequence[Path]:
    return [MOUNT] if hierarchy() == MOUNT else [root for root in MOUNT.iterdir() if root.is_dir()]


def _groups(owner: str) -> Iterator[Path]:
    for folder, _, _ in os.walk(hierarchy() / layout.CGROUP / owner):
        yield Path(folder)


def _set_frozen(folder: Path, *, frozen: bool) -> None:
    if hierarchy() == MOUNT:
        (folder / "cgroup.freeze").write_text(str(int(frozen)))
    else:
        (folder / "freezer.state").write_text("FROZEN" if frozen else "THAWED")


def _is_frozen(folder: Path) -> bool:
    if hierarchy() == MOUNT:
        return "frozen 1" in (folder / "cgroup.events").read_text()
    return (folder / "freezer.state").read_text().strip() == "FROZEN"
