"""Decisions in the log: each one once, when its reason changes."""

from __future__ import annotations

from typing import Any

from rlguard.decision import Decision


class Whys:
    """Remembers the last reason of one core."""

    def __init__(self, log: Any, core: str) -> None:
        self._log = log
        self._core = core
        self._last: object = object()

    def note(self, decision: Decision) -> None:
        """Log the decision if its reason is another one than the last."""
        if decision.why != self._last:
            self._last = decision.why
            actions = [type(action).__name__ for action in decision.actions]
            self._log.info("decided", core=self._core, why=str(decision.why), actions=actions)
