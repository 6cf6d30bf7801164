"""What the machine's firmware says of itself: a few files of `/sys/class/dmi/id`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path("/sys/class/dmi/id")
LIMIT: Final = 256
"""Bytes read of each file; the real ones are shorter."""


def read_dmi(names: tuple[str, ...], root: Path = ROOT) -> dict[str, str]:
    """The content of those files that there are. Never raises."""
    found = {}
    for name in names:
        try:
            with (root / name).open("rb") as file:
                found[name] = file.read(LIMIT).decode("utf-8", "replace").strip()
        except OSError:
            continue
    return found
