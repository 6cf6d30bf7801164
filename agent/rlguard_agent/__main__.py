"""`python -m rlguard_agent`: the node agent's process."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from rlguard.io.log import configure
from rlguard.io.process import Run, run_process
from rlguard_agent.agent import Agent
from rlguard_agent.settings import read_settings


def begin(environment: Mapping[str, str]) -> tuple[Run, Any]:
    """The agent with the settings of the environment, and its log. Raises BadConfigError."""
    settings = read_settings(environment)
    log = configure("agent", node=settings.node)
    return lambda: Agent(settings, log).run(), log


if __name__ == "__main__":
    sys.exit(run_process(begin))
