"""Who else acts on a node, by the marks they leave on it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlguard.errors import BadConfigError
from rlguard.health.conditions import read_node
from rlguard.health.remediators import BUILTIN, PREFIX, acting_on, parse
from rlguard.model import Repair, Severity


def node(*taints: Any, labels: Any = None, annotations: Any = None, **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "n", "labels": labels, "annotations": annotations, **metadata},
        "spec": {"taints": list(taints)},
    }


def taint(key: str, value: str | None = None, effect: str = "NoSchedule") -> dict[str, Any]:
    return {"key": key, "value": value, "effect": effect}


def codes(thing: dict[str, Any]) -> list[str]:
    return [fault.code for fault in read_node(thing) or ()]


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("ToBeDeletedByClusterAutoscaler", "cluster-autoscaler"),
        ("karpenter.sh/disrupted", "karpenter"),
        ("aws-node-termination-handler/spot-itn", "aws-node-termination-handler"),
        ("cloud.google.com/impending-node-termination", "gke"),
        ("node-healing.tke.cloud.tencent.com/x", "tke-node-healing"),
    ],
)
def test_another_is_known_by_its_taint_and_that_is_no_fault_of_the_node(key: str, name: str) -> None:
    (fault,) = read_node(node(taint(key))) or ()
    assert (fault.code, fault.severity, fault.repair) == (PREFIX + name, Severity.INFO, Repair.NONE)
    assert key in fault.detail


@pytest.mark.parametrize(
    "key",
    [
        "node.kubernetes.io/not-ready",
        "DeletionCandidateOfClusterAutoscaler",
        "nvidia.com/gpu",
        "x-karpenter.sh/disrupted",
    ],
)
def test_other_taints_are_nobody(key: str) -> None:
    assert codes(node(taint(key))) == []


def test_nvsentinel_is_known_by_label_or_annotation_until_it_is_done() -> None:
    label, annotation = "dgxc.nvidia.com/nvsentinel-state", "quarantineHealthEvent"
    assert codes(node(labels={label: "draining"})) == ["remediator-nvsentinel"]
    assert codes(node(labels={label: "draining"}, annotations={annotation: "[{}]"})) == ["remediator-nvsentinel"]
    assert codes(node(labels={label: "remediation-succeeded"})) == []
    assert codes(node(annotations={annotation: "[]"})) == []


def test_a_node_out_of_service_is_lost() -> None:
    (fault,) = read_node(node(taint("node.kubernetes.io/out-of-service", "nodeshutdown", "NoExecute"))) or ()
    assert (fault.code, fault.severity) == ("node-out-of-service", Severity.FATAL)


def test_a_node_that_is_being_deleted_says_so_and_names_no_deadline() -> None:
    (fault,) = read_node(node(deletionTimestamp="2026-03-01T00:00:00Z")) or ()
    assert (fault.code, fault.severity, fault.deadline) == ("node-deleting", Severity.WARNING, None)


def test_each_row_says_its_source_and_what_ends_it() -> None:
    assert all(row.source and row.clears and row.does for row in BUILTIN)


@pytest.mark.parametrize("text", ["", "{}", '{"rows": [{"where": "moon"}]}', '{"rows": [{"where": "taints"}]}'])
def test_a_table_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadConfigError):
        parse(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from([row.key for row in BUILTIN]),
    lambda part: (
        st.lists(part, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["metadata", "spec", "taints", "labels", "annotations", "key", "value", "deletionTimestamp"]
            ),
            part,
            max_size=5,
        )
    ),
)


@given(st.dictionaries(st.sampled_from(["metadata", "spec"]), JSON, max_size=2))
def test_no_node_makes_the_reader_fail(thing: dict[str, Any]) -> None:
    for fault in acting_on(thing):
        assert fault.code.startswith(PREFIX)
        assert len(fault.detail) <= 300
    read_node(thing)


def test_of_two_marks_of_the_same_one_the_table_s_first_gives_the_words() -> None:
    rows = parse(
        json.dumps(
            {
                "rows": [
                    {"name": "x", "where": "taints", "key": key, "does": key, "clears": "-", "source": "-"}
                    for key in ("first", "second")
                ]
            }
        )
    )
    (fault,) = acting_on(node(taint("second"), taint("first")), rows)
    assert fault.detail == "first (taints: first)"


def test_a_node_with_more_marks_than_any_has_is_not_read_to_its_end() -> None:
    key = next(row.key for row in BUILTIN if row.where == "taints" and not row.prefix and not row.unless)
    many = [taint(f"other/{number}") for number in range(1000)]
    assert len(acting_on(node(taint(key), *many))) == 1
    assert acting_on(node(*many, taint(key))) == ()
