"""How a process gets its certificate, against a real TLS server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from waiting import until

from rlguard.errors import BadWireError, TransientError
from rlguard.io import identity
from rlguard.io.identity import CredentialsHolder, checked_certificate, keep_credentials, request_certificate
from rlguard.io.tls import CONTROLLER, Credentials, Key, node_identity, server_context
from rlguard_controller.authority import Authority, create_authority, sign

ME = node_identity("node-1")


class Fake:
    """A server that signs, for a lifetime; it shows the identity it is given."""

    def __init__(self, shown: str) -> None:
        self.authority: Authority = create_authority(datetime.now(UTC))
        self.lifetime = timedelta(hours=24)
        self.shown = shown
        self.status = 200
        self.tokens: list[str] = []
        self.address = ""

    async def certificate(self, request: web.Request) -> web.Response:
        """Sign what is asked for."""
        self.tokens.append(request.headers["Authorization"])
        body = await request.json()
        signed = sign(self.authority, body["request"].encode(), ME, datetime.now(UTC), self.lifetime)
        return web.json_response({"certificate": signed.decode()}, status=self.status)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Fake]:
        """Listen."""
        key = Key.generate()
        shown = sign(self.authority, key.request(), self.shown, datetime.now(UTC))
        app = web.Application()
        app.router.add_post("/v1/certificate", self.certificate)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        context = server_context(Credentials(shown, key, self.authority.pem), client_required=False)
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        port = runner.addresses[0][1]
        self.address = f"127.0.0.1:{port}"
        try:
            yield self
        finally:
            await runner.cleanup()


@pytest.fixture
def token(tmp_path: Path) -> Path:
    """A token as kubelet projects it."""
    file = tmp_path / "token"
    file.write_text("secret\n")
    return file


async def test_a_token_becomes_a_certificate_for_our_key(token: Path) -> None:
    async with Fake(CONTROLLER).serving() as fake:
        key = Key.generate()
        certificate = await request_certificate(fake.address, token, fake.authority.pem, key)
    assert checked_certificate({"certificate": certificate.decode()}, key) == certificate
    assert fake.tokens == ["Bearer secret"]


async def test_the_token_is_shown_to_nobody_but_the_controller(token: Path) -> None:
    async with Fake("rlguard://pod/ns/name/uid").serving() as fake:
        with pytest.raises(TransientError):
            await request_certificate(fake.address, token, fake.authority.pem, Key.generate())
    assert fake.tokens == []


async def test_a_server_of_another_authority_gets_no_token(token: Path) -> None:
    async with Fake(CONTROLLER).serving() as fake:
        other = create_authority(datetime.now(UTC))
        with pytest.raises(TransientError):
            await request_certificate(fake.address, token, other.pem, Key.generate())
    assert fake.tokens == []


async def test_no_token_no_address_and_a_refusal_are_worth_another_try(token: Path) -> None:
    async with Fake(CONTROLLER).serving() as fake:
        fake.status = 401
        for address, file in ((fake.address, token.parent / "none"), ("", token), (fake.address, token)):
            with pytest.raises(TransientError):
                await request_certificate(address, file, fake.authority.pem, Key.generate())


@pytest.mark.parametrize("answer", [None, [], {}, {"certificate": 7}, {"certificate": "-----BEGIN"}])
def test_an_answer_that_is_no_certificate_is_refused(answer: Any) -> None:
    with pytest.raises(BadWireError):
        checked_certificate(answer, Key.generate())


def test_a_certificate_for_another_key_is_refused() -> None:
    authority = create_authority(datetime.now(UTC))
    other = sign(authority, Key.generate().request(), ME, datetime.now(UTC)).decode()
    with pytest.raises(BadWireError, match="another key"):
        checked_certificate({"certificate": other}, Key.generate())


async def test_certificates_are_renewed_with_the_same_key_into_the_same_server_context(
    token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "PAUSE_MOST", 0.01)
    monkeypatch.setattr(identity, "RENEW_AT", 0.0)
    holder = CredentialsHolder()
    seen: set[bytes] = set()
    async with Fake(CONTROLLER).serving() as fake:
        task = asyncio.create_task(keep_credentials(lambda: fake.address, token, fake.authority.pem, holder))
        await holder.there()
        first, server, client = holder.current, holder.server_context(), holder.client_context()
        while len(seen) < 2:
            await asyncio.sleep(0.01)
            assert holder.current is not None
            seen.add(holder.current.certificate)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert first is not None
    assert holder.current is not None
    assert holder.current.key is first.key
    assert holder.server_context() is server
    assert holder.client_context() is not client


async def test_a_controller_that_comes_late_is_waited_for(token: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "PAUSE_FIRST", 0.01)
    monkeypatch.setattr(identity, "PAUSE_MOST", 0.01)
    fake, holder = Fake(CONTROLLER), CredentialsHolder()
    task = asyncio.create_task(keep_credentials(lambda: fake.address, token, fake.authority.pem, holder))
    await until(lambda: holder.problem is not None)
    assert "not known yet" in str(holder.problem)
    async with fake.serving():
        await holder.there()
    assert holder.current is not None
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
