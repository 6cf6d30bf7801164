"""The Kubernetes API, as little of it as we need: JSON objects by path, list-then-watch, preconditions.

Inside a cluster only aiohttp is loaded; kubernetes_asyncio, whose import alone costs seconds and 70 MiB, is loaded to
read a person's kubeconfig with all that may stand in it (exec plugins, OIDC). Every call has an end.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlencode

import aiohttp

from rlguard.errors import BadConfigError, TransientError

Json = dict[str, Any]

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
CALL_SECONDS: Final = 10.0
"""The longest any one call may take, in seconds."""
LIST_SECONDS: Final = 60.0
WATCH_SECONDS: Final = 50
"""A watch is opened anew this often: a connection that died without a word is noticed by then."""
SILENCE: Final = 75.0
"""A watch silent for so long, in seconds, is dead: the API server sends a bookmark every minute."""
LINE_LIMIT: Final = 1 << 22
"""The longest watch event in bytes; etcd keeps no object above 1.5 MiB."""
MERGE: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"


class KubeError(TransientError):
    """The API server refused or could not be reached; `status` is the HTTP status, 0 without an answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class NotFoundError(KubeError):
    """There is no such object (or kind)."""


class ConflictError(KubeError):
    """It exists already, or is not what the precondition says."""


class ExpiredError(KubeError):
    """The resource version is too old to watch from: list again."""


_MALFORMED: Final = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
_ERRORS: Final[dict[int, type[KubeError]]] = {404: NotFoundError, 409: ConflictError, 410: ExpiredError}


@dataclass(frozen=True, slots=True)
class Access:
    """Where the API server is and how to prove who we are. `token` gives the bearer token as it is now, or None."""

    url: str
    tls: ssl.SSLContext | None
    token: Callable[[], Awaitable[str | None]]


def in_cluster(folder: Path = ACCOUNT, environ: Mapping[str, str] = os.environ) -> Access | None:
    """The access of this pod's ServiceAccount; None outside a cluster."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (folder / "token").exists():
        return None

    address = f"[{host}]" if ":" in host else host
    return of_account(f"https://{address}:{port}", folder)


def of_account(url: str, folder: Path) -> Access:
    """The access of the ServiceAccount whose `token` and `ca.crt` are in `folder`. Raises OSError without the latter.

    The token is read anew for each call, as kubelet renews the file; a call raises OSError while there is none.
    """

    async def token() -> str | None:
        return (folder / "token").read_text(encoding="ascii").strip()

    trust = ssl.create_default_context(cafile=str(folder / "ca.crt")) if url.startswith("https") else None
    return Access(url, trust, token)


async def from_kubeconfig(path: str | None = None, context: str | None = None) -> Access:
    """The access a person's kubeconfig gives. Raises BadConfigError when it cannot be read."""
    from kubernetes_asyncio import config  # noqa: PLC0415 - costly, and not needed inside a cluster
    from kubernetes_asyncio.client import Configuration  # noqa: PLC0415 - the same

    found = Configuration()
    try:
        await config.load_kube_config(config_file=path, context=context, client_configuration=found)
    except (config.ConfigException, OSError) as error:
        raise BadConfigError(f"kubeconfig {path or os.environ.get('KUBECONFIG', '~/.kube/config')}: {error}") from error

    async def token() -> str | None:
        text: str | None = await found.get_api_key_with_prefix("BearerToken")
        return text.removeprefix("Bearer ") if text else None

    return Access(found.host.rstrip("/"), _tls(found) if found.host.startswith("https") else None, token)


def _tls(found: Any) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=found.ssl_ca_cert)
    if found.cert_file:
        context.load_cert_chain(found.cert_file, found.key_file)
    if not found.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


@dataclass(frozen=True, slots=True)
class Listing:
    """A whole list and the resource version to watch from."""

    items: tuple[Json, ...]
    version: str


@dataclass(frozen=True, slots=True)
class Change:
    """One watch event: `kind` is ADDED, MODIFIED or DELETED."""

    kind: str
    thing: Json
    version: str


def _unheeded() -> None:
    pass


