"""Laws of the group's cores over arbitrary histories."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rlguard.group import coordinator, coordinator_facts, member, member_facts
from rlguard.group.faults import exhausted
from rlguard.group.memory import choose_slot
from rlguard.group.view import Failure
from rlguard.messages import Grant, MemberReport, Order, Ranks, StageOrder, Timing, Want
from rlguard.model import CheckpointId, GroupKey, Incarnation, Member, World

MEMBERS = tuple(Member(index, f"uid-{index}", f"pod-{index}", "node", f"10.0.0.{index}") for index in range(2))
WORLD = World(MEMBERS)
TIMING = Timing(10.0, 30.0, 60.0, 3, 5, 600.0, 3)
incarnations = st.builds(Incarnation, st.integers(1, 2), st.integers(0, 3))
checkpoints = st.builds(CheckpointId, incarnations, st.integers(0, 5))
slots = st.tuples(st.none() | checkpoints, st.none() | checkpoints).map(
    lambda pair: tuple(member_facts.SlotSeen(index, item) for index, item in enumerate(pair))
)


@given(slots, st.none() | checkpoints, st.sets(st.sampled_from([0, 1])), st.none() | st.sampled_from([0, 1]))
def test_m1_the_chosen_slot_holds_neither_what_is_confirmed_nor_what_is_read(
    seen: tuple[member_facts.SlotSeen, ...], confirmed: CheckpointId | None, read: set[int], loading: int | None
) -> None:
    chosen = choose_slot(seen, confirmed, read, loading)
    if chosen is None:
        assert {0, 1} <= read | {loading} | {slot.slot for slot in seen if slot.checkpoint == confirmed}
        return
    assert chosen not in read
    assert chosen != loading
    holder = next((slot.slot for slot in seen if slot.checkpoint == confirmed and confirmed is not None), None)
    assert chosen != holder


orders = st.builds(
    lambda incarnation, want, stage: Order(
        incarnation, want, WORLD, 1, None, None, StageOrder(stage, 9, None) if stage else None, None, 1.0
    ),
    incarnations,
    st.sampled_from([Want.RUN, Want.STOP, Want.IDLE]),
    st.integers(0, 3),
)
launchers = st.builds(
    lambda incarnation, ranks: member_facts.LauncherState(
        incarnation, ranks, None, None, "", None, terminating=False, stuck=(), idle=False
    ),
    incarnations,
    st.sampled_from([Ranks.RUNNING, Ranks.STOPPING, Ranks.GONE, Ranks.EXITED, Ranks.STUCK]),
)


@given(st.lists(orders | launchers, min_size=1, max_size=30))
def test_a_member_starts_only_ever_newer_incarnations_and_never_one_it_was_told_to_stop(
    history: list[Order | member_facts.LauncherState],
) -> None:
    view = member.begin(MEMBERS[1], 0.0)
    view = member.fold(view, member_facts.CoordinatorLink(0.0, True))  # noqa: FBT003 - open
    stopped: set[Incarnation] = set()
    highest = Incarnation(0, 0)
    for at, item in enumerate(history):
        fact = member_facts.OrderHeard(at, item) if isinstance(item, Order) else member_facts.LauncherHeard(at, item)
        view = member.fold(view, fact)
        if isinstance(item, Order) and view.order is item and item.want is not Want.RUN:
            stopped.add(item.incarnation)
        for action in member.decide(view, at).actions:
            if isinstance(action, member_facts.StartRanks):
                assert action.incarnation >= highest
                assert action.incarnation not in stopped
                highest = action.incarnation


reports = st.builds(
    lambda index, incarnation, ranks, code: MemberReport(
        MEMBERS[index],
        incarnation,
        ranks,
        code,
        signal=None,
        tail="",
        hooked=True,
        reshardable=False,
        step=None,
        heartbeat_age=None,
        slots=(),
        stage=None,
        flush=None,
        notices=(),
        terminating=False,
        untouched=False,
    ),
    st.integers(0, 1),
    st.none() | incarnations,
    st.sampled_from(list(Ranks)),
    st.none() | st.integers(0, 1),
)


@given(st.lists(st.tuples(reports, st.floats(0.0, 8.0)), max_size=40))
def test_a2_whatever_is_heard_a_claim_follows_only_absent_ranks_of_all_in_reach(
    history: list[tuple[MemberReport, float]],
) -> None:
    now = 0.0
    view = coordinator.begin(MEMBERS[0].uid, 2, has_root=True, now=now)
    grant = Grant(GroupKey("ns", "job", 0), 1, "uid", MEMBERS[0], 1, WORLD, 1, None, None, Want.RUN, "", TIMING)
    view = coordinator.fold(view, coordinator_facts.GrantHeard(now, grant))
    view = coordinator.fold(view, coordinator_facts.DiskSeen(now, coordinator_facts.LineageScan()))
    newest: dict[str, MemberReport] = {}
    for report, gap in history:
        now += gap
        newest[report.member.uid] = report
        view = coordinator.fold(view, coordinator_facts.MemberHeard(now, report))
        claims = [
            item for item in coordinator.decide(view, now).actions if isinstance(item, coordinator_facts.ClaimAttempt)
        ]
        if claims:
            assert set(newest) == WORLD.uids
            assert all(item.ranks.absent for item in newest.values())
            return


@given(st.lists(st.tuples(reports, st.floats(0.0, 8.0)), max_size=25), st.floats(0.0, 300.0))
def test_a_decision_made_twice_is_the_same_and_time_alone_changes_nothing_unsaid(
    history: list[tuple[MemberReport, float]], later: float
) -> None:
    now = 0.0
    view = coordinator.begin(MEMBERS[0].uid, 2, has_root=True, now=now)
    for report, gap in history:
        now += gap
        view = coordinator.fold(view, coordinator_facts.MemberHeard(now, report))
    assert coordinator.decide(view, now + later) == coordinator.decide(view, now + later)
    decision = coordinator.decide(view, now)
    assert decision.wake_at is not None
    assert now <= decision.wake_at <= now + 1.0


failures = st.lists(
    st.builds(Failure, st.floats(0, 1000), st.sampled_from(["a", "b"]), st.none() | st.integers(-1, 2)), max_size=12
).map(lambda items: tuple(sorted(items, key=lambda item: item.at)))


@given(failures, st.floats(1000, 2000))
def test_within_budget_means_no_more_failures_than_allowed_and_not_the_same_thrice(
    history: tuple[Failure, ...], now: float
) -> None:
    if exhausted(history, TIMING, now) is None:
        assert sum(now - item.at <= TIMING.attempts_window for item in history) <= TIMING.attempts
        last = {(item.fault, item.step) for item in history[-TIMING.same_step_limit :]}
        assert len(history) < TIMING.same_step_limit or len(last) > 1 or history[-1].step is None
    else:
        assert exhausted(history, replace(TIMING, attempts=99, same_step_limit=99), now) is None
