"""The sending half of a link, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from rlguard.io.link import Outbox
from rlguard.messages import Acknowledged

pytestmark = pytest.mark.looptime


async def test_a_cancellation_that_comes_together_with_a_change_ends_the_wait() -> None:
    """On Python 3.11 `asyncio.wait_for` would swallow it, and the link would never be dialled again."""
    outbox = Outbox()
    task = asyncio.create_task(outbox.wait(None, 10.0))
    await asyncio.sleep(0.1)
    outbox.publish(Acknowledged("uid", ("notice",)))
    task.cancel()
    await asyncio.sleep(0.1)
    assert task.cancelled()


async def test_a_message_said_again_wakes_nobody_and_another_one_does(looptime: float) -> None:
    outbox = Outbox()
    outbox.publish(Acknowledged("uid", ()))
    seen = outbox.text
    waiting = asyncio.create_task(outbox.wait(seen, 10.0))
    await asyncio.sleep(1.0)
    outbox.publish(Acknowledged("uid", ()))
    await asyncio.sleep(1.0)
    assert not waiting.done()
    outbox.publish(Acknowledged("uid", ("notice",)))
    await waiting
    assert looptime == 2.0
