"""A process's certificate: asked for with a projected token, renewed in time, kept in memory alone.

The controller signs what the token proves, a pod or a node; nobody can ask for another's name. A renewed certificate
has the same key, because peers may have pinned it.
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import aiohttp
from cryptography import x509

from rlguard.errors import BadWireError, RlguardError, TransientError
from rlguard.io.tls import (
    CONTROLLER,
    Credentials,
    Key,
    anonymous_context,
    client_context,
    identity_in,
    load_certificate,
    server_context,
)

RENEW_AT: Final = 2 / 3
"""The share of a certificate's lifetime after which a new one is asked for."""
PAUSE_FIRST: Final = 0.2
PAUSE_MOST: Final = 10.0
ANSWER_WITHIN: Final = 5.0
"""Seconds that one request may take."""


class CredentialsHolder:
    """The newest credentials of this process and the TLS contexts made of them; all None before the first.

    `problem` says why the last request failed, None after a success.
    """

    def __init__(self) -> None:
        self.problem: str | None = None
        self._current: Credentials | None = None
        self._server: ssl.SSLContext | None = None
        self._client: ssl.SSLContext | None = None
        self._there = asyncio.Event()

    @property
    def current(self) -> Credentials | None:
        """What `keep_credentials` got last."""
        return self._current

    def replace(self, credentials: Credentials) -> None:
        """Use these from now on; open connections stay as they are."""
        if self._server is None:
            self._server = server_context(credentials)
        else:
            load_certificate(self._server, credentials)
        self._client = client_context(credentials)
        self._current, self.problem = credentials, None
        self._there.set()

    def server_context(self) -> ssl.SSLContext | None:
        """One context for the life of the process: a listener keeps it, a renewed certificate is loaded into it."""
        return self._server

    def client_context(self) -> ssl.SSLContext | None:
        """One context for each certificate; ask again for each call."""
        return self._client

    async def there(self) -> None:
        """Return once there are credentials."""
        await self._there.wait()


async def keep_credentials(
    controller: Callable[[], str], token_file: Path, authority: bytes, holder: CredentialsHolder
) -> None:
    """Keep `holder` supplied, for ever. `controller()` is `ip:port`, empty while unknown.

    Never raises for a controller that is away, slow or wrong, nor for a token that is not there yet: it asks again
    after a pause of at most `PAUSE_MOST` seconds, and an old certificate stays in use until then.
    """
    key, pause = Key.generate(), PAUSE_FIRST
    while True:
        try:
            certificate = await request_certificate(controller(), token_file, authority, key)
        except RlguardError as error:
            holder.problem = str(error)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, no secret
            pause = min(PAUSE_MOST, pause * 2)
            continue
        pause = PAUSE_FIRST
        holder.replace(Credentials(certificate, key, authority))
        await asyncio.sleep(max(PAUSE_MOST, lifetime(certificate) * RENEW_AT))


async def request_certificate(controller: str, token_file: Path, authority: bytes, key: Key) -> bytes:
    """One request: the certificate (PEM) for `key`. The token is shown to nobody but the controller.

    Raises TransientError when there is no token, no controller, or no positive answer; BadWireError when the answer is
    no certificate for this key.
    """
    token = _read_token(token_file)
    if not controller:
        raise TransientError("the controller's address is not known yet")
    body = {"request": key.request().decode()}
    url, headers = f"https://{controller}/v1/certificate", {"Authorization": f"Bearer {token}"}
    return checked_certificate(await _post(url, headers, body, _controller_context(authority)), key)


def lifetime(certificate: bytes) -> float:
    """The seconds between the dates in a certificate (PEM): a duration, so no clock of this machine counts."""
    parsed = x509.load_pem_x509_certificate(certificate)
    return (parsed.not_valid_after_utc - parsed.not_valid_before_utc).total_seconds()


def checked_certificate(answer: Any, key: Key) -> bytes:
    """The certificate in the controller's answer. Raises BadWireError unless it is one for `key`."""
    text = answer.get("certificate") if isinstance(answer, dict) else None
    if not isinstance(text, str):
        raise BadWireError('the controller\'s answer has no "certificate"')
    try:
        parsed = x509.load_pem_x509_certificate(text.encode())
    except ValueError as error:
        raise BadWireError(f"the controller's answer is no certificate: {error}") from error
    if parsed.public_key() != key.key.public_key():
        raise BadWireError("the controller's certificate is for another key")
    return text.encode()


def _read_token(token_file: Path) -> str:
    try:
        return token_file.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise TransientError(f"no token at {token_file}: {error}") from error


class _ControllerOnly(ssl.SSLObject):
    """Ends the handshake unless the other side is the controller, so before the token is sent."""

    def do_handshake(self) -> None:
        super().do_handshake()
        if identity_in(self.getpeercert()) != CONTROLLER:
            raise ssl.SSLCertVerificationError("the peer is not the controller")


def _controller_context(authority: bytes) -> ssl.SSLContext:
    context = anonymous_context(authority)
    context.sslobject_class = _ControllerOnly
    return context


async def _post(url: str, headers: dict[str, str], body: Any, context: ssl.SSLContext) -> Any:
    timeout = aiohttp.ClientTimeout(total=ANSWER_WITHIN)
    try:
        async with (
            aiohttp.ClientSession(trust_env=False, timeout=timeout) as session,
            session.post(url, headers=headers, json=body, ssl=context, allow_redirects=False) as response,
        ):
            text = await response.read()
            if response.status != 200:  # noqa: PLR2004 - HTTP's "OK"
                raise TransientError(f"{url} answered {response.status}: {text[:200]!r}")
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        raise TransientError(f"{url}: {error!r}") from error
    try:
        return json.loads(text)
    except ValueError as error:
        raise BadWireError(f"{url} answered what is no JSON: {text[:80]!r}") from error
