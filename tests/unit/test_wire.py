"""The codec, case by case: what does not fit is refused with the place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rlguard.errors import BadWireError
from rlguard.messages import AgentReport, FileEntry, GroupReport, StageOrder, Timing
from rlguard.model import CheckpointId, GroupKey, Incarnation, Notice, Repair, Scope, Severity, Verdict
from rlguard.wire import MAX_BYTES, decode, encode, from_json, to_json

NOTICE = Notice("b/xid-79/x", "xid-79", Severity.FATAL, Scope.GPU, Repair.REBOOT, "gone", 12.5)
REPORT = AgentReport("node-1", "boot", Verdict.LOST, (NOTICE,))


def wired(**changes: Any) -> str:
    value = json.loads(encode(REPORT))
    value.update(changes)
    return json.dumps(value)


def test_a_message_is_one_line_tagged_with_its_kind() -> None:
    text = encode(REPORT)
    assert "\n" not in text
    assert json.loads(text)["type"] == "AgentReport"
    assert decode(text) == REPORT


def test_ids_travel_as_strings_and_keys_as_objects() -> None:
    assert to_json(CheckpointId(Incarnation(3, 2), 120)) == "120@3.2"
    assert to_json(GroupKey("ns", "job", 0)) == {"namespace": "ns", "job": "job", "group": 0}
    assert from_json(StageOrder, {"order": 1, "step": 2, "confirmed": "120@3.2"}).confirmed == CheckpointId(
        Incarnation(3, 2), 120
    )


def test_a_field_that_a_newer_peer_added_is_ignored() -> None:
    assert decode(wired(color="blue")) == REPORT


def test_a_whole_number_is_also_a_float() -> None:
    value = from_json(Timing, dict.fromkeys(Timing.__dataclass_fields__, 3))
    assert value.stage_interval == 3.0
    assert isinstance(value.stage_interval, float)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("7" * 5000, "not JSON"),
        ("[]", "not a message"),
        ("7", "not a message"),
        ("{}", "not a message"),
        ('{"type": "Nothing"}', "not a message"),
        ('{"type": []}', "not a message"),
        ('{"type": {}}', "not a message"),
        ('{"type": "AgentReport"}', "AgentReport: missing node, boot_id, verdict, notices"),
        (wired(node=7), "AgentReport.node: expected str"),
        (wired(node=None), "AgentReport.node"),
        (wired(verdict="splendid"), "AgentReport.verdict"),
        (wired(verdict=["lost"]), "AgentReport.verdict"),
        (wired(notices={}), "AgentReport.notices: expected an array"),
        (wired(notices=[7]), r"AgentReport.notices\[0\]: expected an object"),
        (wired(notices=[{**to_json(NOTICE), "seconds_left": "1"}]), r"notices\[0\].seconds_left: expected a number"),
        (wired(notices=[{**to_json(NOTICE), "seconds_left": True}]), r"notices\[0\].seconds_left: expected a number"),
        (wired(notices=[{**to_json(NOTICE), "seconds_left": 10**400}]), r"notices\[0\].seconds_left"),
        (wired(notices=[{**to_json(NOTICE), "seconds_left": float("nan")}]), r"notices\[0\].seconds_left"),
        (wired(notices=[{**to_json(NOTICE), "seconds_left": float("inf")}]), r"notices\[0\].seconds_left"),
        (wired(boot_id="x" * MAX_BYTES), "at most"),
        (wired(boot_id="\ud800"), "AgentReport.boot_id: text with half a character"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_place(text: str, place: str) -> None:
    with pytest.raises(BadWireError, match=place):
        decode(text)


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(BadWireError):
        decode(b"\xff\xfe{}")


@pytest.mark.parametrize("name", ["3", "3.", "3.2.1", "-1.2", " 3.2", "3.2\n", "３.2", 3.2, None])  # noqa: RUF001 - no ASCII
def test_an_incarnation_has_one_spelling(name: Any) -> None:
    with pytest.raises(BadWireError):
        from_json(Incarnation, name)


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_a_whole_number_is_nothing_else(value: Any) -> None:
    with pytest.raises(BadWireError, match=r"FileEntry\.size: expected int"):
        from_json(FileEntry, {"name": "a", "size": value, "sha256": ""})


@pytest.mark.parametrize("size", [2**63, -(2**63), 10**4299])
def test_a_whole_number_that_kubernetes_cannot_store_is_refused(size: int) -> None:
    """One pod that claimed such a generation would end the controller, for all jobs."""
    with pytest.raises(BadWireError, match=r"FileEntry\.size"):
        from_json(FileEntry, {"name": "a", "size": size, "sha256": ""})


def test_the_place_is_told_through_all_levels() -> None:
    report = {**dict.fromkeys(GroupReport.__dataclass_fields__, 0), "incarnation": "1.1", "phase": "Running"}
    with pytest.raises(BadWireError, match=r"here\.why: expected str"):
        from_json(GroupReport, report, "here")


def test_a_field_with_a_default_may_be_missing_from_an_older_peer() -> None:
    older = {"stage_interval": 1.0, "flush_interval": 2.0, "stall_limit": 3.0, "same_step_limit": 4, "attempts": 5}
    timing = from_json(Timing, {**older, "attempts_window": 6.0})
    assert timing.keep == Timing(1.0, 2.0, 3.0, 4, 5, 6.0).keep
    with pytest.raises(BadWireError, match="missing attempts_window"):
        from_json(Timing, older)
