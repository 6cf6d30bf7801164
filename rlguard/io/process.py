"""A process of ours from its start to its end: settings, log, signals, and an exit code that says who must act."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from rlguard.errors import BadConfigError

TOLD_TO_END: Final = 0
A_BUG: Final = 1
BAD_CONFIG: Final = 2

Run = Callable[[], Coroutine[Any, Any, None]]
Begin = Callable[[Mapping[str, str]], tuple[Run, Any]]
"""From the environment to what runs until it is cancelled, and its log. Raises BadConfigError."""


def run_process(begin: Begin) -> int:
    """Run until SIGTERM or SIGINT. Returns the exit code; what a person must correct is told in one line.

    `TOLD_TO_END`; `A_BUG`: told with its trace, the process is started again; `BAD_CONFIG`: a person must correct it.
    """
    try:
        run, log = begin(os.environ)
    except BadConfigError as error:
        sys.stderr.write(f"rlguard: {error}\n")
        return BAD_CONFIG
    try:
        asyncio.run(_until_told(run))
    except Exception as error:
        wrong = _to_correct(error)
        if wrong is None:
            log.exception("a bug ended this process; it is started again")
            return A_BUG
        log.error("a person must correct this", error=str(wrong))  # noqa: TRY400 - the text says it all
        return BAD_CONFIG
    return TOLD_TO_END


async def _until_told(run: Run) -> None:
    task = asyncio.create_task(run(), name="process")
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _to_correct(error: BaseException) -> BadConfigError | None:
    """What a person must correct, also inside the groups in which tasks report their errors."""
    if isinstance(error, BaseExceptionGroup):
        return next((found for inner in error.exceptions if (found := _to_correct(inner)) is not None), None)
    return error if isinstance(error, BadConfigError) else None
