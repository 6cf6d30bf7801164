"""`python -m rlguard_controller`: the controller's process. Every replica injects and certifies, one leads."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from rlguard.io.log import configure
from rlguard.io.process import Run, run_process
from rlguard_controller.controller import Controller
from rlguard_controller.settings import read_settings


def begin(environment: Mapping[str, str]) -> tuple[Run, Any]:
    """The controller with the settings of the environment, and its log. Raises BadConfigError."""
    settings = read_settings(environment)
    log = configure("controller", pod=settings.pod)
    return lambda: Controller(settings, log).run(), log


if __name__ == "__main__":
    sys.exit(run_process(begin))
