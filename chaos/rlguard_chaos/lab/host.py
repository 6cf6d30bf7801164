"""The few things the lab asks of the machine: programs, mounts, links, and the lock."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import struct
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rlguard.errors import BadConfigError, RlguardError
from rlguard_chaos.lab import layout

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PACKAGES = {"runc": "runc", "iptables": "iptables", "ip": "iproute2", "nsenter": "util-linux", "go": "golang-go"}


class LabError(RlguardError):
    """A part of the lab could not be started or did not answer in time; the message names its log."""


def call(*command: str | Path, stdin: str | None = None) -> str:
    """Run a program and return its standard output.

    Raises LabError with the program's own words when it fails.
    """
    words = [str(word) for word in command]
    done = subprocess.run(  # noqa: S603  # a list, no shell
        words, input=stdin, capture_output=True, text=True, env=_marked(), check=False
    )
    if done.returncode:
        raise LabError(f"`{' '.join(words[:6])}` failed: {(done.stderr or done.stdout).strip()[-400:]}")
    return done.stdout


def attempt(*command: str | Path) -> bool:
    """Run a program whose failure is one of the expected outcomes; true when it succeeded."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, env=_marked(), check=False)  # noqa: S603  # a list, no shell
    return done.returncode == 0


def _marked() -> dict[str, str]:
    """By the mark a removal also finds a step that outlives its killed caller."""
    return {**os.environ, layout.MARKER: "step"}


def require_machine() -> None:
    """Refuse with one sentence where no lab can run.

    Raises BadConfigError.
    """
    if platform.system() != "Linux":
        raise BadConfigError(f"the lab needs Linux (namespaces, cgroups); this is {platform.system()}")
    if os.geteuid() != 0:
        raise BadConfigError("the lab needs root (it creates namespaces and mounts): run it with sudo")


def require_programs(*names: str) -> None:
    """Install the missing ones through apt-get, where there is one.

    Raises BadConfigError naming the command to type.
    """
    missing = [name for name in names if not shutil.which(name)]
    if not missing:
        return
    packages = [PACKAGES[name] for name in missing]
    apt = shutil.which("apt-get")
    installed = apt and attempt(apt, "update", "-qq") and attempt(apt, "install", "-y", "-qq", *packages)
    if not installed or not all(shutil.which(name) for name in missing):
        raise BadConfigError(
            f"missing on this machine: {', '.join(missing)}; install them, for one with "
            f"`apt-get install {' '.join(packages)}`"
        )


@contextmanager
def lab_lock() -> Iterator[None]:
    """Hold the machine's one lab lock: a socket name, which the kernel gives back when its holder dies.

    Raises BadConfigError when another command holds it.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as lock:
        try:
            lock.bind("\0rlguard-lab")
        except OSError:
            raise BadConfigError(
                f"another `rlguard lab` command{_holder()} is changing the lab; wait for it to end"
            ) from None
        lock.listen()
        yield


def _holder() -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect("\0rlguard-lab")
        except OSError:
            return ""
        credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return f" (process {struct.unpack('3i', credentials)[0]})"


def mounts_under(folder: Path) -> Sequence[str]:
    """Mount points at or below the folder, deepest first."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    points = [line.split()[1].encode().decode("unicode_escape") for line in lines]
    below = [point for point in points if point == str(folder) or point.startswith(f"{folder}/")]
    return below[::-1]


def link_exists(name: str) -> bool:
    """Whether the machine has a network link of this name."""
    return Path("/sys/class/net", name).exists()


def write_whole(path: Path, text: str) -> None:
    """Write a file that appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)
