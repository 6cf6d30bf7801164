"""What the files of the checkpoint root hold."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from rlguard.checkpoint.records import Claim, Completed, Manifest, Record
from rlguard.errors import BadWireError
from rlguard.messages import FileEntry
from rlguard.model import CheckpointId, Incarnation, Member, World

INCARNATION = Incarnation(3, 2)
PARENT = CheckpointId(Incarnation(3, 1), 100)
RECORD = Record(INCARNATION, "job", "leader", "n1", World((Member(0, "u", "p", "n", "10.0.0.1"),)), PARENT)
FILE = FileEntry("__0_0.distcp", 3, "a" * 64)
MANIFEST = Manifest(CheckpointId(INCARNATION, 120), 2, "job", "leader", (FILE,), "0.1.0")


def through_text(raw: dict[str, Any]) -> Any:
    return json.loads(json.dumps(raw))


def test_every_value_reads_back_from_its_text() -> None:
    claim, done = Claim(INCARNATION, "leader", "n1"), Completed(PARENT, "job")
    assert Claim.from_json(INCARNATION, through_text(claim.to_json())) == claim
    assert Record.from_json(through_text(RECORD.to_json())) == RECORD
    assert Manifest.from_json(through_text(MANIFEST.to_json())) == MANIFEST
    assert Completed.from_json(through_text(done.to_json())) == done
    assert Completed.from_json(Completed(None, "job").to_json()) == Completed(None, "job")


def without(raw: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in raw.items() if name != key}


@pytest.mark.parametrize("key", sorted(RECORD.to_json()))
def test_a_record_that_lacks_a_field_is_refused(key: str) -> None:
    with pytest.raises(BadWireError, match=key):
        Record.from_json(without(RECORD.to_json(), key))


@pytest.mark.parametrize("key", sorted(MANIFEST.to_json()))
def test_a_manifest_that_lacks_a_field_is_refused(key: str) -> None:
    with pytest.raises(BadWireError, match=key):
        Manifest.from_json(without(MANIFEST.to_json(), key))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"parent": "100@3.2"}, "not older"),
        ({"parent": "100@4.1"}, "not older"),
        ({"parent": 100}, "parent"),
        ({"parent": ""}, "parent"),
        ({"incarnation": "3"}, "incarnation"),
        ({"version": 2}, "version 2"),
        ({"world": {}}, "world"),
        ({"world": [7]}, "member"),
    ],
)
def test_a_record_that_cannot_be_true_is_refused_by_name(change: dict[str, Any], says: str) -> None:
    with pytest.raises(BadWireError, match=says):
        Record.from_json({**RECORD.to_json(), **change})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"files": []}, "at least one"),
        ({"files": [asdict(FILE), asdict(FILE)]}, "once"),
        ({"files": [{**asdict(FILE), "name": "../x"}]}, "plain file name"),
        ({"files": [{**asdict(FILE), "sha256": "A" * 64}]}, "hex"),
        ({"files": [{**asdict(FILE), "size": -1}]}, "size"),
        ({"files": [{**asdict(FILE), "size": True}]}, "size"),
        ({"checkpoint": "120"}, "checkpoint"),
    ],
)
def test_a_manifest_that_cannot_be_true_is_refused_by_name(change: dict[str, Any], says: str) -> None:
    with pytest.raises(BadWireError, match=says):
        Manifest.from_json({**MANIFEST.to_json(), **change})


@pytest.mark.parametrize("raw", [None, [], "x", 7])
def test_what_is_no_object_is_refused(raw: object) -> None:
    for read in (Record.from_json, Manifest.from_json, Completed.from_json):
        with pytest.raises(BadWireError, match="object"):
            read(raw)
