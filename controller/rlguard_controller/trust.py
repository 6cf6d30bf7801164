"""The controller's standing in the cluster: its authority, its certificate, and what the injector looks up.

The authority lives in a Secret; its certificate is published in a ConfigMap, for agents, and in the webhook
configuration, for the API server. All three are repaired when they differ.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from rlguard.cluster.facts import JobKey
from rlguard.errors import TransientError
from rlguard.io.kube import JSON_PATCH, ConflictError, Json, Kube
from rlguard.io.tls import Credentials, Key, load_certificate, server_context
from rlguard_controller.authority import SECRET, Authority, SecretData, controller_credentials, load_or_create, renew_at
from rlguard_controller.injector import Lookups
from rlguard_controller.objects import guard_path
from rlguard_controller.parts import AUDIENCE
from rlguard_controller.settings import SERVICE
from rlguard_controller.webhookcert import CONFIGURATION, bundle_patch, serving_names

CONFIG_MAP: Final = "rlguard-authority"
CA_FILE: Final = "ca.pem"
CHECK: Final = 60.0
"""Trust is looked after this often, in seconds."""
RETRY: Final = 2.0
SHARED: Final = "ReadWriteMany"


async def load_authority(kube: Kube, namespace: str, log: Any) -> Authority:
    """The cluster's authority; waits while the API server is away. Raises BadConfigError if it is damaged."""
    path = f"/api/v1/namespaces/{namespace}/secrets"

    async def read() -> Mapping[str, str] | None:
        secret = await kube.find(f"{path}/{SECRET}")
        return (secret.get("data") or {}) if secret is not None else None

    async def create(data: SecretData) -> bool:
        return await _create(kube, path, {"kind": "Secret", "metadata": {"name": SECRET}, "data": data})

    while True:
        try:
            return await load_or_create(read, create, datetime.now(UTC))
        except TransientError as error:
            log.warning("waiting for the authority", error=str(error))
            await asyncio.sleep(RETRY)


async def _create(kube: Kube, path: str, body: Json) -> bool:
    try:
        await kube.create(path, {"apiVersion": "v1", **body})
    except ConflictError:
        return False
    return True


class Serving:
    """The controller's own certificate, in the one TLS context of its listener.

    A caller may come without a certificate, to ask for one; the links want an identity.
    """

    def __init__(self, authority: Authority, namespace: str) -> None:
        self._authority = authority
        self._names = serving_names(namespace)
        self._key = Key.generate()
        self._credentials = self._sign()
        self.context = server_context(self._credentials, client_required=False)

    def renew(self) -> None:
        """Another certificate in time; new connections get it."""
        if datetime.now(UTC) >= renew_at(self._credentials.certificate):
            self._credentials = self._sign()
            load_certificate(self.context, self._credentials)

    def _sign(self) -> Credentials:
        return controller_credentials(self._authority, self._key, self._names, datetime.now(UTC))


async def keep_trust(kube: Kube, namespace: str, authority: Authority, serving: Serving, log: Any) -> None:
    """Keep the serving certificate fresh, and authority and bundle published, for ever."""
    said = ""
    while True:
        serving.renew()
        try:
            await _publish(kube, namespace, authority.pem)
        except TransientError as error:
            if str(error) != said:
                said = str(error)
                log.warning("the authority could not be published", error=said)
            await asyncio.sleep(RETRY)
        else:
            await asyncio.sleep(CHECK)


async def _publish(kube: Kube, namespace: str, pem: bytes) -> None:
    path, data = f"/api/v1/namespaces/{namespace}/configmaps", {CA_FILE: pem.decode()}
    found = await kube.find(f"{path}/{CONFIG_MAP}")
    if found is None:
        await _create(kube, path, {"kind": "ConfigMap", "metadata": {"name": CONFIG_MAP}, "data": data})
    elif found.get("data") != data:
        await kube.patch(f"{path}/{CONFIG_MAP}", {"data": data})
    hooks = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{CONFIGURATION}"
    configuration = await kube.find(hooks)
    patch = bundle_patch(configuration, pem) if configuration is not None else []
    if patch:
        await kube.patch(hooks, patch, JSON_PATCH)


async def service_address(kube: Kube, namespace: str, log: Any) -> str:
    """host:port at which sidecars find the controller that leads; waits while there is no such Service."""
    while True:
        try:
            service = await kube.get(f"/api/v1/namespaces/{namespace}/services/{SERVICE}")
            host, port = service["spec"]["clusterIP"], service["spec"]["ports"][0]["port"]
        except TransientError as error:
            log.warning("waiting for the Service", service=SERVICE, error=str(error))
            await asyncio.sleep(RETRY)
        else:
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def review_token(kube: Kube, token: str) -> Mapping[str, Any]:
    """The status of a TokenReview for our audience. Raises KubeError."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview"}
    spec = {"token": token, "audiences": [AUDIENCE]}
    answer = await kube.create("/apis/authentication.k8s.io/v1/tokenreviews", {**body, "spec": spec})
    status: Mapping[str, Any] = answer.get("status") or {}
    return status


def lookups(kube: Kube) -> Lookups:
    """What the injector asks about a job: read from the API server itself, because the other replica may lead."""

    async def guard(namespace: str, job: str) -> Json:
        return await kube.find(guard_path(JobKey(namespace, job))) or {} if job else {}

    async def avoid(namespace: str, job: str) -> Sequence[str]:
        entries = ((await guard(namespace, job)).get("status") or {}).get("avoid") or ()
        return tuple(entry["node"] for entry in entries)

    async def checkpoint_path(namespace: str, job: str) -> str:
        spec = (await guard(namespace, job)).get("spec") or {}
        return str((spec.get("checkpoint") or {}).get("path") or "")

    async def shared_claims(namespace: str, names: frozenset[str]) -> frozenset[str]:
        base = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
        claims = {name: await kube.find(f"{base}/{name}") for name in sorted(names)}
        return frozenset(name for name, claim in claims.items() if SHARED in _modes(claim))

    return Lookups(avoid, checkpoint_path, shared_claims)


def _modes(claim: Json | None) -> Sequence[str]:
    return tuple(((claim or {}).get("spec") or {}).get("accessModes") or ())
