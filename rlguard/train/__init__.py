"""What runs inside the user's training process: heartbeat, stage, resume. Standard library, and torch where needed.

Importing this package does not import torch; the names below load on first use, because the sidecar, which has no
torch, reads `rlguard.train.pages` from here too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlguard.train.guard import Guard
    from rlguard.train.state import Rng

__all__ = ["Guard", "Rng"]


def __getattr__(name: str) -> Any:
    """Load `Guard` and `Rng` when they are first asked for (PEP 562)."""
    if name == "Guard":
        from rlguard.train.guard import Guard  # noqa: PLC0415 # must not load torch before it is needed

        return Guard
    if name == "Rng":
        from rlguard.train.state import Rng  # noqa: PLC0415 # must not load torch before it is needed

        return Rng
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
