"""What stands on the Node object."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rlguard.health.conditions import OURS, read_node
from rlguard.model import Severity

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda part: (
        st.lists(part, max_size=3)
        | st.dictionaries(st.sampled_from(["metadata", "spec", "status", "conditions", "type", "x"]), part, max_size=4)
    ),
)


def node(*conditions: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "n"}, "spec": spec, "status": {"conditions": list(conditions)}}


def test_a_healthy_node_has_nothing_against_it() -> None:
    assert read_node(node({"type": "Ready", "status": "True"}, {"type": "GPUDeviceLost", "status": "False"})) == ()


def test_another_s_verdict_on_a_gpu_counts() -> None:
    (fault,) = read_node(node({"type": "GPUDeviceLost", "status": "True", "reason": "r", "message": "m"})) or ()
    assert (fault.code, fault.severity) == ("condition-GPUDeviceLost", Severity.FATAL)
    assert "m" in fault.detail


def test_a_cordon_is_told_and_nothing_more() -> None:
    (fault,) = read_node(node(unschedulable=True)) or ()
    assert (fault.code, fault.severity) == ("node-cordoned", Severity.INFO)


def test_our_own_condition_is_not_read_back() -> None:
    assert read_node(node({"type": OURS, "status": "False"})) == ()


def test_what_is_no_node_is_none() -> None:
    assert read_node({"kind": "Status", "code": 410}) is None
    assert read_node([]) is None


@given(JSON)
def test_no_json_makes_the_reader_fail(value: Any) -> None:
    read_node(value)
