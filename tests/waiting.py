"""Waiting for what has no event of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Return once `condition()` holds; the limit only ends a broken test, and says what it waited for."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not condition():
        assert loop.time() < deadline, f"not within {seconds} s: {condition}"
        await asyncio.sleep(0.02)
