"""Every parser of hostile text, on its seeds and on what hypothesis makes of nothing; `make fuzz` goes further."""

from __future__ import annotations

import json
from random import Random

import pytest
from fuzz_kit import TARGETS, flawed
from hypothesis import given
from hypothesis import strategies as st

NAMES = sorted(TARGETS)


@pytest.mark.parametrize("name", NAMES)
def test_the_seeds_break_nothing(name: str) -> None:
    seeds = list(TARGETS[name].seeds())
    assert seeds
    for seed in seeds:
        TARGETS[name].run(seed)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_whatever_comes_breaks_nothing(name: str, data: bytes) -> None:
    TARGETS[name].run(data)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_a_good_input_with_a_flaw_breaks_nothing(name: str, data: st.DataObject) -> None:
    seed = data.draw(st.sampled_from(list(TARGETS[name].seeds())[:50]))
    start = data.draw(st.integers(0, len(seed)))
    end = data.draw(st.integers(start, min(len(seed), start + 40)))
    TARGETS[name].run(seed[:start] + data.draw(st.binary(max_size=20)) + seed[end:])


@pytest.mark.parametrize("name", [name for name in NAMES if TARGETS[name].is_json])
@given(pick=st.randoms(use_true_random=False), flaws=st.integers(1, 4))
def test_a_value_where_another_is_expected_breaks_nothing(name: str, pick: Random, flaws: int) -> None:
    value = json.loads(pick.choice(list(TARGETS[name].seeds())))
    for _ in range(flaws):
        value = flawed(value, pick)
    TARGETS[name].run(json.dumps(value).encode())
