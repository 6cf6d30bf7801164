"""What holds for the controller whatever happens, in whatever order, and whenever it is killed."""

from __future__ import annotations

from typing import Any

from cluster_kit import Cluster
from hypothesis import given, settings
from hypothesis import strategies as st

from rlguard.cluster.actions import DeletePod, TellGrant, WriteStatus
from rlguard.cluster.status import parse_status, status_to_json
from rlguard.model import Repair

NODES = ("a", "b", "c", "d")
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("run"), st.integers(1, 40)),
        st.tuples(st.sampled_from(["kill", "boot", "cut", "heal", "fault", "reset"]), st.sampled_from(NODES)),
        st.tuples(st.just("delete"), st.integers(0, 2)),
        st.tuples(st.sampled_from(["restart", "refuse", "accept"]), st.just(0)),
    ),
    max_size=25,
)


class Watched(Cluster):
    """A cluster that checks every action against the laws as it is done."""

    def __post_init__(self) -> None:
        self.generation = 0
        self.written: dict[tuple[int, int], tuple[str, ...]] = {(0, 0): ()}
        super().__post_init__()

    def perform(self, action: Any) -> None:
        """Check, then do."""
        match action:
            case WriteStatus():
                assert action.status.group(0).generation >= self.generation, "a generation shrank"
            case TellGrant():
                self.check_grant(action)
            case DeletePod():
                self.check_delete(action)
        super().perform(action)
        stored = self.group
        self.generation = max(self.generation, stored.generation)
        uids = tuple(member.uid for member in stored.world)
        number = (stored.generation, stored.world_number)
        assert self.written.setdefault(number, uids) == uids, "one number, two worlds"
        assert not set(uids) & set(stored.refused), "a refused pod in a world"
        assert not uids or stored.world[0].index == 0, "a world without the leader"

    def check_grant(self, action: TellGrant) -> None:
        """A grant is what is or was stored."""
        grant = action.grant
        uids = tuple(member.uid for member in grant.world.members) if grant.world else ()
        assert self.written.get((grant.generation, grant.world_number)) == uids, "told, not written"

    def check_delete(self, action: DeletePod) -> None:
        """A running member is only deleted after that was written; by force only if its node is dead."""
        toy = self.pods.get(action.uid)
        if toy is None:
            return
        if action.force:
            assert not self.nodes[toy.pod.node].alive or toy.pod.uid in self.forgiven, "a living pod deleted by force"
        pending = self.group.pending
        if toy.pod.uid in self.group.world_uids:
            assert pending is not None, "deleted, not written"
            assert action.uid in (*pending.uids, *pending.force), "deleted, not written"

    forgiven: frozenset[str] = frozenset()
    """Pods on a node that came back after it had been proven lost."""


def play(cluster: Watched, event: tuple[str, Any]) -> None:  # noqa: C901 - one case for each event
    """One thing happens."""
    kind, what = event
    match kind:
        case "run":
            cluster.run(what)
        case "kill":
            cluster.kill_node(what)
        case "boot":
            boot(cluster, what)
        case "cut" | "heal":
            cluster.nodes[what].cut = kind == "cut"
        case "fault":
            cluster.notice(what, "spot-reclaim", Repair.REPLACE)
        case "reset":
            cluster.nodes[what].notices = ()
        case "delete":
            for uid in [uid for uid, toy in cluster.pods.items() if toy.pod.index == what and what]:
                cluster.remove(uid)
        case "restart":
            cluster.start_controller()
        case _:
            cluster.refuse_writes = kind == "refuse"


def boot(cluster: Watched, name: str) -> None:
    """A node that was proven lost may come back while the deletion by force is on its way."""
    pending = cluster.group.pending
    cluster.forgiven |= frozenset(pending.force if pending else ())
    cluster.boot_node(name)


@settings(max_examples=60)
@given(EVENTS, st.booleans(), st.booleans())
def test_the_laws_hold_for_any_history_and_any_moment_of_death(
    events: list[tuple[str, Any]], isolated: bool, elastic: bool
) -> None:
    spec = {"elastic": {"minMembers": 1}} if elastic else {}
    cluster = Watched(size=3, isolated=isolated, spec=spec, node_names=NODES)
    for event in events:
        play(cluster, event)
    cluster.run(5)
    stored = status_to_json(cluster.status)
    assert status_to_json(parse_status(stored)) == stored


@settings(max_examples=40)
@given(EVENTS)
def test_once_the_nodes_are_well_again_the_job_trains_again(events: list[tuple[str, Any]]) -> None:
    cluster = Watched(size=3, spec={"restart": {"recreations": 1000}}, node_names=NODES)
    for event in events:
        play(cluster, event)
    cluster.refuse_writes = False
    for name in NODES:
        boot(cluster, name)
    cluster.run(200)
    assert cluster.group.phase.value == "Running", cluster.group
    assert len(cluster.world) == 3
