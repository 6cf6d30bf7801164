"""`python -m rlguard_agent`: run the agent with the settings of the environment."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from rlguard.errors import BadConfigError
from rlguard.io.log import configure
from rlguard_agent.agent import Agent
from rlguard_agent.settings import read_settings

BAD_CONFIG = 2


async def _run_until_told(agent: Agent) -> None:
    task = asyncio.create_task(agent.run())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        return


async def _main() -> int:
    log = configure("agent", node=os.environ.get("RLGUARD_NODE", ""))
    try:
        agent = Agent(read_settings(os.environ), log)
    except BadConfigError as error:
        log.error("bad configuration", error=str(error))  # noqa: TRY400 - the message says it all
        return BAD_CONFIG
    log.info("agent started")
    await _run_until_told(agent)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(_main()))
