"""Waiting for another process by a time in which this one was able to listen."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

SLICE: Final = 0.5
"""Seconds that count at most, however late this process wakes up."""


async def within(seconds: float, call: Coroutine[Any, Any, T]) -> T:
    """What the call returns. Raises TimeoutError after so many seconds, in which the call was cancelled.

    A machine that stood still (memory pressure, a frozen container, a paused virtual machine) held up the other side
    as well: that time says nothing about it, and only SLICE of it counts.
    """
    task = asyncio.ensure_future(call)
    try:
        while seconds > 0:
            done, _ = await asyncio.wait({task}, timeout=min(SLICE, seconds))
            if done:
                return task.result()
            seconds -= SLICE
        raise TimeoutError
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
