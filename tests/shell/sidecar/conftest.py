"""What these tests share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _event_loop_of_the_main_thread() -> Iterator[None]:
    """pytest-asyncio asks for the current loop, which makes one on first use that nobody would ever close."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    loop.close()
