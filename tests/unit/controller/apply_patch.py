"""The part of RFC 6902 that the injector uses, applied strictly: a path that is not there is an error."""

from __future__ import annotations

import copy
from typing import Any


def apply(document: Any, patch: list[dict[str, Any]]) -> Any:
    """The patched copy of `document`."""
    result = copy.deepcopy(document)
    for operation in patch:
        _one(result, operation)
    return result


def _one(document: Any, operation: dict[str, Any]) -> None:
    *way, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
    target = document
    for part in way:
        target = target[int(part)] if isinstance(target, list) else target[part]
    key = int(last) if isinstance(target, list) else last
    if operation["op"] != "add" or isinstance(target, list):
        target[key]  # raises when there is nothing to replace, remove or test
    match operation["op"]:
        case "test":
            assert target[key] == operation["value"]
        case "remove":
            del target[key]
        case "add" | "replace":
            target[key] = copy.deepcopy(operation["value"])
        case unknown:
            raise AssertionError(f"operation {unknown} is not used by the injector")
