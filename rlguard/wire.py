"""Messages and records to JSON and back, strictly: whatever does not fit the declared types is a BadWireError.

One codec for every frozen dataclass of the vocabulary. JSON form: dataclass and NamedTuple -> object with every field;
a type with `parse` (Incarnation, CheckpointId) -> string; enum -> its value; tuple -> array; None -> null. Unknown
fields are ignored and fields with a default may be missing, so that processes of two versions understand each other:
a field that is added later needs a default. Pure.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import types
import typing
from collections.abc import Collection
from enum import Enum
from typing import Any, TypeVar

from rlguard.errors import BadWireError
from rlguard.messages import Acknowledged, AgentReport, Grant, MemberReport, Message, Order, PodReport

T = TypeVar("T")

KINDS: typing.Final[dict[str, type[Message]]] = {
    kind.__name__: kind for kind in (MemberReport, Order, PodReport, Grant, AgentReport, Acknowledged)
}
MAX_BYTES: typing.Final = 1 << 20
"""No message of ours is larger; a longer one is refused unread."""
LARGEST_WHOLE: typing.Final = 2**63 - 1
"""What Kubernetes can store; Python would count on, and fail where such a number is first written as text."""
LARGEST: typing.Final = sys.float_info.max


def encode(message: Message) -> str:
    """The message as one line of JSON, tagged with its kind."""
    return json.dumps({"type": type(message).__name__, **to_json(message)}, separators=(",", ":"))


def decode(text: str | bytes) -> Message:
    """The message in a line of JSON. Raises BadWireError with what does not fit and where."""
    if len(text) > MAX_BYTES:
        raise BadWireError(f"a message of {len(text)} bytes (at most {MAX_BYTES})")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadWireError(f"not JSON: {error}") from error
    name = value.get("type") if isinstance(value, dict) else None
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise BadWireError(f"not a message of ours: {str(text[:80])!r}")
    return from_json(kind, value)


def to_json(value: Any) -> Any:
    """Any value of the vocabulary as what `json` can write."""
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return _tuple_to_json(value)
    return value


def _tuple_to_json(value: tuple[Any, ...]) -> Any:
    if hasattr(type(value), "parse"):
        return str(value)
    if hasattr(value, "_asdict"):
        return {name: to_json(part) for name, part in value._asdict().items()}
    return [to_json(part) for part in value]


def from_json(kind: type[T], value: Any, at: str = "") -> T:
    """`value` as a `kind`. Raises BadWireError naming the place, such as `GroupReport.world[2]`."""
    result = _build(kind, value, at or kind.__name__)
    return typing.cast("T", result)


def _build(kind: Any, value: Any, at: str) -> Any:
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        return None if value is None else _build(_without_none(kind), value, at)
    if origin is tuple:
        return _build_tuple(kind, value, at)
    if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
        return _build_record(kind, value, at)
    return _build_scalar(kind, value, at)


def _without_none(kind: Any) -> Any:
    return next(part for part in typing.get_args(kind) if part is not type(None))


def _build_tuple(kind: Any, value: Any, at: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise BadWireError(f"{at}: expected an array, got {value!r:.60}")
    (item, _) = typing.get_args(kind)
    return tuple(_build(item, part, f"{at}[{index}]") for index, part in enumerate(value))


def _build_record(kind: Any, value: Any, at: str) -> Any:
    if hasattr(kind, "parse"):
        return _parse(kind, value, at)
    if not isinstance(value, dict):
        raise BadWireError(f"{at}: expected an object, got {value!r:.60}")
    hints = _hints(kind)
    missing = [name for name in hints if name not in value and name not in _optional(kind)]
    if missing:
        raise BadWireError(f"{at}: missing {', '.join(missing)}")
    fields = {name: _build(hint, value[name], f"{at}.{name}") for name, hint in hints.items() if name in value}
    try:
        return kind(**fields)
    except ValueError as error:
        raise BadWireError(f"{at}: {error}") from error


def _optional(kind: Any) -> Collection[str]:
    """The fields with a default: those that an older peer does not send yet."""
    if not dataclasses.is_dataclass(kind):
        return ()
    return [field.name for field in dataclasses.fields(kind) if field.default is not dataclasses.MISSING]


_HINTS: dict[Any, dict[str, Any]] = {}


def _hints(kind: Any) -> dict[str, Any]:
    if kind not in _HINTS:
        _HINTS[kind] = typing.get_type_hints(kind)
    return _HINTS[kind]


def _parse(kind: Any, value: Any, at: str) -> Any:
    if not isinstance(value, str):
        raise BadWireError(f"{at}: expected a string, got {value!r:.60}")
    try:
        return kind.parse(value)
    except ValueError as error:
        raise BadWireError(f"{at}: {error}") from error


def _build_scalar(kind: Any, value: Any, at: str) -> Any:
    if isinstance(kind, type) and issubclass(kind, Enum):
        try:
            return kind(value)
        except ValueError as error:
            raise BadWireError(f"{at}: {error}") from error
    if kind is float:
        return _build_float(value, at)
    if type(value) is not kind:
        raise BadWireError(f"{at}: expected {kind.__name__}, got {value!r:.60}")
    if kind is int and not -LARGEST_WHOLE <= value <= LARGEST_WHOLE:
        raise BadWireError(f"{at}: a number beyond 64 bits")
    if kind is str and not value.isascii() and _is_broken(value):
        raise BadWireError(f"{at}: text with half a character")
    return value


def _is_broken(text: str) -> bool:
    """JSON may carry lone surrogates, which no file and no log can be given."""
    return any("\ud800" <= character <= "\udfff" for character in text)


def _build_float(value: Any, at: str) -> float:
    """A finite number: NaN compares false with every limit, and so would pass as within it."""
    if type(value) not in (int, float) or not -LARGEST <= value <= LARGEST:
        raise BadWireError(f"{at}: expected a number, got {value!r:.60}")
    return float(value)
