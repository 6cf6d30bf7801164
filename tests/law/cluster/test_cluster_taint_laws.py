"""What holds for taints whatever the agents say, in whatever order, and however late patches land and watches tell."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlguard.cluster.actions import AddTaint, RemoveTaint
from rlguard.cluster.context import Clock
from rlguard.cluster.decide import decide
from rlguard.cluster.facts import AgentHeard, Kind, LeaseTaken, Listed, Node, Seen, Taint
from rlguard.cluster.taints import EFFECT, KEY, SETTLE, TaintPolicy, hardware_fault, place_of_ours, value_of
from rlguard.cluster.view import View, fold
from rlguard.messages import AgentReport
from rlguard.model import Notice, Repair, Scope, Severity, Verdict

CALL = 10
"""Seconds within which a call to the API server and the word of a watch arrive."""
POOLS = {"a": "x", "b": "x", "c": "x", "d": "x", "e": "x", "f": "y", "g": "y"}
BUSY = st.sampled_from("abf")
"""Most of what happens happens here: what never meets finds no mistake."""
XID = Notice("i", "xid-79", Severity.FATAL, Scope.GPU, Repair.REBOOT, "")
SAID: dict[str, tuple[Verdict, tuple[Notice, ...]]] = {
    "broken": (Verdict.LOST, (XID,)),
    "healthy": (Verdict.HEALTHY, ()),
    "degraded": (Verdict.DEGRADED, ()),
    "unknown": (Verdict.UNKNOWN, ()),
    "leaving": (Verdict.LEAVING, (replace(XID, code="spot-reclaim", seconds_left=60.0),)),
    "process": (Verdict.LOST, (replace(XID, code="xid-13", scope=Scope.PROCESS),)),
    "cared for": (Verdict.LOST, (XID, replace(XID, code="remediator-karpenter", severity=Severity.INFO))),
}
EVENTS = st.lists(
    st.one_of(
        st.tuples(BUSY, st.sampled_from(["broken", "healthy"])),
        st.tuples(st.sampled_from(sorted(POOLS)), st.sampled_from(sorted(SAID))),
        st.tuples(st.just("decide"), st.sampled_from([0, 0, 9])),
        st.tuples(st.sampled_from(["land", "watch"]), st.integers(1, 9)),
        st.tuples(st.sampled_from(["foreign", "foreign", "restart"]), BUSY),
        st.tuples(st.just("tick"), st.integers(1, 40)),
    ),
    min_size=20,
    max_size=80,
)
POLICIES = st.builds(TaintPolicy, st.sampled_from([0.0, 0.2, 0.4, 1.0]), st.sampled_from([1, 0, 2]), st.just("pool"))


@dataclass
class Api:
    """An API server of nodes whose answers and watch events wait until they are let through, and the agents."""

    policy: TaintPolicy
    now: float = 1000.0
    says: dict[str, str] = field(default_factory=dict)
    view: View = field(default_factory=View)

    def __post_init__(self) -> None:
        self.versions = count(1)
        self.nodes = {name: self.version(Node(name, None, "", {"pool": pool})) for name, pool in POOLS.items()}
        self.calls: list[tuple[float, int, AddTaint | RemoveTaint]] = []
        self.watched: list[tuple[float, Node]] = []
        self.life = 0
        self.restart()
        self.tick(int(SETTLE))

    def version(self, node: Node) -> Node:
        """The node as it is stored next."""
        return replace(node, resource_version=str(next(self.versions)))

    def restart(self) -> None:
        """Another controller leads; calls of the old one are still on their way."""
        self.view, self.watched, self.life = View(), [], self.life + 1
        self.view = fold(self.view, LeaseTaken(self.now))
        for kind in Kind:
            things = tuple(self.nodes.values()) if kind is Kind.NODES else ()
            self.view = fold(self.view, Listed(self.now, kind, things))

    def tick(self, seconds: int) -> None:
        """Time passes: agents repeat themselves, and what has waited long enough arrives."""
        self.now += seconds
        for name in POOLS:
            verdict, notices = SAID[self.says.get(name, "healthy")]
            self.view = fold(self.view, AgentHeard(self.now, AgentReport(name, "b", verdict, notices)))
        self.land(sum(at + CALL < self.now for at, _, _ in self.calls))
        self.watch(sum(at + CALL < self.now for at, _ in self.watched))

    def decide(self) -> None:
        """One decision; what the shell makes of it."""
        adding = any(life == self.life and isinstance(action, AddTaint) for _, life, action in self.calls)
        for action in decide(self.view, Clock(self.now, 0.0), self.policy).actions:
            assert isinstance(action, AddTaint | RemoveTaint)
            self.check(action)
            if not (adding and isinstance(action, AddTaint)):
                self.calls.append((self.now, self.life, action))

    def check(self, action: AddTaint | RemoveTaint) -> None:
        """A taint comes for a broken node alone, while not too many are lost, and goes from one that is well."""
        says = self.says.get(action.node, "healthy")
        if isinstance(action, RemoveTaint):
            assert says in ("healthy", "degraded")
            return
        assert says == "broken"
        assert sum(SAID[said][0] is Verdict.LOST for said in self.says.values()) <= len(POOLS) / 2

    def land(self, calls: int) -> None:
        """The oldest calls reach the API server."""
        for _ in range(min(calls, len(self.calls))):
            _, life, action = self.calls.pop(0)
            if self.nodes[action.node].resource_version == action.resource_version:
                self.patch(action, told=life == self.life)

    def patch(self, action: AddTaint | RemoveTaint, *, told: bool) -> None:
        """The patch of a Node in the version that was judged; its answer is told if its controller still leads."""
        node, before = self.nodes[action.node], self.nodes[action.node].taints
        if isinstance(action, AddTaint):
            assert action.first is not bool(before)
            taints = (*before, Taint(KEY, action.value, EFFECT))
        else:
            assert before[action.place].key == KEY
            taints = (*before[: action.place], *before[action.place + 1 :])
        assert foreign(before) == foreign(taints)
        stored = self.store(replace(node, taints=taints))
        self.check_shares()
        if told:
            self.view = fold(self.view, Seen(self.now, stored))

    def store(self, node: Node) -> Node:
        """A Node changes."""
        stored = self.version(node)
        self.nodes[node.name] = stored
        self.watched.append((self.now, stored))
        return stored

    def watch(self, events: int) -> None:
        """The oldest watch events arrive."""
        for _ in range(min(events, len(self.watched))):
            self.view = fold(self.view, Seen(self.now, self.watched.pop(0)[1]))

    def check_shares(self) -> None:
        """The law."""
        sizes = Counter(POOLS.values())
        tainted = Counter(POOLS[name] for name, node in self.nodes.items() if place_of_ours(node) is not None)
        for pool, nodes in sizes.items():
            assert tainted[pool] <= max(self.policy.floor, self.policy.max_share * nodes), pool

    def play(self, what: str, how: Any) -> None:
        """One thing happens."""
        match what:
            case "tick":
                self.tick(how)
            case "decide":
                self.decide()
                self.land(how)
            case "foreign":
                before = self.nodes[how].taints
                other = Taint("other", str(self.now), "NoExecute" if len(before) % 2 else "NoSchedule")
                self.store(replace(self.nodes[how], taints=(other, *before)))
            case "land" | "watch":
                getattr(self, what)(how)
            case "restart":
                self.restart()
            case _:
                self.says[what] = how
                self.tick(0)


def foreign(taints: tuple[Taint, ...]) -> list[Taint]:
    """What is not ours."""
    return [taint for taint in taints if taint.key != KEY]


ON_ITS_WAY = [("b", "broken"), ("decide", 0), ("a", "broken"), ("decide", 0), ("land", 9)]
ON_ITS_WAY_FROM_BEFORE = [("b", "broken"), ("decide", 0), ("restart", "a"), ("a", "broken"), ("decide", 0), ("land", 9)]
OLD_WORD = [
    *[event for how in ("broken", "healthy", "broken") for event in (("b", how), ("decide", 9))],
    *[("watch", 2), ("a", "broken"), ("decide", 9)],
]
"""Put on, taken off and put on again; then the watch tells of the time in between."""


@settings(max_examples=300)
@example(ON_ITS_WAY, TaintPolicy(pool_label="pool"))
@example(ON_ITS_WAY_FROM_BEFORE, TaintPolicy(pool_label="pool"))
@example(OLD_WORD, TaintPolicy(pool_label="pool"))
@given(EVENTS, POLICIES)
def test_no_more_than_the_share_is_ever_tainted_and_all_is_taken_off_when_the_nodes_are_well(
    events: list[tuple[str, Any]], policy: TaintPolicy
) -> None:
    api = Api(policy)
    for what, how in events:
        api.play(what, how)
    api.says.clear()
    for _ in range(4):
        api.tick(CALL + 1)
        api.decide()
    assert not api.calls
    assert all(place_of_ours(node) is None for node in api.nodes.values())
    assert sum(len(node.taints) for node in api.nodes.values()) == sum(what == "foreign" for what, _ in events)


@given(st.dictionaries(st.sampled_from(sorted(POOLS)), st.sampled_from(sorted(set(SAID) - {"broken"}))))
def test_without_broken_hardware_nothing_is_ever_tainted(says: dict[str, str]) -> None:
    api = Api(TaintPolicy(1.0, 100))
    api.says = says
    for _ in range(5):
        api.tick(11)
        api.decide()
    assert not api.calls


@given(st.text(max_size=200))
def test_any_code_becomes_a_value_of_a_taint(code: str) -> None:
    value = value_of(code)
    assert 0 < len(value) <= 63
    assert value.isascii()
    assert value[0].isalnum()
    assert value[-1].isalnum()


NOTICES = st.builds(
    Notice,
    st.text(max_size=3),
    st.sampled_from(["xid-79", "spot-reclaim", "node-x", "storage-hung", "maintenance-x"]),
    st.sampled_from(Severity),
    st.sampled_from(Scope),
    st.sampled_from(Repair),
    st.just(""),
    st.none() | st.floats(0, 100),
)


@given(st.sampled_from(Verdict), st.lists(NOTICES, max_size=5))
def test_only_an_undated_fatal_fault_of_the_hardware_taints(verdict: Verdict, notices: list[Notice]) -> None:
    code = hardware_fault(AgentReport("a", "b", verdict, tuple(notices)))
    if code is not None:
        assert verdict is Verdict.LOST
        (first, *_) = (n for n in notices if n.code == code and n.severity is Severity.FATAL)
        assert first.code == "xid-79"
        assert any(n.scope is not Scope.PROCESS and n.severity is Severity.FATAL for n in notices)
        assert all(n.seconds_left is None for n in notices if n.severity is Severity.FATAL)
