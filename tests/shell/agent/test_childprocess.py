"""A child process that may hang: what is asked of it, and how it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import Process

import pytest

from rlguard.io.childprocess import ChildProcess


async def test_each_line_is_answered_by_the_same_process() -> None:
    child = ChildProcess(("cat",), 100)
    await child.start()
    first = child.pid
    for word in (b"one\n", b"two\n"):
        child.write(word)
        assert await child.read_line() == word
    assert (child.pid, child.is_running) == (first, True)
    await child.kill()
    assert (child.pid, child.is_running, child.stuck) == (None, False, 0)


async def test_a_killed_one_is_gone_and_says_how_it_ended() -> None:
    child = ChildProcess(("cat",), 100)
    await child.start()
    pid = child.pid
    assert pid is not None
    assert await child.kill() == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_one_that_is_let_end_ends_by_itself() -> None:
    child = ChildProcess((sys.executable, "-c", "import sys; sys.stdin.read(); print('bye'); sys.exit(3)"), 100, 30.0)
    await child.start()
    process = child._process
    await child.end()
    assert process is not None
    assert process.returncode == 3


async def test_a_new_one_takes_the_place_of_the_old() -> None:
    child = ChildProcess(("cat",), 100)
    await child.start()
    old = child.pid
    assert old is not None
    await child.start()
    with pytest.raises(ProcessLookupError):
        os.kill(old, 0)
    assert child.is_running
    await child.kill()


async def test_a_line_beyond_the_limit_is_refused_and_what_is_left_of_it_keeps_no_pipe_open() -> None:
    child = ChildProcess(("sh", "-c", "head -c 100000 /dev/zero; exec cat"), 100)
    await child.start()
    with pytest.raises(ValueError, match="limit"):
        await child.read_line()
    assert await child.kill() == -signal.SIGKILL
    assert child.stuck == 0


async def test_what_cannot_be_killed_is_stuck_until_it_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    child = ChildProcess(("cat",), 100, 0.05)
    await child.start()
    pid = child.pid
    assert pid is not None
    monkeypatch.setattr(Process, "kill", lambda _: None)
    assert await child.kill() is None
    assert (child.stuck, child.is_running) == (1, False)
    os.kill(pid, signal.SIGKILL)
    await asyncio.gather(*child._dying)
    assert child.stuck == 0


async def test_a_caller_that_gives_up_while_it_kills_leaves_nobody_uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    child = ChildProcess(("cat",), 100, 60.0)
    await child.start()
    pid = child.pid
    assert pid is not None
    monkeypatch.setattr(Process, "kill", lambda _: None)
    killing = asyncio.create_task(child.kill())
    await asyncio.sleep(0.05)
    killing.cancel()
    await asyncio.gather(killing, return_exceptions=True)
    assert child.stuck == 1
    os.kill(pid, signal.SIGKILL)
    await asyncio.gather(*child._dying)


async def test_without_a_process_nothing_can_be_asked() -> None:
    child = ChildProcess(("/does/not/exist",), 100)
    with pytest.raises(OSError, match="not been started"):
        child.write(b"x\n")
    with pytest.raises(OSError, match="not been started"):
        await child.read_line()
    with pytest.raises(FileNotFoundError):
        await child.start()
    assert await child.kill() is None
