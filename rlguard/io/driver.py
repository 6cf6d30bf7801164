"""Where NVIDIA's driver is: its library under the root of the driver's files, and the signs that a driver is loaded.

The library belongs to the node's driver, not to our image. Where it is: the container toolkit (runtimeClassName
nvidia) puts it into the container's own library folder; NVIDIA's GPU operator keeps the driver's files under
/run/nvidia/driver, GKE under /home/kubernetes/bin/nvidia, a driver installed on the node itself in the node's /usr.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

LIBRARY: Final = "libnvidia-ml.so.1"
FOLDERS: Final = (
    "",
    "lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/local/nvidia/lib64",
    "usr/local/nvidia/lib",
)
"""Where a driver root may have the library, in the order in which they are tried."""
SIGNS: Final = (Path("/proc/driver/nvidia"), Path("/dev/nvidiactl"))
"""There while the kernel's driver is loaded."""


def find_library(root: Path) -> Path | None:
    """The driver's NVML library under `root`, None if it is in none of the FOLDERS."""
    return next((path for folder in FOLDERS if (path := root / folder / LIBRARY).exists()), None)


def has_driver(root: Path, signs: Iterable[Path] = SIGNS) -> bool:
    """Whether anything says that this node has NVIDIA's driver."""
    return any(sign.exists() for sign in signs) or find_library(root) is not None
