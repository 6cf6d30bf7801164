"""An experiment file is read strictly, and a mistake in it is named with its place."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlguard.errors import BadConfigError
from rlguard.model import Rung
from rlguard_chaos import demo
from rlguard_chaos.experiment import Fault, parse

KILL = {"fault": "kill-rank", "target": "worker"}


def experiment(**changes: Any) -> dict[str, Any]:
    return {"name": "n", "title": "t", "steps": [{"inject": [KILL], "expect": {"within": 5}}], **changes}


def test_every_experiment_that_comes_with_rlguard_can_be_read() -> None:
    """The five acts are all there, in order."""
    names = [item.name for item in demo.experiments()]
    assert names == ["rank-killed", "gpu-fell-off", "spot-reclaimed", "leader-lost", "finished"]


def test_a_good_file_becomes_faults_and_expectations() -> None:
    """Every field arrives."""
    step = {"inject": [KILL], "expect": {"within": 5, "decision": "in-place", "world": 2, "lostSteps": 1}}
    parsed = parse(experiment(steps=[step]), "x.yaml")
    assert parsed.steps[0].inject[0].fault is Fault.KILL_RANK
    assert parsed.steps[0].expect is not None
    assert (parsed.steps[0].expect.decision, parsed.steps[0].expect.world) == (Rung.IN_PLACE, 2)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (experiment(steps=[]), "at least one step"),
        (experiment(title=""), "title"),
        (experiment(extra=1), "unknown field 'extra'"),
        (experiment(measured=1), "measured"),
        (experiment(steps=[{"inject": [{"fault": "explode", "target": "worker"}]}]), "kill-rank"),
        (experiment(steps=[{"inject": [{"fault": "kill-node"}]}]), "needs a target"),
        (experiment(steps=[{"inject": [{"fault": "kernel-line", "target": "worker"}]}]), "the line to write"),
        (experiment(steps=[{"inject": [KILL], "expect": {}}]), "within"),
        (experiment(steps=[{"inject": [KILL], "expect": {"within": -1}}]), "seconds"),
        (experiment(steps=[{"inject": [KILL], "expect": {"within": 1, "world": "two"}}]), "whole number"),
        ([], "expected a mapping"),
    ],
)
def test_a_mistake_is_named_with_its_file_and_place(broken: Any, words: str) -> None:
    """The message says the file and what may stand there."""
    with pytest.raises(BadConfigError, match=words) as caught:
        parse(broken, "x.yaml")
    assert str(caught.value).startswith("x.yaml")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=20,
    )
)
def test_nothing_but_a_bad_config_error_comes_out_of_garbage(document: Any) -> None:
    """No traceback of another kind, whatever the file holds."""
    with pytest.raises(BadConfigError):
        parse(document, "x.yaml")


def test_an_experiment_can_be_given_less_time_and_never_more() -> None:
    """Steps that expect nothing have no limit."""
    steps = [{"inject": []}, {"inject": [], "expect": {"within": 20}}, {"inject": [], "expect": {"within": 90}}]
    whole = parse({"name": "n", "title": "t", "steps": steps}, "file")
    limits = [step.expect.within if step.expect else None for step in whole.limited(60.0).steps]
    assert limits == [None, 20.0, 60.0]
