"""A pod for tests: a real supervisor with its sidecar, and a real launcher, on one loopback address."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[3]
SCRIPT = Path(__file__).with_name("trainscript.py")


class Step(NamedTuple):
    """One line of the step log."""

    incarnation: str
    step: int
    pid: int
    first: int


@dataclass
class Pod:
    """One member of the group `team/ppo/0`."""

    folder: Path
    index: int
    controller: str
    authority: bytes
    root: str
    size: int = 2
    agent_port: int = 7443
    extra: dict[str, str] = field(default_factory=dict)
    sidecar: subprocess.Popen[bytes] | None = None
    launcher: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.folder.mkdir()
        for name in ("run", "shm", "state"):
            (self.folder / name).mkdir()
        self.name = "ppo-0" if self.index == 0 else f"ppo-0-{self.index}"
        self.uid = f"uid-{self.index}"
        self.address = f"127.0.0.{10 + self.index}"
        (self.folder / "token").write_text(f"{self.name} {self.uid}\n")

    def start(self) -> None:
        """Both containers."""
        self.start_sidecar()
        self.start_launcher()

    def start_sidecar(self) -> None:
        """The sidecar container."""
        with (self.folder / "sidecar.log").open("ab") as log:
            command = [sys.executable, "-m", "rlguard_sidecar.supervisor"]
            self.sidecar = subprocess.Popen(command, env=self._sidecar_environment(), stderr=log, stdout=log)

    def start_launcher(self) -> None:
        """The trainer container."""
        environment = {
            "PATH": os.environ["PATH"],
            "RLGUARD_RUN": str(self.folder / "run"),
            "RLGUARD_SHM": str(self.folder / "shm"),
            "STEP_LOG": str(self.folder / "steps.log"),
            **self.extra,
        }
        launcher = REPOSITORY / "rlguard" / "launch" / "__main__.py"
        with (self.folder / "trainer.log").open("ab") as log:
            command = [sys.executable, str(launcher), "--", sys.executable, str(SCRIPT)]
            self.launcher = subprocess.Popen(command, env=environment, stderr=log, stdout=log)

    def stop(self) -> None:
        """End both, hard."""
        for process in (self.sidecar, self.launcher):
            if process is not None:
                for child in children(process.pid):
                    _kill(child)
                process.kill()
                process.wait()

    def kill_sidecar_process(self) -> int:
        """SIGKILL the real process under the supervisor; returns its pid."""
        assert self.sidecar is not None
        (pid,) = children(self.sidecar.pid)
        os.kill(pid, signal.SIGKILL)
        return pid

    def sidecar_pid(self) -> int | None:
        """The real process under the supervisor."""
        assert self.sidecar is not None
        return next(iter(children(self.sidecar.pid)), None)

    def steps(self) -> list[Step]:
        """What the ranks of this pod have done."""
        try:
            lines = (self.folder / "steps.log").read_text().splitlines()
        except FileNotFoundError:
            return []
        split = (line.split() for line in lines if line.count(" ") == 3)
        return [Step(incarnation, int(step), int(pid), int(first)) for incarnation, step, pid, first in split]

    def last(self) -> Step | None:
        """The newest step."""
        return next(iter(self.steps()[-1:]), None)

    def _sidecar_environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "RLGUARD_NAMESPACE": "team",
            "RLGUARD_POD": self.name,
            "RLGUARD_POD_UID": self.uid,
            "RLGUARD_NODE": f"node-{self.index}",
            "RLGUARD_HOST_IP": self.address,
            "RLGUARD_POD_IP": self.address,
            "RLGUARD_JOB": "ppo",
            "RLGUARD_GROUP": "0",
            "RLGUARD_INDEX": str(self.index),
            "RLGUARD_SIZE": str(self.size),
            "RLGUARD_CONTROLLER": self.controller,
            "RLGUARD_CA": self.authority.decode(),
            "RLGUARD_ROOT": self.root,
            "RLGUARD_AGENT_PORT": str(self.agent_port),
            "RLGUARD_TOKEN": str(self.folder / "token"),
            "RLGUARD_RUN": str(self.folder / "run"),
            "RLGUARD_SHM": str(self.folder / "shm"),
            "RLGUARD_STATE": str(self.folder / "state"),
        }


def children(pid: int) -> list[int]:
    """The child processes of one."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _kill(pid: int) -> None:
    for child in children(pid):
        _kill(child)
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
