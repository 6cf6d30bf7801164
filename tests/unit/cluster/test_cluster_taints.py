"""Which nodes are tainted and which are not, and what the Guards of the jobs say about it."""

from __future__ import annotations

from typing import Any

import pytest
from cluster_kit import Cluster

from rlguard.cluster.actions import AddTaint, RemoveTaint
from rlguard.cluster.context import Clock
from rlguard.cluster.decide import NODES, decide
from rlguard.cluster.facts import AgentHeard, Kind, LeaseTaken, Listed, Node, Seen, Taint
from rlguard.cluster.taints import EFFECT, KEY, POOL_LABELS, REMEDIATOR, SETTLE, TaintPolicy, remediators, value_of
from rlguard.cluster.view import View, fold
from rlguard.health import assess
from rlguard.health.remediators import PREFIX, acting_on
from rlguard.messages import AgentReport
from rlguard.model import Notice, Repair, Scope, Severity, Verdict

OURS = Taint(KEY, "xid-79", EFFECT)
THEIRS = Taint("nvidia.com/gpu", "present", "NoSchedule")


def notice(code: str = "xid-79", **differs: Any) -> Notice:
    """A fatal fault of a GPU that a boot mends, unless said otherwise."""
    usual: dict[str, Any] = {"severity": Severity.FATAL, "scope": Scope.GPU, "repair": Repair.REBOOT, "detail": ""}
    return Notice(f"id-{code}", code, **{**usual, **differs})


BY_OTHERS = notice("remediator-karpenter", severity=Severity.INFO, scope=Scope.NODE, repair=Repair.NONE)


class Pool:
    """Nodes whose agents all speak, and a controller that leads for long enough; decisions at any moment."""

    def __init__(self, names: str = "abcdefghij", policy: TaintPolicy | None = None) -> None:
        self.now, self.policy, self.view = 1000.0, policy or TaintPolicy(), View()
        self.tell(LeaseTaken(self.now))
        for kind in Kind:
            nodes = tuple(Node(name, ready=True, boot_id="b", resource_version="1") for name in names)
            self.tell(Listed(self.now, kind, nodes if kind is Kind.NODES else ()))
        self.now += SETTLE
        for name in names:
            self.says(name, Verdict.HEALTHY)

    def tell(self, fact: Any) -> None:
        """One fact."""
        self.view = fold(self.view, fact)

    def node(self, name: str, *taints: Taint, version: str = "2", **labels: str) -> None:
        """The Node object changes."""
        named = {key.replace("_", "/"): value for key, value in labels.items()}
        node = Node(name, ready=True, boot_id="b", labels=named, taints=taints, resource_version=version)
        self.tell(Seen(self.now, node))

    def says(self, name: str, verdict: Verdict, *notices: Notice) -> None:
        """The agent of a node speaks."""
        self.tell(AgentHeard(self.now, AgentReport(name, "b", verdict, notices)))

    def breaks(self, *names: str) -> None:
        """An agent finds a fault of the hardware."""
        for name in names:
            self.says(name, Verdict.LOST, notice())

    def decision(self) -> list[Any]:
        """What is done about taints."""
        return list(decide(self.view, Clock(self.now, 0.0), self.policy).actions)

    def tainted(self) -> list[str]:
        """Nodes that get the taint now."""
        return [action.node for action in self.decision() if isinstance(action, AddTaint)]

    def why(self) -> str:
        """The reason of the decision."""
        return str(decide(self.view, Clock(self.now, 0.0), self.policy).why[NODES])


def test_a_node_with_broken_hardware_is_tainted_with_the_code_of_its_fault() -> None:
    pool = Pool()
    pool.breaks("c")
    assert pool.decision() == [AddTaint("c", "1", "xid-79", first=True, reason="xid-79")]


def test_a_taint_of_somebody_else_stays_and_ours_comes_after_it() -> None:
    pool = Pool()
    pool.node("c", THEIRS)
    pool.breaks("c")
    assert pool.decision() == [AddTaint("c", "2", "xid-79", first=False, reason="xid-79")]


def test_nothing_is_done_about_nodes_unless_it_was_asked_for() -> None:
    pool = Pool()
    pool.breaks("c")
    found = decide(pool.view, Clock(pool.now, 0.0))
    assert (found.actions, found.why) == ((), {})


@pytest.mark.parametrize("verdict", [Verdict.UNKNOWN, Verdict.LEAVING, Verdict.DEGRADED, Verdict.HEALTHY])
def test_no_other_verdict_taints_a_node(verdict: Verdict) -> None:
    pool = Pool()
    pool.says("c", verdict, notice())
    assert pool.decision() == []


