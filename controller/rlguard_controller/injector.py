"""The mutating admission webhook: AdmissionReview v1 in and out. It never stands in a pod's way.

Whatever goes wrong here, the pod is allowed, unguarded, with a warning that says why: rlguard's failure must not stop
training. Nothing outside the answer is written, so dry runs need no care.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import structlog
from aiohttp import web

from rlguard.errors import RlguardError
from rlguard.model import GUARD_LABEL, PORT_OF_AGENT
from rlguard_controller.mutate import LWS_NAME, Context, Injection, claims_of, mark_unguarded, mutate
from rlguard_controller.parts import Json

ENABLED: Final = "enabled"
MAX_BODY: Final = 4 * 1024 * 1024
"""A pod is below 1.5 MiB (etcd's limit) and a review carries it once."""
LOOKUP_SECONDS: Final = 1.5
"""The longest wait for one look-up; all three together stay below the webhook's own limit of 5 s."""
WARNING_LENGTH: Final = 250
"""The API server cuts longer warnings (256 characters)."""

T = TypeVar("T")
_LOG = structlog.get_logger(__name__)
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError)


@dataclass(frozen=True, slots=True)
class Settings:
    """What is the same for every pod: see `mutate.Context` for each field."""

    image: str
    pull_policy: str
    controller: str
    authority: str
    agent_port: int = PORT_OF_AGENT


@dataclass(frozen=True, slots=True)
class Lookups:
    """What differs by job. Each may raise OSError, TimeoutError or an RlguardError; the injector then does without.

    `avoid(namespace, job)`: the nodes this job may not use now. `checkpoint_path(namespace, job)`: the Guard's
    `spec.checkpoint.path`, empty without one. `shared_claims(namespace, names)`: those of the claims that are
    ReadWriteMany.
    """

    avoid: Callable[[str, str], Awaitable[Sequence[str]]]
    checkpoint_path: Callable[[str, str], Awaitable[str]]
    shared_claims: Callable[[str, frozenset[str]], Awaitable[frozenset[str]]]


class Injector:
    """Answers reviews on `POST /v1/inject`; both replicas of the controller serve it."""

    def __init__(self, settings: Settings, lookups: Lookups) -> None:
        self._settings = settings
        self._lookups = lookups

    async def handle(self, request: web.Request) -> web.Response:
        """Always 200 with an AdmissionReview that allows the pod."""
        try:
            review = json.loads(await _body(request))
        except (ValueError, RecursionError) as error:
            return _answer("", (), (f"rlguard: the review is not JSON ({error!s:.80}); the pod runs unguarded",))
        uid = _uid(review)
        try:
            patch, warnings = await self._decide(review["request"])
        except _MALFORMED as error:
            _LOG.warning("a malformed review", error=repr(error)[:200])
            patch, warnings = [], (f"malformed review ({error!r:.80}); the pod runs unguarded",)
        return _answer(uid, patch, tuple(f"rlguard: {warning}" for warning in warnings))

    async def _decide(self, request: Mapping[str, Any]) -> tuple[list[Json], tuple[str, ...]]:
        pod = request["object"]
        if request.get("operation") != "CREATE" or request["kind"].get("kind") != "Pod" or request.get("subResource"):
            return [], ()
        label = (pod["metadata"].get("labels") or {}).get(GUARD_LABEL)
        if label is None:
            return [], ()
        if label != ENABLED:
            why = f"label {GUARD_LABEL}: {label!r} is not {ENABLED}"
            return mark_unguarded(pod, why), (f"{why}; the pod runs unguarded",)
        return await self._inject(pod, request["namespace"])

    async def _inject(self, pod: Mapping[str, Any], namespace: str) -> tuple[list[Json], tuple[str, ...]]:
        context, doubts = await self._context(pod, namespace)
        result = mutate(pod, context)
        if isinstance(result, Injection):
            return result.patch, (*doubts, *result.warnings)
        _LOG.warning("a pod stays unguarded", namespace=namespace, pod=_name(pod), reason=result.reason)
        return mark_unguarded(pod, result.reason), (f"{result.reason}; the pod runs unguarded",)

    async def _context(self, pod: Mapping[str, Any], namespace: str) -> tuple[Context, tuple[str, ...]]:
        job = str((pod["metadata"].get("labels") or {}).get(LWS_NAME) or "")
        names = claims_of(pod)
        answers = await asyncio.gather(
            _try(self._lookups.avoid(namespace, job)),
            _try(self._lookups.checkpoint_path(namespace, job)),
            _try(self._lookups.shared_claims(namespace, names)),
        )
        avoid, path, claims = answers
        subjects = ("the nodes to avoid", "spec.checkpoint.path", "the access modes of its claims")
        missing = [subject for subject, answer in zip(subjects, answers, strict=True) if answer is None]
        settings = self._settings
        context = Context(
            namespace=namespace,
            image=settings.image,
            pull_policy=settings.pull_policy,
            controller=settings.controller,
            authority=settings.authority,
            avoid=tuple(avoid or ()),
            shared_claims=claims,
            checkpoint_path=path or "",
            agent_port=settings.agent_port,
        )
        return context, tuple(f"could not look up {subject}; injected without" for subject in missing)


async def _try(lookup: Awaitable[T]) -> T | None:
    try:
        async with asyncio.timeout(LOOKUP_SECONDS):
            return await lookup
    except (OSError, TimeoutError, RlguardError) as error:
        _LOG.warning("a look-up for the injector failed", error=repr(error)[:200])
        return None


async def _body(request: web.Request) -> bytes:
    """The body, bounded. Raises ValueError when it is longer than `MAX_BODY`."""
    body = bytearray()
    async for chunk in request.content.iter_chunked(65536):
        body += chunk
        if len(body) > MAX_BODY:
            raise ValueError(f"longer than {MAX_BODY} bytes")
    return bytes(body)


def _uid(review: Any) -> str:
    request = review.get("request") if isinstance(review, dict) else None
    return str(request.get("uid") or "") if isinstance(request, dict) else ""


def _name(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"].get("name") or pod["metadata"].get("generateName") or "")


def _answer(uid: str, patch: Sequence[Json], warnings: Sequence[str]) -> web.Response:
    response: Json = {"uid": uid, "allowed": True}
    if warnings:
        response["warnings"] = [warning[:WARNING_LENGTH] for warning in warnings]
    if patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(json.dumps(list(patch)).encode()).decode()
    return web.json_response({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
