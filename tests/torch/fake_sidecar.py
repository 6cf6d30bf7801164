"""A scripted sidecar for tests: listens on `sidecar.sock`, sends orders, remembers the states, orders stages."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rlguard.launch.install import install
from rlguard.train import pages

REPO = Path(__file__).resolve().parents[2]


class FakeSidecar:
    """One pod: a launcher under `home`, this end of its socket, and its shared-memory folder."""

    def __init__(
        self, home: Path, command: list[str], environment: dict[str, str] | None = None, output: int | None = None
    ) -> None:
        self.run, self.shm, self.lib = home / "run", home / "shm", home / "lib"
        for folder in (self.run, self.shm, self.lib):
            folder.mkdir(parents=True, exist_ok=True)
        install(REPO / "rlguard", self.lib)
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(self.run / "sidecar.sock"))
        self._server.listen()
        self.log = home / "trainer.log"
        own = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "RLGUARD_WORLD")}
        paths = {"RLGUARD_RUN": str(self.run), "RLGUARD_SHM": str(self.shm)}
        with self.log.open("wb") as log:
            self.launcher = subprocess.Popen(
                [sys.executable, str(self.lib / "rlguard/launch/__main__.py"), "--", *command],
                env={**own, **paths, **(environment or {})},
                stdout=log if output is None else output,
                stderr=log,
            )
        self._server.settimeout(20)
        self._connection, _ = self._server.accept()
        self._reader = self._connection.makefile("rb")
        self.state: dict[str, Any] = {}

    def order(self, message: dict[str, Any]) -> None:
        """Send one order."""
        self._connection.sendall(json.dumps(message).encode() + b"\n")

    def start(self, incarnation: str, world: dict[str, Any] | None, resume: dict[str, Any] | None = None) -> None:
        """Order a start."""
        environment = {"RLGUARD_RESUME": json.dumps(resume)}
        if world is not None:
            environment["RLGUARD_WORLD"] = json.dumps({**world, "incarnation": incarnation})
        self.order({"type": "start", "incarnation": incarnation, "env": environment})

    def until(self, *phases: str, seconds: float = 90, **expected: Any) -> dict[str, Any]:
        """Read states until one is in a phase of these; fails with the last state and the output."""
        self._connection.settimeout(seconds)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.state = json.loads(self._reader.readline())
            if self.state["ranks"] in phases and all(self.state[key] == value for key, value in expected.items()):
                return self.state
        raise AssertionError(f"never {phases} {expected}: {self.state}\n{self.log.read_text()[-4000:]}")

    def stage(self, incarnation: str, order: int, step: int, slot: int) -> None:
        """Order a stage."""
        writer = pages.ControlWriter(self.shm)
        writer.write(pages.ControlPage(incarnation, order, step, slot))
        writer.close()

    def close(self) -> None:
        """End the launcher and everything it started."""
        self.launcher.kill()
        self.launcher.wait()
        self._reader.close()
        self._connection.close()
        self._server.close()