class Kube:
    """A client. Use it as an async context manager."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(ssl=self._access.tls if self._access.tls is not None else False)
        self._session = aiohttp.ClientSession(connector=connector, read_bufsize=LINE_LIMIT)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, path: str) -> Json:
        """One object. Raises NotFoundError, KubeError."""
        return await self._call("GET", path)

    async def find(self, path: str) -> Json | None:
        """One object, None if there is none. Raises KubeError."""
        try:
            return await self._call("GET", path)
        except NotFoundError:
            return None

    async def create(self, path: str, body: Json) -> Json:
        """Create in the collection at `path`. Raises ConflictError if it exists, KubeError."""
        return await self._call("POST", path, body)

    async def replace(self, path: str, body: Json) -> Json:
        """Replace; a `metadata.resourceVersion` in `body` is a precondition. Raises ConflictError, KubeError."""
        return await self._call("PUT", path, body)

    async def patch(self, path: str, body: Any, kind: str = MERGE) -> Json:
        """Patch. Raises ConflictError, KubeError."""
        return await self._call("PATCH", path, body, kind)

    async def delete(self, path: str, options: Json | None = None) -> Json:
        """Delete with DeleteOptions. Raises ConflictError if a precondition fails, NotFoundError, KubeError."""
        return await self._call("DELETE", path, {"kind": "DeleteOptions", "apiVersion": "v1", **(options or {})})

    async def list(self, path: str, query: Mapping[str, str] | None = None) -> Listing:
        """Everything in a collection, from the API server's cache. Raises KubeError."""
        whole = {"resourceVersion": "0", **(query or {})}
        answer = await self._call("GET", f"{path}?{urlencode(whole)}", seconds=LIST_SECONDS)
        version = (answer.get("metadata") or {}).get("resourceVersion", "")
        return Listing(tuple(answer.get("items") or ()), version)

    async def watch(
        self,
        path: str,
        version: str,
        query: Mapping[str, str] | None = None,
        on_bookmark: Callable[[], None] = _unheeded,
        seconds: int = WATCH_SECONDS,
    ) -> AsyncIterator[Change]:
        """Changes since `version`, for ever; reopens by itself every `seconds`. `on_bookmark`: the server is alive.

        Raises ExpiredError: list again. KubeError: wait.
        """
        while True:
            async for change in self._watch_once(path, version, query or {}, seconds):
                version = change.version
                if change.kind == "BOOKMARK":
                    on_bookmark()
                else:
                    yield change

    async def _watch_once(
        self, path: str, version: str, query: Mapping[str, str], seconds: int
    ) -> AsyncIterator[Change]:
        asked = {
            **query,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(seconds),
        }
        timeout = aiohttp.ClientTimeout(total=seconds + CALL_SECONDS, sock_connect=CALL_SECONDS, sock_read=SILENCE)
        try:
            async with self._open().get(
                f"{self._access.url}{path}?{urlencode(asked)}", headers=await self._headers(), timeout=timeout
            ) as response:
                await _check(response, path)
                while line := await response.content.readline():
                    yield _change(line, path)
        except (aiohttp.ClientError, OSError, TimeoutError, *_MALFORMED) as error:
            raise KubeError(0, f"watch {path}: {error!r:.200}") from error

    async def _call(
        self, method: str, path: str, body: Any = None, kind: str = "application/json", seconds: float = CALL_SECONDS
    ) -> Json:
        headers = {**await self._headers(), "Content-Type": kind}
        data = json.dumps(body) if body is not None else None
        try:
            async with (
                asyncio.timeout(seconds),
                self._open().request(method, f"{self._access.url}{path}", data=data, headers=headers) as response,
            ):
                await _check(response, path)
                answer = await response.json(content_type=None)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, RecursionError) as error:
            raise KubeError(0, f"{method} {path}: {error!r:.200}") from error
        if not isinstance(answer, dict):
            raise KubeError(0, f"{method} {path}: not an object: {answer!r:.200}")
        return answer

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("Kube is used outside of its `async with`")
        return self._session

    async def _headers(self) -> dict[str, str]:
        token = await self._access.token()
        return {"Authorization": f"Bearer {token}"} if token else {}


async def _check(response: aiohttp.ClientResponse, path: str) -> None:
    if response.status >= 400:  # noqa: PLR2004 - HTTP's errors begin there
        raise _error(response.status, f"{response.method} {path}: {_message(await response.text())}")


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["message"])[:300]
    except (ValueError, KeyError, TypeError, RecursionError):
        return text[:300]


def _error(status: int, message: str) -> KubeError:
    return _ERRORS.get(status, KubeError)(status, message)


def _change(line: bytes, path: str) -> Change:
    event = json.loads(line)
    if event["type"] == "ERROR":
        status = event["object"]
        raise _error(int(status.get("code") or 0), f"watch {path}: {str(status.get('message'))[:300]}")
    return Change(event["type"], event["object"], str(event["object"]["metadata"]["resourceVersion"]))
