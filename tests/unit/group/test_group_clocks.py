"""A6: no rule compares two machines' clocks, so a coordinator decides the same whatever its wall clock shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from group_rig import Rig, fatal
from hypothesis import given, settings
from hypothesis import strategies as st

from rlguard.group import coordinator_facts
from rlguard.group.coordinator_facts import WallClock
from rlguard.messages import GroupReport
from rlguard.model import Incident

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.integers(1, 30)),
        st.tuples(st.just("train"), st.integers(1, 25)),
        st.tuples(st.sampled_from(["crash", "silent", "notice"]), st.integers(0, 1)),
        st.tuples(st.just("restart"), st.just(0)),
    ),
    max_size=10,
)
WALLS = st.lists(st.integers(0, 4_000_000_000), min_size=1, max_size=10)


def play(rig: Rig, kind: str, what: int) -> None:
    """One thing happens."""
    match kind:
        case "pass":
            rig.pass_time(what)
        case "train":
            rig.train(what)
        case "crash":
            rig.crash(what)
        case "silent":
            rig.silent ^= {rig.members[what].uid}
        case "notice":
            rig.change(what, notices=(fatal(seconds_left=30.0),))
        case _:
            rig.restarted()


def untimed(incident: Incident) -> Incident:
    """The incident without the times that it shows to people."""
    first = None if incident.first_step_at is None else 0.0
    return replace(incident, detected_at=0.0, decided_at=0.0, first_step_at=first)


def done(rig: Rig) -> list[Any]:
    """All that was done, and what is wanted and told now."""
    did = [
        replace(item, incident=untimed(item.incident)) if isinstance(item, coordinator_facts.WriteIncident) else item
        for item in rig.did
    ]
    return [*did, rig.orders(), shown(rig.report())]


def shown(report: GroupReport) -> GroupReport:
    """The report without the times that it shows to people."""
    return replace(report, incidents=tuple(map(untimed, report.incidents)))


@settings(max_examples=60)
@given(EVENTS, WALLS)
def test_a6_whatever_the_wall_clock_shows_the_coordinator_does_the_same(
    events: list[tuple[str, int]], walls: list[int]
) -> None:
    steady, wild = Rig().started(), Rig().started()
    for number, (kind, what) in enumerate([*events, ("pass", 90)]):
        wild.tell(WallClock(wild.now, float(walls[number % len(walls)])))
        play(steady, kind, what)
        play(wild, kind, what)
        assert done(wild) == done(steady)
