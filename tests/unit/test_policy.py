"""The spec of a Guard: defaults, ranges, and words for what is wrong."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlguard.errors import BadConfigError
from rlguard.policy import HEARTBEAT, NODE_LOST, RANGES, SUSPECT, T_SELF, GuardSpec, OnGiveUp, parse_spec

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda part: (
        st.lists(part, max_size=3)
        | st.dictionaries(
            st.sampled_from(["elastic", "checkpoint", "restart", "onGiveUp", "path", "minMembers", "attempts"]), part
        )
    ),
    max_leaves=10,
)


def spec(path: str, value: Any) -> dict[str, Any]:
    section, name = path.split(".")
    return {section: {name: value}}


def test_a_guard_without_a_spec_has_safe_defaults() -> None:
    assert parse_spec(None) == parse_spec({}) == GuardSpec()
    assert GuardSpec().elastic.min_members == 0
    assert GuardSpec().on_give_up is OnGiveUp.HOLD


def test_what_is_set_is_taken() -> None:
    parsed = parse_spec(
        {
            "elastic": {"minMembers": 1},
            "checkpoint": {"path": "/checkpoints", "stageIntervalSeconds": 5, "flushIntervalSeconds": 7.5, "keep": 9},
            "restart": {"attempts": 3, "sameStepLimit": 2},
            "onGiveUp": "release",
        }
    )
    assert parsed.elastic.min_members == 1
    assert parsed.checkpoint.path == "/checkpoints"
    assert (parsed.timing.stage_interval, parsed.timing.flush_interval) == (5.0, 7.5)
    assert (parsed.timing.attempts, parsed.timing.same_step_limit, parsed.timing.keep) == (3, 2, 9)
    assert parsed.on_give_up is OnGiveUp.RELEASE


@pytest.mark.parametrize("path", RANGES)
def test_both_ends_of_a_range_are_allowed_and_what_is_beyond_is_named(path: str) -> None:
    bounds = RANGES[path]
    for value in (bounds.low, bounds.high):
        parse_spec(spec(path, int(value) if bounds.whole else value))
    for value in (bounds.low - 1, bounds.high + 1):
        with pytest.raises(BadConfigError, match=path):
            parse_spec(spec(path, int(value) if bounds.whole else value))


@pytest.mark.parametrize("path", RANGES)
@pytest.mark.parametrize("value", [True, "1", [], {}, float("nan"), float("inf")])
def test_what_is_no_number_is_refused(path: str, value: Any) -> None:
    with pytest.raises(BadConfigError, match=path):
        parse_spec(spec(path, value))


@pytest.mark.parametrize("path", [path for path, bounds in RANGES.items() if bounds.whole])
def test_half_a_member_is_refused(path: str) -> None:
    with pytest.raises(BadConfigError, match="whole number"):
        parse_spec(spec(path, 1.5))


@pytest.mark.parametrize("value", ["checkpoints", "./x", 7, []])
def test_a_checkpoint_path_is_absolute(value: Any) -> None:
    with pytest.raises(BadConfigError, match=r"checkpoint\.path"):
        parse_spec(spec("checkpoint.path", value))


@pytest.mark.parametrize("value", ["Hold", "", None, 7, [], {}])
def test_another_way_to_give_up_is_refused(value: Any) -> None:
    with pytest.raises(BadConfigError, match="onGiveUp"):
        parse_spec({"onGiveUp": value})


@pytest.mark.parametrize("value", [["elastic"], "elastic", 7])
def test_a_spec_or_section_that_is_no_object_is_refused(value: Any) -> None:
    with pytest.raises(BadConfigError):
        parse_spec(value)
    with pytest.raises(BadConfigError):
        parse_spec({"elastic": value})


@given(JSON)
def test_any_json_is_a_spec_or_refused_with_words(value: Any) -> None:
    with contextlib.suppress(BadConfigError):
        assert isinstance(parse_spec(value), GuardSpec)


def test_a_worker_stops_itself_before_its_node_is_declared_lost() -> None:
    assert HEARTBEAT < SUSPECT < T_SELF < NODE_LOST
