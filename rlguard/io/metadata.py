"""One question and answer with a cloud's metadata server."""

from __future__ import annotations

import asyncio
import re
from typing import Final

import aiohttp

from rlguard.health.clouds.request import Here, Provider, Question, Reply, Request, read
from rlguard.health.spot import OK, Answer, Unreadable
from rlguard.io.clock import boottime, wall

ANSWER_WITHIN: Final = 1.5
BODY_LIMIT: Final = 65_536
UNAUTHORIZED: Final = 401

_TOKEN: Final = re.compile(r"[\x21-\x7e]{1,1024}")
_NAME: Final = re.compile(r"[\w.-]{1,128}", re.ASCII)
_ERRORS: Final = (aiohttp.ClientError, OSError, TimeoutError, ValueError)
NO_CLOUD: Final = "without such a cloud set RLGUARD_AGENT_CLOUD to none"


def open_session() -> aiohttp.ClientSession:
    """A session for Clients."""
    # Proxies are never used: one would answer for another machine. Nor is anything unpacked, which has no bound.
    timeout = aiohttp.ClientTimeout(total=ANSWER_WITHIN)
    return aiohttp.ClientSession(
        trust_env=False, timeout=timeout, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
    )


class Client:
    """One provider's server, tried at each of `bases` in turn: after an answer that is none, at the next.

    `advice`: what to do where there is no such server.
    """

    def __init__(
        self, session: aiohttp.ClientSession, provider: Provider, bases: tuple[str, ...], advice: str = NO_CLOUD
    ) -> None:
        self.provider = provider
        self._session = session
        self._bases = bases
        self._advice = advice
        self._turn = 0
        self._token: str | None = None
        self._renewing = asyncio.Lock()
        self._instance = ""

    async def ask(self) -> tuple[tuple[str, Answer], ...]:
        """Every question once, all at the same time: (question, answer). Never raises."""
        questions = self.provider.questions
        await self._prepare()
        answers = await asyncio.gather(*(self._answer(question) for question in questions))
        wrong = [isinstance(answer, Unreadable) for answer in answers]
        if all(wrong) or (any(wrong) and len(self._bases) > 1):
            self._turn, self._token = self._turn + 1, None
        return tuple((question.name, answer) for question, answer in zip(questions, answers, strict=True))

    async def send(self, request: Request) -> Reply | Unreadable:
        """One request. Never raises: what is no reply is Unreadable, with the reason."""
        base = self._bases[self._turn % len(self._bases)]
        headers = dict(request.headers)
        if self.provider.token is not None and self._token is not None:
            headers[self.provider.token.header] = self._token
        try:
            async with self._session.request(
                request.method, base + request.path, headers=headers, data=request.body or None, allow_redirects=False
            ) as response:
                body, whole = await _body(response)
                found = {name.lower(): value for name, value in response.headers.items()}
                return Reply(response.status, body, found, whole)
        except _ERRORS as error:
            return Unreadable(f"{base} did not answer ({error!r:.120}); {self._advice}")

    async def _prepare(self) -> None:
        if self._token is None:
            await self._get_token()
        if self.provider.instance is not None and not self._instance:
            reply = await self.send(self.provider.instance)
            good = isinstance(reply, Reply) and reply.status == OK and _NAME.fullmatch(reply.body.strip())
            self._instance = reply.body.strip() if isinstance(reply, Reply) and good else ""

    async def _get_token(self) -> None:
        self._token = None
        if self.provider.token is None:
            return
        reply = await self.send(self.provider.token.request)
        if isinstance(reply, Reply) and reply.status == OK and reply.whole and _TOKEN.fullmatch(reply.body.strip()):
            self._token = reply.body.strip()

    async def _answer(self, question: Question) -> Answer:
        token = self.provider.token
        if token is not None and token.required and self._token is None:
            return Unreadable(
                f"{self.provider.name} gives no token for its metadata: does the agent run in the host's network, "
                f"or is the hop limit 1?; {self._advice}"
            )
        used, reply = self._token, await self.send(question.request)
        if isinstance(reply, Reply) and reply.status == UNAUTHORIZED and used is not None:
            async with self._renewing:
                if self._token == used:
                    await self._get_token()
            reply = await self.send(question.request)
        return reply if isinstance(reply, Unreadable) else read(question, reply, self._here())

    def _here(self) -> Here:
        return Here(wall(), boottime(), self._instance)


async def _body(response: aiohttp.ClientResponse) -> tuple[str, bool]:
    """The body, at most BODY_LIMIT bytes of it, and whether that is all of it."""
    parts: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_chunked(BODY_LIMIT):
        parts.append(chunk)
        size += len(chunk)
        if size > BODY_LIMIT:
            break
    return b"".join(parts)[:BODY_LIMIT].decode("utf-8", "replace"), size <= BODY_LIMIT
