"""Kernel logs as people have them: every form of a line, and what time does to a replay."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlguard.health.catalogue import builtin
from rlguard.health.replay import LINE_LIMIT, STEP_LIMIT, read_log, replay
from rlguard.model import Verdict

TABLE = builtin()
REPEATS = "message repeated 999999999 times: ["
HEADS = st.sampled_from(["[", "4,1,1,-;", "Jan  1 ", "kern: warning: [", REPEATS])
LINES = st.text(max_size=40) | st.builds(lambda head, tail: head + tail, HEADS, st.text(max_size=40))
TEXT = "NVRM: Xid (PCI:0000:9b:00): 79, x"


@pytest.mark.parametrize(
    ("line", "at"),
    [
        (f"4,17,5000000,-;{TEXT}", 5.0),
        (f"[    5.000000] {TEXT}", 5.0),
        (f"[    5.000000][ T1234] {TEXT}", 5.0),
        (f"kern  :warn  : [    5.000000] {TEXT}", 5.0),
        (f"[Sat Jan  1 00:00:05 2000] {TEXT}", 946684805.0),
        (f"Jan  1 00:00:05 host kernel: {TEXT}", 946684805.0),
        (f"2000-01-01T00:00:05+0000 host kernel: {TEXT}", 946684805.0),
        (f"2000-01-01T00:00:05.123456+00:00 host kernel: {TEXT}", 946684805.0),
        (f"kern: warning: [2000-01-01T00:00:05.123Z]: {TEXT}", 946684805.0),
        (TEXT, 0.0),
    ],
)
def test_a_line_is_its_time_and_its_text(line: str, at: float) -> None:
    (entry,) = read_log([line])
    assert (entry.at, entry.text, entry.count) == (at, TEXT, 1)


@pytest.mark.parametrize(
    "line",
    [
        f"12,17,5000000,-;{TEXT}",
        f"user  :notice: [    5.000000] {TEXT}",
        f"user: notice: [2000-01-01T00:00:05.123Z]: {TEXT}",
        f"Jan  1 00:00:05 host python3[4711]: {TEXT}",
        f"2000-01-01T00:00:05+0000 host logger: {TEXT}",
    ],
)
def test_what_user_space_wrote_counts_only_when_asked_for(line: str) -> None:
    assert list(read_log([line])) == []
    (entry,) = read_log([line], kernel_only=False)
    assert entry.text == TEXT


def test_syslog_s_word_for_repeats_is_a_count() -> None:
    (entry,) = read_log([f"Jan  1 00:00:05 host kernel: message repeated 5 times: [ {TEXT}]"])
    assert (entry.count, entry.text) == (5, TEXT)
    assert replay([entry], TABLE).counts == {"replay00/xid-79/0000:9b:00": 5}


def test_comments_and_empty_lines_are_no_lines_but_are_counted() -> None:
    (entry,) = read_log(["# why", "", TEXT])
    assert entry.number == 3


def test_time_that_goes_back_stands_still_within_a_boot_and_starts_anew_with_the_next() -> None:
    log = ["[9.0] a", "[5.0] b", "[0.0] Linux version 6.1.0", "[1.0] c"]
    assert [entry.at for entry in read_log(log)] == [9.0, 9.0, 0.0, 1.0]


def test_a_flood_is_one_step() -> None:
    played = replay(read_log([f"[{number}.0] {TEXT}" for number in range(5000)]), TABLE)
    assert (len(played.steps), played.counts) == (1, {"replay00/xid-79/0000:9b:00": 5000})


def test_a_log_that_never_rests_gives_so_many_steps_and_a_count_of_the_others() -> None:
    flaps = [f"bond0: link status definitely {word} for interface eno5, x" for word in ("up", "down")]
    played = replay(read_log(flaps * (STEP_LIMIT // 2 + 10)), TABLE)
    assert (len(played.steps), played.left_out, played.verdict) == (STEP_LIMIT, 20, Verdict.DEGRADED)


def test_time_alone_ends_a_fault_and_the_step_says_so() -> None:
    log = ["[1.0] nfs: server a not responding, timed out", f"[700.0] {TEXT}"]
    gone = replay(read_log(log), TABLE).steps[1]
    assert (gone.number, gone.told, gone.ended, gone.verdict) == (0, (), ("nfs-timed-out/nfs/a",), Verdict.HEALTHY)


@given(
    st.lists(
        st.one_of(
            st.text(max_size=40),
            st.builds(
                lambda head, tail: head + tail,
                st.sampled_from(["[", "4,1,1,-;", "Jan  1 ", "kern: warning: [", REPEATS]),
                st.text(max_size=40),
            ),
        ),
        max_size=20,
    )
)
def test_no_log_makes_the_replay_fail(lines: list[str]) -> None:
    entries = list(read_log(lines, kernel_only=False))
    assert all(len(entry.text) <= LINE_LIMIT for entry in entries)
    assert all(one.number < other.number for one, other in pairwise(entries))
    replay(entries, TABLE)
