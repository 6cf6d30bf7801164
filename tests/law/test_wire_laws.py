"""What holds for every message: it travels unchanged, and whatever is no message is a BadWireError and nothing else."""

from __future__ import annotations

import dataclasses
import json
import typing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlguard.errors import BadWireError
from rlguard.messages import Message
from rlguard.model import CheckpointId, Incarnation
from rlguard.wire import KINDS, LARGEST_WHOLE, MAX_BYTES, decode, encode

COUNT = st.integers(0, 10**18 - 1)
INCARNATIONS = st.builds(Incarnation, COUNT, COUNT)
CHECKPOINTS = st.builds(CheckpointId, INCARNATIONS, COUNT)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    Incarnation: INCARNATIONS,
    CheckpointId: CHECKPOINTS,
    float: FINITE,
    int: st.integers(-LARGEST_WHOLE, LARGEST_WHOLE),
    str: st.text(max_size=10),
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=5), part, max_size=3),
    max_leaves=10,
)


def a(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a type of the vocabulary."""
    if kind in SCALARS:
        return SCALARS[kind]
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) is tuple:
        return st.lists(a(arguments[0]), max_size=2).map(tuple)
    if arguments:
        return st.one_of(*(a(part) for part in arguments))
    if hasattr(kind, "__dataclass_fields__") or hasattr(kind, "_fields"):
        return st.builds(kind, **{name: a(hint) for name, hint in typing.get_type_hints(kind).items()})
    return st.from_type(kind)


MESSAGES = st.one_of(*(a(kind) for kind in KINDS.values()))


def test_every_kind_of_message_is_known_to_the_codec() -> None:
    assert set(KINDS.values()) == set(typing.get_args(Message))


@given(MESSAGES)
def test_every_message_arrives_as_it_was_sent(message: Message) -> None:
    assert decode(encode(message)) == message
    assert decode(encode(message).encode()) == message


def optional(message: Message) -> dict[str, Any]:
    """The fields that came later than the first version: a sender of that does not know them."""
    fields = dataclasses.fields(message)
    return {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}


@given(MESSAGES, st.data())
def test_a_message_without_one_of_its_first_fields_is_refused(message: Message, data: st.DataObject) -> None:
    value = json.loads(encode(message))
    del value[data.draw(st.sampled_from(sorted(set(value) - set(optional(message)))))]
    with pytest.raises(BadWireError):
        decode(json.dumps(value))


@given(MESSAGES)
def test_a_message_of_an_older_sender_is_read_with_defaults(message: Message) -> None:
    late = optional(message)
    value = {name: part for name, part in json.loads(encode(message)).items() if name not in late}
    assert decode(json.dumps(value)) == dataclasses.replace(message, **late)


@given(MESSAGES, JSON, st.data())
def test_a_message_with_anything_in_one_of_its_fields_is_read_or_refused(
    message: Message, anything: Any, data: st.DataObject
) -> None:
    value = json.loads(encode(message))
    value[data.draw(st.sampled_from(sorted(value)))] = anything
    read_or_refused(json.dumps(value))


@given(st.text() | st.binary() | JSON.map(json.dumps))
def test_what_is_no_message_is_refused(text: str | bytes) -> None:
    with pytest.raises(BadWireError):
        decode(text)


@given(MESSAGES, st.integers(0, 5000))
def test_a_message_cut_short_is_refused(message: Message, end: int) -> None:
    text = encode(message)
    with pytest.raises(BadWireError):
        decode(text[: min(end, len(text) - 1)])


def test_what_is_too_long_is_refused_unread() -> None:
    with pytest.raises(BadWireError, match="at most"):
        decode("[" * (MAX_BYTES + 1))


def read_or_refused(text: str) -> None:
    try:
        decode(text)
    except BadWireError:
        return
