"""What was seen is judged: recovered, not yet, or not, each with its reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlguard.model import CheckpointId, Rung
from rlguard_chaos.experiment import Expectation
from rlguard_chaos.judge import GroupSeen, Injected, Seen, judge, read_group

BEFORE = GroupSeen(
    phase="Running",
    generation=1,
    attempt=1,
    world=("a", "b"),
    nodes=("node0", "node1"),
    pods=("ppo-0", "ppo-0-1"),
    step=50,
    newest=CheckpointId.parse("48@1.1"),
    incidents=(),
    avoided=(),
)
IN_PLACE = Seen("i1", "rank-exited", "signal 9", "in-place", "ranks ended", 101.0, 101.5, "48@1.1", 3, 108.0)
INJECTED = Injected(at=100.0, before=BEFORE, deadline=None)
EXPECT = Expectation(within=30.0, decision=Rung.IN_PLACE, world=2, lost_steps=5)


def after(incident: Seen | None, **changes: object) -> GroupSeen:
    return replace(BEFORE, incidents=(incident,) if incident else (), **changes)  # type: ignore[arg-type] - fields


def test_a_recovery_within_its_limits_is_recovered_with_its_figures() -> None:
    """Detected after 1 s, first new step after 8 s."""
    judgement = judge(EXPECT, INJECTED, after(IN_PLACE), now=109.0)
    assert judgement.recovered
    assert (judgement.detected_after, judgement.first_step_after) == (1.0, 8.0)


def test_nothing_seen_yet_is_pending_until_the_time_is_over() -> None:
    """Pending at first, then a failure that says what is missing."""
    assert judge(EXPECT, INJECTED, after(None), now=110.0).pending
    late = judge(EXPECT, INJECTED, after(None), now=131.0)
    assert not late.pending
    assert not late.recovered
    assert "no in-place was decided" in late.reason


def test_an_incident_that_stood_there_before_does_not_count() -> None:
    """Only what came after the fault is its recovery."""
    old = Injected(at=100.0, before=after(IN_PLACE), deadline=None)
    assert judge(EXPECT, old, after(IN_PLACE), now=110.0).pending


@pytest.mark.parametrize(
    ("incident", "expect", "words"),
    [
        (replace(IN_PLACE, lost_steps=6), EXPECT, "lost 6 steps"),
        (replace(IN_PLACE, lost_steps=None), EXPECT, "lost None"),
        (replace(IN_PLACE, first_step_at=131.0), EXPECT, "31.0 s"),
        (IN_PLACE, replace(EXPECT, before_deadline=True), "deadline"),
        (replace(IN_PLACE, resumed="40@1.1"), replace(EXPECT, keeps_committed=True), "48@1.1 was committed"),
        (replace(IN_PLACE, resumed=None), replace(EXPECT, keeps_committed=True), "was committed"),
    ],
)
def test_a_limit_that_is_broken_is_a_failure_that_names_it(incident: Seen, expect: Expectation, words: str) -> None:
    """Each limit by itself."""
    judgement = judge(expect, INJECTED, after(incident), now=109.0)
    assert not judgement.recovered
    assert not judgement.pending
    assert words in judgement.reason


def test_a_world_of_the_wrong_size_is_waited_for() -> None:
    """The decision alone is not enough."""
    assert judge(EXPECT, INJECTED, after(IN_PLACE, world=("a",)), now=109.0).pending


def test_a_phase_can_be_what_is_expected() -> None:
    """The last act looks for Completed."""
    expect = Expectation(within=30.0, phase="Completed")
    assert judge(expect, INJECTED, after(None), now=110.0).pending
    judgement = judge(expect, INJECTED, after(None, phase="Completed"), now=110.0)
    assert judgement.recovered
    assert (judgement.reached_after, judgement.first_step_after) == (10.0, None)


def test_a_guard_is_read_as_the_controller_writes_it() -> None:
    """Times become Unix seconds, names become checkpoints."""
    incident = {"id": "i", "decision": "in-place", "detectedAt": "1970-01-01T00:01:41.500000+00:00"}
    member = {"index": 0, "uid": "a", "pod": "ppo-0", "node": "node0", "address": "10.0.0.1"}
    entry = {"group": 0, "phase": "Running", "world": [member], "newest": "4@1.1", "incidents": [incident]}
    group = read_group({"status": {"groups": [entry], "avoid": [{"node": "node2"}]}}, 0)
    assert group is not None
    assert (group.nodes, group.newest, group.avoided) == (("node0",), CheckpointId.parse("4@1.1"), ("node2",))
    assert group.incidents[0].detected_at == 101.5


def test_a_guard_without_status_shows_no_group() -> None:
    """Unknown is nothing, not healthy."""
    assert read_group({}, 0) is None
    assert judge(EXPECT, INJECTED, None, now=101.0).pending
