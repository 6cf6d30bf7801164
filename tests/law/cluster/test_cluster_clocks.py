"""A6: no rule compares two machines' clocks, so the controller decides the same whatever the wall clocks show."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cluster_kit import Cluster
from hypothesis import given, settings
from hypothesis import strategies as st

from rlguard.cluster.actions import WriteStatus
from rlguard.cluster.context import Clock
from rlguard.cluster.decide import decide
from rlguard.cluster.status import GuardStatus
from rlguard.model import Incident

NODES = ("a", "b", "c")
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("run"), st.integers(1, 60)),
        st.tuples(st.sampled_from(["kill", "boot", "cut", "heal", "notice"]), st.sampled_from(NODES)),
        st.tuples(st.just("restart"), st.just("")),
    ),
    max_size=12,
)
WALLS = st.lists(st.integers(0, 4_000_000_000), min_size=1, max_size=40)


class Stopped(Cluster):
    """A cluster whose controller reads the wall times `walls`, one after the other, again and again."""

    def __init__(self, walls: list[int]) -> None:
        self.walls = walls
        self.read = 0
        super().__init__(size=2, node_names=NODES)

    def decide(self) -> None:
        """One decision by a clock that may stand, jump and run backwards."""
        self.read += 1
        clock = Clock(self.now, float(self.walls[self.read % len(self.walls)]))
        for action in decide(self.view, clock).actions:
            self.perform(action)


def play(cluster: Stopped, event: tuple[str, Any]) -> None:
    """One thing happens."""
    kind, what = event
    match kind:
        case "run":
            cluster.run(what)
        case "kill":
            cluster.kill_node(what)
        case "boot":
            cluster.boot_node(what)
        case "notice":
            cluster.notice(what)
        case "restart":
            cluster.start_controller()
        case _:
            cluster.nodes[what].cut = kind == "cut"


def untimed(action: Any) -> Any:
    """The action without the times that it shows to people."""
    return replace(action, status=_untimed_status(action.status)) if isinstance(action, WriteStatus) else action


def _untimed_status(status: GuardStatus) -> GuardStatus:
    conditions = tuple(replace(item, since=0.0) for item in status.conditions)
    groups = tuple(replace(item, incidents=tuple(map(_untimed_incident, item.incidents))) for item in status.groups)
    return replace(status, conditions=conditions, groups=groups)


def _untimed_incident(incident: Incident) -> Incident:
    first = None if incident.first_step_at is None else 0.0
    return replace(incident, detected_at=0.0, decided_at=0.0, first_step_at=first)


@settings(max_examples=40)
@given(EVENTS, WALLS)
def test_a6_whatever_the_wall_clock_shows_the_controller_does_the_same(
    events: list[tuple[str, Any]], walls: list[int]
) -> None:
    steady, wild = Stopped([1_800_000_000]), Stopped(walls)
    for event in (("run", 10), *events, ("run", 90)):
        play(steady, event)
        play(wild, event)
    assert list(map(untimed, wild.log)) == list(map(untimed, steady.log))
    assert wild.log
