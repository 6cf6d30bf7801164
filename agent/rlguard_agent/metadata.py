"""The cloud's metadata server, asked every two seconds whether it takes the machine back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

import aiohttp

from rlguard.health.assess import CloudSaid, Fact
from rlguard.health.spot import PATH, Answer, Unreadable, read_tencent
from rlguard.io.clock import boottime, wall

EVERY: Final = 2.0
ANSWER_WITHIN: Final = 1.5
BODY_LIMIT: Final = 4096


async def watch_cloud(bases: tuple[str, ...], tell: Callable[[Fact], None]) -> None:
    """Ask for ever; after an answer that is none, ask the next of `bases`."""
    timeout, turn = aiohttp.ClientTimeout(total=ANSWER_WITHIN), 0
    # Proxies are never used: one would answer for another machine.
    async with aiohttp.ClientSession(trust_env=False, timeout=timeout) as session:
        while True:
            answer = await ask(session, bases[turn % len(bases)])
            if isinstance(answer, Unreadable):
                turn += 1
            tell(CloudSaid(boottime(), answer))
            await asyncio.sleep(EVERY * random.uniform(0.8, 1.0))  # noqa: S311 - jitter, no secret


async def ask(session: aiohttp.ClientSession, base: str) -> Answer:
    """One question. Never raises: what is no answer is Unreadable, with the reason."""
    try:
        async with session.get(base + PATH, allow_redirects=False) as response:
            body = (await response.content.read(BODY_LIMIT)).decode("utf-8", "replace")
            return read_tencent(response.status, body, response.headers.get("Date"), wall(), boottime())
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        return Unreadable(
            f"{base} did not answer ({error!r:.120}); without such a cloud set RLGUARD_AGENT_CLOUD to none"
        )
