"""Who asks gets a certificate for who he is: a projected token in, the identity that Kubernetes vouches for out.

The token (audience `rlguard`) is bound to a pod by kubelet; the API server's TokenReview names that pod, its UID and
its node. What the request itself claims is ignored.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import structlog
from aiohttp import web

from rlguard.errors import BadWireError, RlguardError
from rlguard.io.tls import node_identity, pod_identity
from rlguard_controller.authority import Authority, sign
from rlguard_controller.parts import AUDIENCE

MAX_BODY: Final = 16 * 1024
MAX_TOKEN: Final = 16 * 1024
IN_FLIGHT: Final = 32
"""More callers than this at once are told to come back: each one costs the API server a TokenReview."""
IN_FLIGHT_OF_ONE: Final = 8
"""The same for callers from one address, so that none can keep all others from their certificates."""
BODY_SECONDS: Final = 5.0
REVIEW_SECONDS: Final = 5.0

_ACCOUNT: Final = "system:serviceaccount:"
_EXTRA: Final = "authentication.kubernetes.io/"
_LOG = structlog.get_logger(__name__)


class RefusedError(RlguardError):
    """The token does not prove who asks."""


def identity_from(status: Mapping[str, Any], agent: str) -> str:
    """The identity in a TokenReview's `status`; `agent` is `namespace/name` of the agents' ServiceAccount.

    Raises RefusedError for a token that is invalid, for somebody else, or not bound to a pod.
    """
    if status.get("authenticated") is not True:
        raise RefusedError("the token is not valid: expired, or of another cluster")
    if AUDIENCE not in (status.get("audiences") or ()):
        raise RefusedError(f"the token is not for audience {AUDIENCE}")
    user = status.get("user") or {}
    namespace, _, account = str(user.get("username") or "").removeprefix(_ACCOUNT).partition(":")
    if not str(user.get("username")).startswith(_ACCOUNT) or not account:
        raise RefusedError("the token belongs to no ServiceAccount")
    pod, uid = _extra(user, "pod-name"), _extra(user, "pod-uid")
    if f"{namespace}/{account}" == agent:
        return node_identity(_extra(user, "node-name"))
    return pod_identity(namespace, pod, uid)


def _extra(user: Mapping[str, Any], name: str) -> str:
    values: list[str] = (user.get("extra") or {}).get(_EXTRA + name) or []
    if len(values) != 1 or not values[0] or "/" in values[0]:
        raise RefusedError(f"the token names no {name}: it must be a pod's own projected token (Kubernetes >= 1.30)")
    return values[0]


class Issuer:
    """Answers `POST /v1/certificate`: bearer token, `{"request": PEM}` -> `{"certificate": PEM}`."""

    def __init__(
        self,
        authority: Authority,
        review: Callable[[str], Awaitable[Mapping[str, Any]]],
        agent: str,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`review(token)` asks the API server (audience `rlguard`) and returns the TokenReview's `status`."""
        self._authority = authority
        self._review = review
        self._agent = agent
        self._now = now
        self._in_flight: Counter[str] = Counter()

    async def handle(self, request: web.Request) -> web.Response:
        """200 with a certificate; 400, 401, 429 or 503 with `{"error": ...}`."""
        peer = str(request.remote)
        if self._in_flight.total() >= IN_FLIGHT or self._in_flight[peer] >= IN_FLIGHT_OF_ONE:
            return _error(429, "too many callers at once; try again", {"Retry-After": "1"})
        self._in_flight[peer] += 1
        try:
            return await self._issue(request)
        except RefusedError as error:
            _LOG.warning("a certificate was refused", peer=request.remote, reason=str(error))
            return _error(401, str(error))
        except BadWireError as error:
            return _error(400, str(error))
        finally:
            self._in_flight[peer] -= 1
            self._in_flight += Counter()  # forget the peers that have none

    async def _issue(self, request: web.Request) -> web.Response:
        token = _token(request)
        body = await _body(request)
        try:
            async with asyncio.timeout(REVIEW_SECONDS):
                status = await self._review(token)
        except (OSError, TimeoutError, RlguardError) as error:
            _LOG.warning("a token could not be reviewed", error=repr(error)[:200])
            return _error(503, "the API server did not review the token; try again", {"Retry-After": "1"})
        identity = identity_from(status, self._agent)
        certificate = sign(self._authority, body, identity, self._now())
        _LOG.info("a certificate was issued", identity=identity)
        return web.json_response({"certificate": certificate.decode()})


def _token(request: web.Request) -> str:
    kind, _, token = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() != "bearer" or not token.strip() or len(token) > MAX_TOKEN:
        raise RefusedError("no bearer token: send the pod's projected token in the Authorization header")
    return token.strip()


async def _body(request: web.Request) -> bytes:
    """The certificate request in the body. Raises BadWireError."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.content.iter_chunked(4096):
                body += chunk
                if len(body) > MAX_BODY:
                    raise BadWireError(f"the body is longer than {MAX_BODY} bytes")
    except TimeoutError as error:
        raise BadWireError(f"the body did not come within {BODY_SECONDS:g} s") from error
    try:
        return str(json.loads(bytes(body))["request"]).encode()
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadWireError('the body is not JSON like {"request": "-----BEGIN CERTIFICATE REQUEST-----..."}') from error


def _error(status: int, message: str, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.json_response({"error": message}, status=status, headers=headers)
