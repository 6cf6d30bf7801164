"""`python -m rlguard_sidecar`: the sidecar's process, started by its supervisor with the listening socket."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from rlguard.io.log import configure
from rlguard.io.process import Run, run_process
from rlguard_sidecar.settings import read_settings
from rlguard_sidecar.sidecar import Sidecar


def begin(environment: Mapping[str, str]) -> tuple[Run, Any]:
    """The sidecar with the settings of the environment, and its log. Raises BadConfigError."""
    settings = read_settings(environment)
    log = configure("sidecar", pod=settings.member.pod, uid=settings.member.uid)
    return lambda: Sidecar(settings, log).run(), log


if __name__ == "__main__":
    sys.exit(run_process(begin))
