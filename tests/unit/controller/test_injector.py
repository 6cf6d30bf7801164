"""The webhook never stands in a pod's way, whatever it is sent and whatever it cannot find out."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from apply_patch import apply

from rlguard.errors import TransientError
from rlguard_controller import injector
from rlguard_controller.injector import Injector, Lookups, Settings
from rlguard_controller.mutate import UNGUARDED

GOLDEN = Path(__file__).parent / "golden"
SETTINGS = Settings("registry.example/rlguard:0.1.0", "IfNotPresent", "10.78.0.40:8443", "PEM")


class Cluster:
    """What the look-ups find, and what they were asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.broken: Exception | None = None

    def _ask(self, *what: str) -> None:
        self.asked.append(what)
        if self.broken is not None:
            raise self.broken

    async def avoid(self, namespace: str, job: str) -> Sequence[str]:
        """Two nodes, unsorted."""
        self._ask("avoid", namespace, job)
        return ["node-b", "node-a"]

    async def checkpoint_path(self, namespace: str, job: str) -> str:
        """None was set."""
        self._ask("path", namespace, job)
        return ""

    async def shared_claims(self, namespace: str, names: frozenset[str]) -> frozenset[str]:
        """All of them."""
        self._ask("claims", namespace, *sorted(names))
        return names


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[TestClient[web.Request, web.Application]]:
    lookups = Lookups(cluster.avoid, cluster.checkpoint_path, cluster.shared_claims)
    app = web.Application()
    app.router.add_post("/v1/inject", Injector(SETTINGS, lookups).handle)
    async with TestClient(TestServer(app)) as found:
        yield found


def pod() -> dict[str, Any]:
    return yaml.safe_load((GOLDEN / "tke-leader.yaml").read_text())


def review(of: Any, **changes: Any) -> dict[str, Any]:
    request = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "operation": "CREATE",
        "namespace": "training",
        "object": of,
        **changes,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


async def post(client: TestClient[web.Request, web.Application], body: Any) -> dict[str, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = await client.post("/v1/inject", data=data, headers={"Content-Type": "application/json"})
    assert response.status == 200
    answer = await response.json()
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert answer["response"]["allowed"] is True
    return answer["response"]


def patched(before: dict[str, Any], response: dict[str, Any]) -> dict[str, Any]:
    assert response["patchType"] == "JSONPatch"
    return apply(before, json.loads(base64.b64decode(response["patch"])))


Client = TestClient[web.Request, web.Application]


async def test_a_guarded_pod_comes_back_with_a_patch_and_the_reviews_own_uid(client: Client, cluster: Cluster) -> None:
    response = await post(client, review(pod()))
    assert response["uid"] == "705ab4f5-6393-11e8-b7cc-42010a800002"
    names = [container["name"] for container in patched(pod(), response)["spec"]["initContainers"]]
    assert names == ["rlguard-install", "rlguard-sidecar"]
    assert "warnings" not in response
    assert sorted(cluster.asked) == [
        ("avoid", "training", "grpo"),
        ("claims", "training", "cfs-turbo-checkpoint-pvc"),
        ("path", "training", "grpo"),
    ]


async def test_an_unknown_label_value_is_let_through_with_a_warning_and_written_down(client: Client) -> None:
    before = pod()
    before["metadata"]["labels"]["rlguard.io/guard"] = "yes"
    response = await post(client, review(before))
    assert response["warnings"] == ["rlguard: label rlguard.io/guard: 'yes' is not enabled; the pod runs unguarded"]
    after = patched(before, response)
    assert after["spec"] == before["spec"]
    assert "'yes' is not enabled" in after["metadata"]["annotations"][UNGUARDED]


async def test_a_pod_that_cannot_be_guarded_runs_as_it_is_and_says_why(client: Client) -> None:
    before = pod()
    del before["spec"]["containers"][0]["command"]
    response = await post(client, review(before))
    after = patched(before, response)
    assert after["spec"] == before["spec"]
    assert "no command" in after["metadata"]["annotations"][UNGUARDED]
    assert "the pod runs unguarded" in response["warnings"][0]


@pytest.mark.parametrize(
    "changes", [{"operation": "UPDATE"}, {"operation": "DELETE"}, {"subResource": "ephemeralcontainers"}]
)
async def test_only_the_creation_of_pods_is_touched(client: Client, changes: dict[str, str]) -> None:
    assert (await post(client, review(pod(), **changes))).keys() == {"uid", "allowed"}


async def test_a_pod_without_our_label_is_none_of_our_business(client: Client) -> None:
    before = pod()
    del before["metadata"]["labels"]["rlguard.io/guard"]
    assert (await post(client, review(before))).keys() == {"uid", "allowed"}


@pytest.mark.parametrize("error", [TransientError("api server away"), OSError(111, "refused"), TimeoutError()])
async def test_without_look_ups_the_pod_is_still_guarded(client: Client, cluster: Cluster, error: Exception) -> None:
    cluster.broken = error
    response = await post(client, review(pod()))
    assert len(response["warnings"]) == 3
    after = patched(pod(), response)
    mounts = [mount["name"] for mount in after["spec"]["initContainers"][1]["volumeMounts"]]
    assert "checkpoints" in mounts  # any claim of the trainer's counts while access modes are unknown


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"null",
        b"[]",
        b"{}",
        b'{"request": null}',
        b'{"request": {"uid": 7}}',
        b"\xff\xfe",
        b"[" * 100_000,
        json.dumps(review(None)).encode(),
        json.dumps(review({})).encode(),
        json.dumps(review({"metadata": [], "spec": {}})).encode(),
        json.dumps(review(pod() | {"spec": None})).encode(),
        json.dumps(review(pod() | {"spec": {"containers": []}})).encode(),
        json.dumps(review(pod() | {"spec": {"containers": [{"command": ["x"]}]}})).encode(),
    ],
)
async def test_a_malformed_review_allows_the_pod_with_a_warning(client: Client, body: bytes) -> None:
    response = await post(client, body)
    assert "patch" not in response
    assert response["warnings"][0].startswith("rlguard: ")
    assert "unguarded" in response["warnings"][0]


async def test_an_endless_review_is_cut_off(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(injector, "MAX_BODY", 1000)
    response = await post(client, review(pod()))
    assert "longer than 1000 bytes" in response["warnings"][0]


async def test_warnings_fit_what_the_api_server_shows(client: Client) -> None:
    before = pod()
    before["metadata"]["labels"]["rlguard.io/guard"] = "x" * 500
    assert all(len(warning) <= 250 for warning in (await post(client, review(before)))["warnings"])
