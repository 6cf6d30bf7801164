"""A few calls to the lab's API server, as its administrator."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from typing import TYPE_CHECKING, Any

from rlguard_chaos.lab import layout
from rlguard_chaos.lab.host import LabError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CALL_LIMIT_S = 5.0
PAUSE_S = 0.1
NOT_FOUND = 404
CONFLICT = 409
ERROR = 400
PATCH = "application/merge-patch+json"
JSON = "application/json"
YAML = "application/yaml"


def request(method: str, path: str, body: Mapping[str, Any] | str | None = None, kind: str = "") -> tuple[int, Any]:
    """One call: the status code and the decoded answer (text when it is no JSON). A body of text is YAML.

    Raises LabError when the API server does not answer.
    """
    text = body if isinstance(body, str) else json.dumps(body or {})
    headers = {"Content-Type": kind or (YAML if isinstance(body, str) else JSON)}
    context = ssl.create_default_context(cafile=layout.PKI / "ca.crt")
    context.load_cert_chain(layout.PKI / "admin.crt", layout.PKI / "admin.key")
    line = http.client.HTTPSConnection(layout.API_ADDRESS, 443, context=context, timeout=CALL_LIMIT_S)
    try:
        line.request(method, path, text.encode() if body else None, headers)
        answer = line.getresponse()
        said = answer.read().decode()
    except (OSError, http.client.HTTPException) as error:
        raise LabError(f"the API server at {layout.API_URL} does not answer: {error}") from error
    finally:
        line.close()
    try:
        return answer.status, json.loads(said)
    except ValueError:
        return answer.status, said


def create(path: str, body: Mapping[str, Any] | str) -> None:
    """Create an object; one that exists already is left as it is.

    Raises LabError when the API server refuses it.
    """
    status, answer = request("POST", path, body)
    if status >= ERROR and status != CONFLICT:
        raise LabError(f"the API server refused an object at {path}: {answer}")


def patch_node_status(node: str, status: Mapping[str, Any]) -> None:
    """Merge into the status of a Node.

    Raises LabError when the API server refuses it.
    """
    code, answer = request("PATCH", f"/api/v1/nodes/{node}/status", {"status": status}, PATCH)
    if code >= ERROR:
        raise LabError(f"the API server refused the status of {node}: {answer}")


def nodes() -> dict[str, Mapping[str, Any]]:
    """All Node objects by name.

    Raises LabError when the API server does not answer with them.
    """
    code, answer = request("GET", "/api/v1/nodes")
    if code >= ERROR:
        raise LabError(f"the API server does not list the nodes: {answer}")
    return {item["metadata"]["name"]: item for item in answer["items"]}


def is_ready(node: Mapping[str, Any]) -> bool:
    """Whether a Node's Ready condition is true; unknown is not ready."""
    conditions = node.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def wait_for(what: str, log: str, limit_s: float, done: Callable[[], bool]) -> None:
    """Wait until it is true; an API server that does not answer yet is not an end.

    Raises LabError naming the log to read once limit_s have passed.
    """
    deadline = time.monotonic() + limit_s
    last = ""
    while time.monotonic() < deadline:
        try:
            if done():
                return
        except LabError as error:
            last = f" ({error})"
        time.sleep(PAUSE_S)
    raise LabError(f"{what} within {limit_s:.0f} s{last}; see {layout.LOGS}/{log}.log")
