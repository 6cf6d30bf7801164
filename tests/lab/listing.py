"""What is on this machine, looked at without any help of the lab: for "nothing is left"."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

LIMIT_S = 10.0


def output(*command: str) -> str:
    """Standard output of a program that must succeed."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def processes() -> dict[int, str]:
    """Every process that is no kernel thread."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            dead = (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            continue
        if words or dead:
            found[int(folder.name)] = words or f"dead {(folder / 'comm').read_text().strip()}"
    return found


def things() -> dict[str, list[str]]:
    """Mounts, namespaces with a name, links, loop devices, packet rules, cgroups and folders."""
    return {
        "mounts": sorted(line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()),
        "namespaces": sorted(map(str, Path("/run/netns").glob("*"))),
        "links": sorted(str(p) for p in Path("/sys/class/net").iterdir()),
        "loops": output("losetup", "--all").splitlines(),
        "rules": [line for line in output("iptables-save").splitlines() if not line.startswith("#")],
        "cgroups": sorted(str(p) for p in Path("/sys/fs/cgroup").rglob("*lab*") if p.is_dir()),
        "folders": sorted(
            str(p) for top in ("/run", "/var/lib", "/opt", "/etc", "/var/log") for p in Path(top).iterdir()
        ),
        "kernel": [Path("/proc/sys", name).read_text() for name in ("vm/overcommit_memory", "kernel/panic")],
    }


def newcomers(before: dict[int, str], words: tuple[str, ...]) -> dict[int, str]:
    """Processes that were not there before and are a lab's by their command line, once init had time to collect."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        new = {pid: line for pid, line in processes().items() if before.get(pid) != line}
        new = {pid: line for pid, line in new.items() if any(word in line for word in words)}
        if not new or time.monotonic() > deadline:
            return new
        time.sleep(0.1)