@pytest.mark.parametrize(
    "what",
    [
        notice("xid-13", scope=Scope.PROCESS, repair=Repair.RESTART_PROCESS),
        notice("xid-31", scope=Scope.PROCESS, repair=Repair.REBOOT),
        notice("mine", repair=Repair.FIX_PROGRAM),
        notice("mine", repair=Repair.NONE),
        notice("xid-63", severity=Severity.WARNING),
        notice("spot-reclaim", scope=Scope.NODE, repair=Repair.REPLACE),
        notice("node-out-of-service", scope=Scope.NODE, repair=Repair.REPLACE),
        notice("storage-hung", scope=Scope.NODE, repair=Repair.REBOOT),
    ],
    ids=lambda what: f"{what.code}-{what.scope}-{what.repair}",
)
def test_what_is_no_fault_of_the_hardware_does_not_taint_a_node(what: Notice) -> None:
    pool = Pool()
    pool.says("c", Verdict.LOST, what)
    assert pool.decision() == []
    pool.says("c", Verdict.LOST, what, notice())
    assert pool.tainted() == ["c"]


def test_a_node_that_leaves_by_a_date_is_not_tainted_whatever_else_it_has() -> None:
    pool = Pool()
    going = notice("spot-reclaim", scope=Scope.NODE, repair=Repair.REPLACE, seconds_left=100.0)
    pool.says("c", Verdict.LOST, notice(), going)
    assert pool.decision() == []


def test_an_agent_that_has_fallen_silent_neither_taints_nor_clears() -> None:
    pool = Pool()
    pool.breaks("c")
    pool.node("d", OURS)
    pool.now += 6
    assert pool.decision() == []


def test_a_node_is_tainted_once() -> None:
    pool = Pool()
    pool.node("c", OURS)
    pool.says("c", Verdict.LOST, notice("xid-48"))
    assert pool.decision() == []


@pytest.mark.parametrize("verdict", [Verdict.HEALTHY, Verdict.DEGRADED])
def test_the_taint_is_taken_off_where_it_stands_when_the_node_can_work_again(verdict: Verdict) -> None:
    pool = Pool()
    pool.node("c", THEIRS, OURS, version="7")
    pool.says("c", verdict)
    assert pool.decision() == [RemoveTaint("c", "7", 1, f"its agent says {verdict.value}")]


@pytest.mark.parametrize("verdict", [Verdict.UNKNOWN, Verdict.LEAVING, Verdict.LOST])
def test_the_taint_stays_while_the_node_is_not_said_to_work(verdict: Verdict) -> None:
    pool = Pool()
    pool.node("c", OURS)
    pool.says("c", verdict, notice())
    assert pool.decision() == []


def test_another_effect_under_our_key_is_not_ours() -> None:
    pool = Pool()
    pool.node("c", Taint(KEY, "", "NoExecute"))
    assert pool.decision() == []


@pytest.mark.parametrize(
    ("names", "share", "floor", "most"),
    [("abcdefghij", 0.2, 1, 2), ("abc", 0.2, 1, 1), ("abc", 0.2, 0, 0), ("abcdefghij", 0.29, 1, 2), ("ab", 0.0, 1, 1)],
)
def test_no_more_nodes_are_tainted_than_the_share_or_the_floor(names: str, share: float, floor: int, most: int) -> None:
    pool = Pool(names, TaintPolicy(share, floor))
    pool.breaks(*names[:3]) if len(names) > 5 else pool.breaks(*names)
    assert pool.tainted() == list(names[:most])


def test_a_share_is_counted_as_a_person_would() -> None:
    assert TaintPolicy(0.29, 0).most(100) == 29


def test_taints_that_are_there_count() -> None:
    pool = Pool()
    pool.node("a", OURS)
    pool.says("a", Verdict.UNKNOWN)
    pool.breaks("b", "c", "d")
    assert pool.tainted() == ["b"]
    assert pool.why() == "taint on b; no taint on c, d: their pools have their share"


def test_each_pool_has_its_own_share() -> None:
    pool = Pool(policy=TaintPolicy(pool_label="pool"))
    for name in "abcde":
        pool.node(name, pool="left")
    pool.breaks("a", "b", "f", "g")
    assert pool.tainted() == ["a", "f"]


@pytest.mark.parametrize("label", POOL_LABELS)
def test_the_pools_of_the_clouds_are_known(label: str) -> None:
    nodes = [Node(name, None, "", labels={label: value}) for name, value in (("a", "x"), ("b", "x"), ("c", "y"))]
    pools = [TaintPolicy().pool(node) for node in nodes]
    assert pools[0] == pools[1] != pools[2]
    assert TaintPolicy().pool(Node("d", None, "")) not in pools


def test_with_a_label_of_ones_own_those_of_the_clouds_do_not_count() -> None:
    node = Node("a", None, "", labels={POOL_LABELS[0]: "x"})
    assert TaintPolicy(pool_label="mine").pool(node) == TaintPolicy(pool_label="mine").pool(Node("b", None, ""))


