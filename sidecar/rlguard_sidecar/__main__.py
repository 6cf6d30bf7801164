"""`python -m rlguard_sidecar`: the sidecar's process, started by its supervisor with the listening socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys

from rlguard.errors import BadConfigError
from rlguard.io.log import configure
from rlguard_sidecar.settings import Settings, read_settings
from rlguard_sidecar.sidecar import Sidecar


def main() -> int:
    """Run until told to end. 2: a setting is wrong; 1: a bug, told with its trace."""
    try:
        settings = read_settings(os.environ)
    except BadConfigError as error:
        sys.stderr.write(f"rlguard: {error}\n")
        return 2
    log = configure("sidecar", pod=settings.member.pod, uid=settings.member.uid)
    try:
        asyncio.run(_serve(settings, log))
    except Exception:
        log.exception("a bug ended this process; it is started again")
        return 1
    return 0


async def _serve(settings: Settings, log: object) -> None:
    running = asyncio.create_task(Sidecar(settings, log).run(), name="sidecar")
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await running


if __name__ == "__main__":
    sys.exit(main())
