"""How a process of ours ends, and what its exit code says."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine, Mapping
from typing import Any

import pytest

from rlguard.errors import BadConfigError
from rlguard.io.process import A_BUG, BAD_CONFIG, TOLD_TO_END, Begin, run_process


class Log:
    """Remembers what was said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def error(self, text: str, error: str) -> None:
        """Take a line."""
        self.said.append(f"{text}: {error}")

    def exception(self, text: str) -> None:
        """Take a line that comes with a trace."""
        self.said.append(f"{text} (trace)")


def raising(error: Exception, log: Log) -> Begin:
    """A process that runs into `error`."""

    async def run() -> None:
        raise error

    return lambda _: (run, log)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_that_is_told_to_end_ends_well(number: int) -> None:
    async def run() -> None:
        os.kill(os.getpid(), number)
        await asyncio.Event().wait()

    assert run_process(lambda _: (run, Log())) == TOLD_TO_END


def test_a_wrong_setting_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def begin(_: Mapping[str, str]) -> tuple[Any, Any]:
        raise BadConfigError("RLGUARD_NODE is missing")

    assert run_process(begin) == BAD_CONFIG
    assert capsys.readouterr().err == "rlguard: RLGUARD_NODE is missing\n"


def test_a_bug_is_told_with_its_trace() -> None:
    log = Log()
    assert run_process(raising(ValueError("oops"), log)) == A_BUG
    assert log.said == ["a bug ended this process; it is started again (trace)"]


def test_what_a_person_must_correct_is_found_inside_the_groups_of_tasks() -> None:
    log = Log()
    wrong = ExceptionGroup("tasks", [ValueError("x"), ExceptionGroup("inner", [BadConfigError("no CA")])])
    assert run_process(raising(wrong, log)) == BAD_CONFIG
    assert log.said == ["a person must correct this: no CA"]


def test_what_runs_is_made_inside_the_loop() -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    def make() -> Coroutine[Any, Any, None]:
        loops.append(asyncio.get_running_loop())
        return asyncio.sleep(0)

    assert run_process(lambda _: (make, Log())) == TOLD_TO_END
    assert len(loops) == 1
