"""`python -m rlguard_controller`: the controller's process. Every replica injects and certifies, one leads."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from typing import Any

from rlguard.errors import BadConfigError
from rlguard.io.log import configure
from rlguard_controller.controller import Controller
from rlguard_controller.settings import Settings, read_settings


def main() -> int:
    """Run until told to end. 2: something a person must correct; 1: a bug, told with its trace."""
    try:
        settings = read_settings(os.environ)
    except BadConfigError as error:
        sys.stderr.write(f"rlguard: {error}\n")
        return 2
    log = configure("controller", pod=settings.pod)
    try:
        asyncio.run(_serve(settings, log))
    except Exception as error:
        wrong = _to_correct(error)
        if wrong is None:
            log.exception("a bug ended this process; it is started again")
            return 1
        log.error("a person must correct this", error=str(wrong))  # noqa: TRY400 - the text says it all
        return 2
    return 0


def _to_correct(error: BaseException) -> BadConfigError | None:
    """What a person must correct, also inside the groups in which tasks report their errors."""
    if isinstance(error, BaseExceptionGroup):
        return next((found for inner in error.exceptions if (found := _to_correct(inner)) is not None), None)
    return error if isinstance(error, BadConfigError) else None


async def _serve(settings: Settings, log: Any) -> None:
    running = asyncio.create_task(Controller(settings, log).run(), name="controller")
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await running


if __name__ == "__main__":
    sys.exit(main())
