"""What every core answers. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now, why (an enum member or None), and when to ask again (same clock as `now`, None: no hurry).

    Actions are idempotent: the same decision may come again before the outcome of its actions is known.
    """

    actions: tuple[Any, ...]
    why: Any
    wake_at: float | None
