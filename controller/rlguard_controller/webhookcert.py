"""How the API server comes to trust the injector: names for the serving certificate, and the bundle it checks it with.

The chart installs the webhook configuration without a bundle; the controller fills it in at start and whenever it
differs, so a restored or re-installed configuration repairs itself. Pure.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

from rlguard_controller.parts import Json

CONFIGURATION: Final = "rlguard-injector"
SERVICE: Final = "rlguard-webhook"


def serving_names(namespace: str) -> tuple[str, ...]:
    """The DNS names under which the API server calls the injector's Service."""
    return (f"{SERVICE}.{namespace}.svc", f"{SERVICE}.{namespace}.svc.cluster.local")


def bundle_patch(configuration: Mapping[str, Any], authority: bytes) -> list[Json]:
    """The JSON patch that makes every webhook of a MutatingWebhookConfiguration trust `authority` (PEM).

    Empty when nothing is to be done. It carries a test of the resourceVersion: a configuration that changed in between
    is refused, to be read and patched anew.
    """
    wanted = base64.b64encode(authority).decode()
    hooks = configuration.get("webhooks") or []
    stale = [number for number, hook in enumerate(hooks) if hook["clientConfig"].get("caBundle") != wanted]
    if not stale:
        return []
    version = configuration["metadata"]["resourceVersion"]
    patch: list[Json] = [{"op": "test", "path": "/metadata/resourceVersion", "value": version}]
    paths = (f"/webhooks/{number}/clientConfig/caBundle" for number in stale)
    return patch + [{"op": "add", "path": path, "value": wanted} for path in paths]
