"""A fake API server for the controller's shell."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from fakeapi import FakeApi

from rlguard.io.kube import Access, Kube


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    """A running API server."""
    fake = FakeApi()
    fake.access = await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def kube(api: FakeApi) -> AsyncIterator[Kube]:
    """A client of it."""
    async with Kube(api.access) as client:
        yield client


@pytest.fixture
def access(api: FakeApi) -> Access:
    """How to reach it."""
    return api.access
