"""The GPUs of a node of the lab: the NVML stand-in, compiled when needed, and the state file that drives it.

The stand-in is `nvml/stub.c`, which describes the lines of the state file. A node finds library and file in the folder
`nvml` of its fakes; what a test changes there shows at the next NVML call.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from rlguard.errors import BadConfigError
from rlguard_chaos.lab import layout
from rlguard_chaos.lab.host import LabError, write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping

SOURCE = layout.PACKAGE / "nvml" / "stub.c"
LIBRARY = "libnvidia-ml.so.1"
STATE = "state"
FLAGS = (
    *("-std=c11", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-Wpedantic"),
    f"-Wl,-soname,{LIBRARY}",
)
LINKS = 18
"""NVLinks of an H800."""


def library() -> Path:
    """The compiled stand-in, from the cache or built now.

    Raises BadConfigError on a machine without a C compiler, LabError when the build fails.
    """
    digest = hashlib.sha256(f"{FLAGS} {platform.machine()}".encode() + SOURCE.read_bytes()).hexdigest()[:16]
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    built = base / "rlguard" / "lab" / f"nvml-{digest}" / LIBRARY
    if not built.exists():
        _compile(built)
    return built


def _compile(target: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        raise BadConfigError(
            "no C compiler (cc) on this machine, so the lab's nodes show no GPUs; install one, for instance with "
            "`apt-get install gcc libc6-dev`"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.{threading.get_native_id()}")  # nodes boot side by side
    command = [compiler, *FLAGS, "-o", str(unfinished), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # a list, no shell
    if done.returncode:
        unfinished.unlink(missing_ok=True)
        raise LabError(f"building the NVML stand-in failed: {done.stderr.strip()[-400:]}")
    unfinished.replace(target)


def unavailable() -> str:
    """Why this machine cannot play GPUs, and what to do; empty when it can."""
    try:
        library()
    except (BadConfigError, LabError) as error:
        return str(error)
    return ""


def install(folder: Path, count: int) -> None:
    """Put the library and, unless there is one, the state of `count` healthy GPUs into a folder.

    Raises what `library` raises.
    """
    built = library()
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".{LIBRARY}"
    shutil.copyfile(built, unfinished)
    unfinished.replace(folder / LIBRARY)  # whole: a process may have the old one mapped
    if not (folder / STATE).exists():
        write_state(folder / STATE, healthy(count))


def healthy(count: int) -> dict[str, str]:
    """The state of a machine with so many sound GPUs."""
    state = {"count": str(count), "driver": "550.54.15"}
    for index in range(count):
        state |= {f"device.{index}.{key}": str(value) for key, value in _device(index).items()}
    return state


def _device(index: int) -> dict[str, str | int]:
    values: dict[str, str | int] = {
        "uuid": f"GPU-00000000-0000-4000-8000-{index:012d}",
        "pci": pci_address(index),
        "name": "NVIDIA H800",
        "serial": f"165000000000{index}",
        "minor": index,
        "throttle": "0x0",
        "temperature": 41,
        "temperature.slowdown": 87,
        "power": 70_000,
        "pages.pending": 0,
        "fabric.state": 3,
        "fabric.status": 0,
        "fabric.health": "0x0",
        "field.230": 0,
        "field.52": 0,
        "field.59": 0,
        "banks.max": 640,
    }
    values |= dict.fromkeys(("banks.high", "banks.partial", "banks.low", "banks.none"), 0)
    values |= {f"remap.{what}": 0 for what in ("corrected", "uncorrected", "pending", "failure")}
    values |= {f"ecc.{of}.{kind}": 0 for of in ("volatile", "aggregate") for kind in ("corrected", "uncorrected")}
    return values | {f"link.{link}": 1 for link in range(LINKS)}


def pci_address(index: int) -> str:
    """Where the GPU with this index sits, as NVML spells it."""
    return f"00000000:{0x1B + 0x10 * index:02X}:00.0"


def read_state(path: Path) -> dict[str, str]:
    """What a state file says; later lines win."""
    lines = (line.partition("=") for line in path.read_text().splitlines())
    return {key: value for key, sign, value in lines if sign}


def write_state(path: Path, state: Mapping[str, str]) -> None:
    """Replace a state file, so that a reader finds the old one or the new one."""
    write_whole(path, "".join(f"{key}={value}\n" for key, value in state.items()))


def change(path: Path, changes: Mapping[str, str | int | None]) -> None:
    """Change lines of a state file; None takes a line away."""
    state = read_state(path) | {key: str(value) for key, value in changes.items() if value is not None}
    write_state(path, {key: value for key, value in state.items() if changes.get(key, "") is not None})


def tell_xid(path: Path, index: int, code: int) -> None:
    """Let NVML tell that a device had an Xid."""
    numbers = [int(key.removeprefix("xid.")) for key in read_state(path) if key.startswith("xid.")]
    change(path, {f"xid.{max(numbers, default=0) + 1}": f"{index} {code}"})
