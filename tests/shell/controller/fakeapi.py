"""An API server of a few kinds of objects: versions, preconditions, watches, TokenReviews. Plain HTTP."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from itertools import count
from typing import Any

from aiohttp import web

from rlguard.io.kube import Access

Json = dict[str, Any]


class FakeApi:
    """`objects` by path. `down`: every call is answered 503. `expire`: the next watch is answered 410. `unknown`:
    collections of kinds that it does not know.

    `watches` counts those that were opened.
    """

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.unknown: set[str] = set()
        self.calls: list[tuple[str, str, Any]] = []
        self.down = self.expire = False
        self.watches = 0
        self._versions, self._uids = count(1), count(1)
        self._history: list[tuple[int, str, str, Json]] = []
        self._changed = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self.port = 0
        self.access = Access("", None, _no_token)

    async def start(self) -> Access:
        """Listen; returns how to reach it."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]

        async def token() -> str:
            return "controller"

        return Access(f"http://127.0.0.1:{self.port}", None, token)

    async def stop(self) -> None:
        """Close everything."""
        if self._runner is not None:
            await self._runner.cleanup()

    def put(self, path: str, thing: Json, kind: str = "MODIFIED") -> Json:
        """Store an object under its path, as a new version."""
        version = next(self._versions)
        meta = {"name": path.rsplit("/", 1)[1], **thing.get("metadata", {}), "resourceVersion": str(version)}
        if "/namespaces/" in path:
            meta["namespace"] = path.split("/namespaces/")[1].split("/", maxsplit=1)[0]
        known = self.objects.get(path, {}).get("metadata", {}).get("uid")
        meta.setdefault("uid", known or f"uid-{next(self._uids)}")
        meta.setdefault("generation", 1)
        self.objects[path] = {**thing, "metadata": meta}
        self._note(version, kind if path in self.objects else "ADDED", path)
        return self.objects[path]

    def remove(self, path: str) -> None:
        """An object is gone."""
        self._note(next(self._versions), "DELETED", path)
        del self.objects[path]

    def _note(self, version: int, kind: str, path: str) -> None:
        thing = self.objects[path]
        told = {**thing, "metadata": {**thing["metadata"], "resourceVersion": str(version)}}
        self._say(version, kind, path, told)

    def say(self, kind: str, path: str, thing: Json) -> None:
        """Tell watchers an event as it is, whatever it is."""
        self._say(next(self._versions), kind, path, thing)

    def _say(self, version: int, kind: str, path: str, thing: Json) -> None:
        self._history.append((version, kind, path, thing))
        self._changed.set()
        self._changed = asyncio.Event()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        body = json.loads(await request.read() or b"null")
        self.calls.append((request.method, path, body))
        if self.down:
            return _status(503, "etcd is away")
        if path in self.unknown:
            return _status(404, "the server could not find the requested resource")
        if request.method == "GET":
            return await self._get(request, path)
        return getattr(self, f"_{request.method.lower()}")(path, body, request.content_type)

    async def _get(self, request: web.Request, path: str) -> web.StreamResponse:
        if path in self.objects:
            return web.json_response(self.objects[path])
        if request.query.get("watch"):
            return await self._watch(request, path)
        if "resourceVersion" not in request.query:
            return _status(404, f"{path} not found")
        items = [thing for name, thing in self.objects.items() if _in(path, name)]
        version = self._history[-1][0] if self._history else 0
        return web.json_response({"metadata": {"resourceVersion": str(version)}, "items": items})

    async def _watch(self, request: web.Request, path: str) -> web.StreamResponse:
        if self.expire:
            self.expire = False
            return _status(410, "too old")
        response = web.StreamResponse()
        await response.prepare(request)
        self.watches += 1
        seen = int(request.query["resourceVersion"])
        while not self.down:
            changed = self._changed
            for version, kind, name, thing in list(self._history):
                if version > seen and _in(path, name):
                    with suppress(ConnectionError):
                        await response.write(json.dumps({"type": kind, "object": thing}).encode() + b"\n")
                    seen = version
            await changed.wait()
        return response

    def _post(self, path: str, body: Json, _: str) -> web.Response:
        if path.endswith("/tokenreviews"):
            return web.json_response({"status": _review(body["spec"])})
        name = f"{path}/{body['metadata']['name']}"
        if name in self.objects:
            return _status(409, "exists")
        return web.json_response(self.put(name, body, "ADDED"))

    def _put(self, path: str, body: Json, _: str) -> web.Response:
        if body["metadata"].get("resourceVersion") != self.objects[path]["metadata"]["resourceVersion"]:
            return _status(409, "changed")
        return web.json_response(self.put(path, body))

    def _patch(self, path: str, body: Any, kind: str) -> web.Response:
        base = path.removesuffix("/status").removesuffix("/scale")
        if base not in self.objects:
            return _status(404, "not found")
        old = self.objects[base]
        new = _json_patch(old, body) if kind == "application/json-patch+json" else _merge(old, body)
        if new is None:
            return _status(422, "test failed")
        if new["metadata"]["resourceVersion"] != old["metadata"]["resourceVersion"]:
            return _status(409, "changed")
        return web.json_response(self.put(base, new))

    def _delete(self, path: str, body: Json, _: str) -> web.Response:
        if path not in self.objects:
            return _status(404, "not found")
        if (body.get("preconditions") or {}).get("uid") not in (None, self.objects[path]["metadata"]["uid"]):
            return _status(409, "another life")
        self.remove(path)
        return web.json_response({})


async def _no_token() -> None:
    return None


def _in(collection: str, path: str) -> bool:
    """True if the object is in the collection, which may span all namespaces."""
    folder = path.rsplit("/", 1)[0]
    if folder == collection:
        return True
    before, _, after = folder.partition("/namespaces/")
    return bool(after) and f"{before}/{after.split('/', 1)[-1]}" == collection


def _status(code: int, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "message": message}, status=code)


def _review(spec: Json) -> Json:
    """A token is `namespace/account/pod/uid/node`."""
    parts = spec["token"].split("/")
    if len(parts) != 5:
        return {"authenticated": False}
    namespace, account, pod, uid, node = parts
    extra = {"pod-name": [pod], "pod-uid": [uid], "node-name": [node]}
    named = {f"authentication.kubernetes.io/{name}": value for name, value in extra.items()}
    user = {"username": f"system:serviceaccount:{namespace}:{account}", "extra": named}
    return {"authenticated": True, "audiences": spec["audiences"], "user": user}


def _merge(old: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    merged = dict(old) if isinstance(old, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merge(merged.get(name), value)
    return merged


def _json_patch(old: Json, patch: list[Json]) -> Json | None:
    new = json.loads(json.dumps(old))
    for step in patch:
        *folders, name = step["path"].strip("/").split("/")
        place = new
        for folder in folders:
            place = place[int(folder)] if isinstance(place, list) else place[folder]
        if step["op"] == "test" and place.get(name) != step["value"]:
            return None
        if step["op"] == "remove":
            del place[int(name) if isinstance(place, list) else name]
        elif step["op"] != "test":
            _set(place, name, step["value"])
    return new


def _set(place: Any, name: str, value: Any) -> None:
    """In a list `-` is the place behind its end."""
    if isinstance(place, list):
        place.insert(len(place) if name == "-" else int(name), value)
    else:
        place[name] = value
