"""Jumps of the wall clock."""

from __future__ import annotations

from functools import reduce

from hypothesis import given
from hypothesis import strategies as st

from rlguard.health.clock_jump import JUMP, KEPT, Clocks, faults, look

START = 1.7e9


def seen(*looks: tuple[float, float]) -> Clocks:
    return reduce(lambda before, moment: look(before, *moment), looks, None) or Clocks(0.0)


def test_clocks_that_go_alike_have_not_jumped() -> None:
    assert faults(seen((START, 0.0), (START + 5, 5.0), (START + 10.1, 10.0)), 10.0) == ()


def test_a_jump_either_way_is_told_for_an_hour() -> None:
    for by in (60.0, -60.0):
        clocks = seen((START, 0.0), (START + 5 + by, 5.0), (START + 10 + by, 10.0))
        (fault,) = faults(clocks, 10.0)
        assert fault.code == "clock-jump"
        assert f"{by:+.0f} s" in fault.detail
        assert faults(clocks, 5.0 + KEPT + 1) == ()


def test_a_clock_that_is_slewed_does_not_jump() -> None:
    slewed = [(START + 5 * step * 1.0005, 5.0 * step) for step in range(10_000)]
    assert faults(seen(*slewed), 50_000.0) == ()


@given(st.lists(st.tuples(st.floats(0, 4e9), st.floats(0, 1e9)), min_size=1, max_size=9))
def test_there_is_never_more_than_one_fault(looks: list[tuple[float, float]]) -> None:
    clocks = seen(*looks)
    assert len(faults(clocks, looks[-1][1])) <= 1
    assert clocks.times <= len(looks) - 1


@given(st.floats(-JUMP * 0.99, JUMP * 0.99))
def test_less_than_the_limit_is_no_jump(by: float) -> None:
    assert faults(seen((1000.0, 0.0), (1005.0 + by, 5.0)), 5.0) == ()