def test_with_the_breaker_open_taints_are_taken_off_and_none_is_put_on() -> None:
    pool = Pool()
    pool.node("j", OURS)
    pool.breaks("a", "b", "c", "d", "e", "f")
    assert [type(action) for action in pool.decision()] == [RemoveTaint]
    assert pool.why().startswith("no taint on a, b, c, d, e and 1 more: 6 of 10 nodes are silent or lost at once")


def test_a_new_controller_waits_until_the_agents_can_have_spoken() -> None:
    pool = Pool()
    pool.breaks("a")
    pool.tell(LeaseTaken(pool.now))
    assert pool.tainted() == []
    pool.now += SETTLE
    for name in pool.view.nodes:
        pool.says(name, Verdict.HEALTHY)
    pool.breaks("a")
    assert pool.tainted() == ["a"]


def test_a_node_that_another_remediator_acts_on_is_left_to_it() -> None:
    pool = Pool()
    pool.says("c", Verdict.LOST, notice(), BY_OTHERS)
    assert pool.decision() == []


def test_a_node_without_an_object_is_not_tainted() -> None:
    pool = Pool()
    pool.breaks("unknown-to-the-api")
    assert pool.decision() == []


def test_a_watch_event_from_before_our_own_patch_changes_nothing() -> None:
    pool = Pool()
    pool.node("c", OURS, version="12")
    pool.node("c", version="9")
    assert pool.view.nodes["c"].taints == (OURS,)
    pool.node("c", version="13")
    assert pool.view.nodes["c"].taints == ()


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("xid-79", "xid-79"),
        ("a code/of Mine!", "a-code-of-Mine"),
        ("", "fault"),
        ("._-", "fault"),
        ("x" * 99, "x" * 63),
    ],
)
def test_any_code_becomes_a_value_that_kubernetes_takes(code: str, value: str) -> None:
    assert value_of(code) == value


def test_an_agents_report_names_the_others_that_act_on_its_node_and_stays_healthy() -> None:
    marked = acting_on({"spec": {"taints": [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]}})
    seen = assess.fold(
        assess.View("a", "b", frozenset({assess.Source.NODE})), assess.Observed(assess.Source.NODE, 1.0, marked)
    )
    report = assess.decide(seen, 1.0).actions[0].report
    assert REMEDIATOR == PREFIX
    assert (report.verdict, remediators(report)) == (Verdict.HEALTHY, ("karpenter",))


def broken_worker(*others: Notice) -> Cluster:
    """A job whose worker's node has a fault, decided on with taints on."""
    cluster = Cluster(size=2)
    cluster.taints = TaintPolicy()
    cluster.running()
    cluster.nodes["b"].notices = (notice(), *others)
    cluster.nodes["b"].verdict = Verdict.LOST
    cluster.run(60)
    return cluster


def test_a_guard_says_once_that_a_node_it_avoids_is_left_to_another_remediator() -> None:
    cluster = broken_worker(BY_OTHERS)
    assert cluster.actions(AddTaint) == []
    assert [entry.node for entry in cluster.status.avoid] == ["b"]
    assert cluster.condition("SteppedBack") == ("True", "AnotherRemediator")
    assert cluster.events.count("SteppedBack") == 1
    told = next(condition.message for condition in cluster.status.conditions if condition.type == "SteppedBack")
    assert told.startswith("another remediator acts on b (karpenter)")


def test_another_controller_does_not_say_it_again() -> None:
    cluster = broken_worker(BY_OTHERS)
    cluster.nodes["b"].cut = True
    cluster.start_controller()
    cluster.run(10)
    cluster.nodes["b"].cut = False
    cluster.run(10)
    assert cluster.condition("SteppedBack") == ("True", "AnotherRemediator")
    assert cluster.events.count("SteppedBack") == 1


def test_when_the_other_remediator_is_done_the_guard_takes_it_back() -> None:
    cluster = broken_worker(BY_OTHERS)
    cluster.nodes["b"].notices = (notice(),)
    cluster.run(5)
    assert cluster.condition("SteppedBack") == ("False", "AsExpected")
    assert {action.node for action in cluster.actions(AddTaint)} == {"b"}


def test_without_another_remediator_the_guard_says_so_and_the_node_is_tainted() -> None:
    cluster = broken_worker()
    assert {action.node for action in cluster.actions(AddTaint)} == {"b"}
    assert cluster.condition("SteppedBack") == ("False", "AsExpected")
    assert "SteppedBack" not in cluster.events


def test_without_taints_a_guard_does_not_speak_of_stepping_back() -> None:
    assert Cluster().running().condition("SteppedBack") == ("", "")
