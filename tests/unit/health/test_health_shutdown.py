"""A shutdown of the machine, as a fault."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rlguard.health.shutdown import LONGEST, announced
from rlguard.model import Repair, Severity


def test_a_shutdown_is_fatal_at_the_end_of_the_delay() -> None:
    fault = announced(1000.0, 5_000_000)
    assert (fault.code, fault.severity, fault.repair) == ("node-shutdown", Severity.FATAL, Repair.REBOOT)
    assert fault.deadline == 1005.0


@given(st.floats(0, 1e9), st.integers(-(1 << 70), 1 << 70))
def test_no_delay_is_believed_without_bound(at: float, delay: int) -> None:
    deadline = announced(at, delay).deadline
    assert deadline is not None
    assert at <= deadline <= at + LONGEST
