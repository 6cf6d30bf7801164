"""The lab's NVML stand-in for a test: the real library, compiled here, and its state file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rlguard.errors import BadConfigError
from rlguard_chaos.lab import gpus

COUNT = 4


class Machine:
    """A machine with GPUs. `root` is its driver root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = root / gpus.STATE
        gpus.install(root, COUNT)

    def set(self, **changes: str | int | None) -> None:
        """Change lines of the state: `__` stands for a dot, and `gpu2` for `device.2`."""
        lines = {key.replace("__", ".").replace("gpu", "device."): value for key, value in changes.items()}
        gpus.change(self.state, lines)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """Four healthy GPUs."""
    try:
        made = Machine(tmp_path / "driver")
    except BadConfigError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("RLGUARD_NVML_STATE", str(made.state))
    yield made
    for call in ("nvmlInitWithFlags", "nvmlDeviceGetUUID"):
        made.set(**{f"hang.{call}": None})
