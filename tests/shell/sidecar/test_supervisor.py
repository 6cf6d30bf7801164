"""PID 1 of the sidecar container: one socket for life, a new process for each that dies."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pod import children
from waiting import until

CHILD = """
import os, socket, time
s = socket.socket(fileno=int(os.environ["RLGUARD_LISTEN_FD"]))
open(os.environ["SAID"], "a").write(f"{os.getpid()} {s.getsockname()[1]}\\n")
if os.fork() == 0:
    os._exit(0)
time.sleep(60)
"""


@pytest.fixture
def said(tmp_path: Path) -> Path:
    return tmp_path / "said"


@pytest.fixture
def supervisor(said: Path, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    child = tmp_path / "child.py"
    child.write_text(CHILD)
    program = f"from rlguard_sidecar import supervisor\nsupervisor.COMMAND = ({str(child)!r},)\nsupervisor.main()\n"
    environment = {**os.environ, "RLGUARD_POD_IP": "127.0.0.1", "SAID": str(said)}
    with subprocess.Popen([sys.executable, "-c", program], env=environment, stderr=subprocess.DEVNULL) as process:
        yield process
        for pid in children(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.kill()


def lines(said: Path) -> list[list[str]]:
    return [line.split() for line in said.read_text().splitlines()] if said.exists() else []


async def test_a_killed_process_is_started_again_on_the_same_port(
    supervisor: subprocess.Popen[bytes], said: Path
) -> None:
    await until(lambda: len(lines(said)) == 1)
    os.kill(int(lines(said)[0][0]), signal.SIGKILL)
    await until(lambda: len(lines(said)) == 2)
    (first, port), (second, same) = lines(said)
    assert first != second
    assert port == same
    assert supervisor.poll() is None


async def test_a5_between_two_processes_a_handshake_still_completes(
    supervisor: subprocess.Popen[bytes], said: Path
) -> None:
    await until(lambda: len(lines(said)) == 1)
    pid, port = lines(said)[0]
    os.kill(int(pid), signal.SIGSTOP)  # no process of ours answers now
    with socket.create_connection(("127.0.0.1", int(port)), timeout=2):
        pass
    os.kill(int(pid), signal.SIGKILL)
    with socket.create_connection(("127.0.0.1", int(port)), timeout=2):
        assert supervisor.poll() is None


async def test_sigterm_is_handed_on_and_ends_it(supervisor: subprocess.Popen[bytes], said: Path) -> None:
    await until(lambda: len(lines(said)) == 1)
    supervisor.terminate()
    await until(lambda: supervisor.poll() is not None)
    assert supervisor.returncode == 0
    with pytest.raises(ProcessLookupError):
        os.kill(int(lines(said)[0][0]), 0)
