"""Only a pod's own token gets a certificate, and only for what Kubernetes says that pod is."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from rlguard.errors import TransientError
from rlguard.io.tls import Key
from rlguard_controller import issuer
from rlguard_controller.authority import create_authority
from rlguard_controller.issuer import Issuer, RefusedError, identity_from

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
AGENT = "rlguard-system/rlguard-agent"
EXTRA = "authentication.kubernetes.io/"
Client = TestClient[web.Request, web.Application]


def status(username: str = "system:serviceaccount:training:default", **extra: str | None) -> dict[str, Any]:
    named = {"pod-name": "grpo-0", "pod-uid": "1f0c", "node-name": "node-a"}
    named |= {key.replace("_", "-"): value for key, value in extra.items()}
    user = {"username": username, "extra": {EXTRA + key: [value] for key, value in named.items() if value is not None}}
    return {"authenticated": True, "audiences": ["rlguard"], "user": user}


class Reviewer:
    """Answers TokenReviews."""

    def __init__(self) -> None:
        self.answer: Mapping[str, Any] = status()
        self.error: Exception | None = None
        self.tokens: list[str] = []
        self.gate: asyncio.Event | None = None
        self.reached = asyncio.Event()

    async def __call__(self, token: str) -> Mapping[str, Any]:
        """The answer or the error; after the gate, if there is one."""
        self.reached.set()
        self.tokens.append(token)
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        return self.answer


@pytest.fixture
def reviewer() -> Reviewer:
    return Reviewer()


@pytest.fixture
async def client(reviewer: Reviewer) -> AsyncIterator[Client]:
    app = web.Application()
    app.router.add_post("/v1/certificate", Issuer(create_authority(NOW), reviewer, AGENT, lambda: NOW).handle)
    async with TestClient(TestServer(app)) as found:
        yield found


async def ask(client: Client, body: Any = None, token: str | None = "secret-token") -> tuple[int, dict[str, str]]:  # noqa: S107 - no token of anybody's
    headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
    body = {"request": Key.generate().request().decode()} if body is None else body
    response = await client.post("/v1/certificate", json=body, headers=headers)
    return response.status, await response.json()


async def test_a_pod_gets_a_certificate_that_names_it(client: Client, reviewer: Reviewer) -> None:
    code, answer = await ask(client)
    assert code == 200
    loaded = x509.load_pem_x509_certificate(answer["certificate"].encode())
    names = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["rlguard://pod/training/grpo-0/1f0c"]
    assert reviewer.tokens == ["secret-token"]


def test_the_agents_account_is_named_by_its_node() -> None:
    assert identity_from(status("system:serviceaccount:rlguard-system:rlguard-agent"), AGENT) == "rlguard://node/node-a"


def test_an_account_of_the_agents_name_elsewhere_is_just_a_pod() -> None:
    identity = identity_from(status("system:serviceaccount:training:rlguard-agent"), AGENT)
    assert identity == "rlguard://pod/training/grpo-0/1f0c"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"authenticated": False}, "not valid"),
        ({}, "not valid"),
        (status() | {"authenticated": "true"}, "not valid"),
        (status() | {"audiences": ["https://kubernetes.default.svc"]}, "audience rlguard"),
        (status() | {"audiences": None}, "audience rlguard"),
        (status("kubernetes-admin"), "no ServiceAccount"),
        (status("system:serviceaccount:training"), "no ServiceAccount"),
        (status(pod_name=None), "no pod-name"),
        (status(pod_uid=None), "no pod-uid"),
        (status(pod_uid=""), "no pod-uid"),
        (status(pod_name="a/b"), "no pod-name"),
        (status("system:serviceaccount:rlguard-system:rlguard-agent", node_name=None), "no node-name"),
        (status("system:serviceaccount:rlguard-system:rlguard-agent", pod_uid=None), "no pod-uid"),
    ],
)
async def test_a_token_that_proves_too_little_is_refused(
    client: Client, reviewer: Reviewer, answer: dict[str, Any], reason: str
) -> None:
    reviewer.answer = answer
    with pytest.raises(RefusedError, match=reason):
        identity_from(answer, AGENT)
    code, body = await ask(client)
    assert code == 401
    assert reason in body["error"]


async def test_without_a_token_nobody_is_asked_about_it(client: Client, reviewer: Reviewer) -> None:
    for token in (None, "", "   "):
        code, body = await ask(client, token=token)
        assert (code, "no bearer token" in body["error"]) == (401, True)
    assert reviewer.tokens == []


@pytest.mark.parametrize("body", [[], "text", {}, {"request": "no PEM"}, {"request": 7}, {"request": "x" * 20_000}])
async def test_a_bad_request_is_explained(client: Client, body: Any) -> None:
    code, answer = await ask(client, body)
    assert code == 400
    assert answer["error"]


@pytest.mark.parametrize("error", [TransientError("away"), OSError("refused"), TimeoutError()])
async def test_an_api_server_that_is_away_means_try_again(client: Client, reviewer: Reviewer, error: Exception) -> None:
    reviewer.error = error
    code, body = await ask(client)
    assert code == 503
    assert "try again" in body["error"]


async def test_too_many_callers_at_once_are_told_to_come_back(
    client: Client, reviewer: Reviewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(issuer, "IN_FLIGHT", 1)
    reviewer.gate = asyncio.Event()
    first = asyncio.create_task(ask(client))
    await reviewer.reached.wait()
    assert (await ask(client))[0] == 429
    reviewer.gate.set()
    assert (await first)[0] == 200
    assert (await ask(client))[0] == 200


async def test_one_address_does_not_keep_the_others_out(
    client: Client, reviewer: Reviewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(issuer, "IN_FLIGHT_OF_ONE", 1)
    reviewer.gate = asyncio.Event()
    first = asyncio.create_task(ask(client))
    await reviewer.reached.wait()
    monkeypatch.setattr(web.Request, "remote", "10.0.0.9")
    reviewer.reached.clear()
    other = asyncio.create_task(ask(client))
    await reviewer.reached.wait()
    assert (await ask(client))[0] == 429
    reviewer.gate.set()
    assert (await first)[0] == (await other)[0] == 200


async def test_a_body_that_does_not_come_holds_no_place(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issuer, "BODY_SECONDS", 0.05)

    async def drip() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    response = await client.post("/v1/certificate", data=drip(), headers={"Authorization": "Bearer x"})
    assert response.status == 400
    assert "did not come" in (await response.json())["error"]


async def test_a_request_of_another_version_is_a_bad_request(client: Client) -> None:
    der = bytearray(x509.load_pem_x509_csr(Key.generate().request()).public_bytes(Encoding.DER))
    der[der.index(b"\x02\x01\x00") + 2] = 41
    pem = f"-----BEGIN CERTIFICATE REQUEST-----\n{base64.b64encode(der).decode()}\n-----END CERTIFICATE REQUEST-----\n"
    assert (await ask(client, {"request": pem}))[0] == 400
