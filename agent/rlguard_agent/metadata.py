"""The cloud's metadata server, asked every two seconds whether it takes the machine back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

from rlguard.health.assess import CloudSaid, Fact
from rlguard.health.clouds.request import Provider, Reply
from rlguard.health.spot import OK, Answer, Reclaim
from rlguard.io.clock import boottime
from rlguard.io.metadata import Client, open_session

EVERY: Final = 2.0
QUIET_ROUNDS: Final = 5
"""So many rounds in a row must agree that nobody needs the machine any more before the cloud is told to go ahead."""


async def watch_cloud(
    provider: Provider, bases: tuple[str, ...], tell: Callable[[Fact], None], left: Callable[[str], bool] | None = None
) -> None:
    """Ask for ever. `left(code)`, where given: nobody needs the machine any more, an event of that code may begin."""
    async with open_session() as session:
        client = Client(session, provider, bases)
        approver = Approver(client, left) if left is not None else None
        while True:
            for question, answer in await client.ask():
                tell(CloudSaid(boottime(), answer, question))
                if approver is not None:
                    await approver.heard(answer)
            await asyncio.sleep(EVERY * random.uniform(0.8, 1.0))  # noqa: S311 - jitter, no secret


class Approver:
    """Tells the cloud once per event that it need not wait, after `left` has held for some rounds."""

    def __init__(self, client: Client, left: Callable[[str], bool]) -> None:
        self._client = client
        self._left = left
        self._event = ""
        self._rounds = 0
        self._done = False

    async def heard(self, answer: Answer) -> None:
        """One more answer of the cloud."""
        approve = self._client.provider.approve
        if approve is None or not isinstance(answer, Reclaim) or not answer.event:
            return
        if answer.event != self._event:
            self._event, self._rounds, self._done = answer.event, 0, False
        self._rounds = self._rounds + 1 if self._left(answer.code) else 0
        if self._rounds >= QUIET_ROUNDS and not self._done:
            reply = await self._client.send(approve(self._event))
            self._done = isinstance(reply, Reply) and reply.status == OK
