"""Every parser of hostile text, on its seeds and on what hypothesis makes of nothing; `make fuzz` goes further."""

from __future__ import annotations

import pytest
from fuzz_kit import TARGETS
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
