"""Keeps the core told of what the API server has: list, then watch, again and again, with bounded pauses."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, Final, Protocol

from rlguard.cluster.facts import Fact, Gone, Listed, Seen, Thing
from rlguard.io.kube import Change, ExpiredError, Json, Kube, KubeError, NotFoundError
from rlguard_controller.objects import Source

PAUSE_FIRST: Final = 0.2
PAUSE_MOST: Final = 10.0
MALFORMED: Final = (KeyError, TypeError, ValueError, AttributeError)


class Listener(Protocol):
    """Who is told; `dropped` counts facts that were lost in a flood."""

    dropped: int

    def tell(self, fact: Fact) -> None:
        """Take a fact."""


async def keep_watching(kube: Kube, source: Source, listener: Listener, now: Callable[[], float], log: Any) -> None:
    """Follow one collection, for ever. While the API server is away, what was seen last stands."""
    pause, said = PAUSE_FIRST, ""
    while True:
        try:
            await _follow(kube, source, listener, now)
        except ExpiredError:
            pause = PAUSE_FIRST
        except KubeError as error:
            if str(error) != said:
                said = str(error)
                hint = source.absent if isinstance(error, NotFoundError) else ""
                log.warning(hint or "a watch was interrupted", what=source.kind.value, error=said)
            pause = min(PAUSE_MOST, pause * 2)
        else:
            pause = PAUSE_FIRST
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, no secret


async def _follow(kube: Kube, source: Source, listener: Listener, now: Callable[[], float]) -> None:
    """List and watch until the watch breaks, or until facts were lost and the list has to be told again."""
    dropped = listener.dropped
    listing = await kube.list(source.path, source.query)
    things = [parse(source, item) for item in listing.items]
    listener.tell(Listed(now(), source.kind, tuple(thing for thing in things if thing is not None)))
    async for change in kube.watch(source.path, listing.version, source.query):
        fact = _fact(source, change, now())
        if fact is not None:
            listener.tell(fact)
        if listener.dropped > dropped:
            return


def _fact(source: Source, change: Change, at: float) -> Fact | None:
    thing = parse(source, change.thing)
    if thing is None:
        return None
    return Gone(at, thing) if change.kind == "DELETED" else Seen(at, thing)


def parse(source: Source, item: Json) -> Thing | None:
    """The object as a fact, None if it is none of ours or makes no sense."""
    try:
        return source.parse(item)
    except MALFORMED:
        return None
