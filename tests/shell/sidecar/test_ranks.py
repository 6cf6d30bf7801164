"""The shared-memory pages as the core sees them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rlguard.group.member_facts import PagesRead, SlotSeen, WriteControl
from rlguard.messages import StageResult
from rlguard.model import CheckpointId, Incarnation
from rlguard.train import pages
from rlguard_sidecar.ranks import MOST_PROBLEMS, MOST_RANKS, RankPages

NOW = 100.0
FIRST = Incarnation(1, 1)


class Log:
    """What was said, for a person to read."""

    def __init__(self) -> None:
        self.said: list[object] = []

    def warning(self, _event: str, **fields: object) -> None:
        """Keep it."""
        self.said.append(fields["problem"])


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def read(tmp_path: Path, log: Log) -> RankPages:
    told: list[PagesRead] = []
    return RankPages(tmp_path, told.append, lambda: NOW, log)


def rank(shm: Path, local_rank: int, **fields: object) -> pages.RankWriter:
    """A rank's page, beaten one second ago."""
    page = pages.RankPage("1.1", local_rank, 2, 2, hook=True, heartbeat_ns=int(99e9), **fields)  # type: ignore[arg-type]
    return pages.RankWriter(shm, local_rank, page)


def stage(shm: Path, local_rank: int, step: int, *, dirty: bool = False) -> None:
    """A rank's slot 0."""
    folder = pages.slot_path(shm, local_rank, 0)
    folder.mkdir(exist_ok=True)
    writer = pages.HeaderWriter(folder)
    writer.write(pages.SlotHeader("1.1", step, 1, dirty=dirty))
    writer.close()


def test_nothing_written_is_nothing_seen(read: RankPages) -> None:
    assert read.read() == PagesRead(NOW, (), (SlotSeen(0, None), SlotSeen(1, None)))


def test_a_page_is_seen_with_its_age_and_no_step_before_the_first(read: RankPages, tmp_path: Path) -> None:
    rank(tmp_path, 0).close()
    (seen,) = read.read().ranks
    assert (seen.incarnation, seen.step, seen.heartbeat_age, seen.result) == (FIRST, None, 1.0, None)


def test_the_last_answer_to_an_order_is_seen(read: RankPages, tmp_path: Path) -> None:
    rank(tmp_path, 0, step=9, order=3, stage_step=7, slot=1, result=pages.StageResult.PAST).close()
    (seen,) = read.read().ranks
    assert (seen.step, seen.order, seen.stage_step, seen.slot, seen.result) == (9, 3, 7, 1, StageResult.PAST)


def test_a_slot_is_whole_when_every_rank_of_the_pod_staged_the_same_step(read: RankPages, tmp_path: Path) -> None:
    for local_rank in (0, 1):
        rank(tmp_path, local_rank).close()
    stage(tmp_path, 0, 7)
    assert read.read().slots[0].checkpoint is None
    stage(tmp_path, 1, 8)
    assert read.read().slots[0].checkpoint is None
    stage(tmp_path, 1, 7, dirty=True)
    assert read.read().slots[0].checkpoint is None
    stage(tmp_path, 1, 7)
    assert read.read().slots[0].checkpoint == CheckpointId(FIRST, 7)


def test_a_foreign_page_is_left_out_and_named_once(read: RankPages, tmp_path: Path, log: Log) -> None:
    (tmp_path / "rank-0").write_bytes(b"no page of ours" * 1000)
    rank(tmp_path, 1).close()
    assert [seen.local_rank for seen in read.read().ranks] == [1]
    read.read()
    assert len(log.said) == 1
    assert "rank-0" in str(log.said[0])


def test_an_order_is_written_for_the_ranks_to_read(read: RankPages, tmp_path: Path) -> None:
    read.write(WriteControl(FIRST, 4, 20, 1))
    read.write(WriteControl(FIRST, 4, 20, 1))
    assert pages.read_control(tmp_path) == pages.ControlPage("1.1", order=4, step=20, slot=1)


def test_numbers_that_cannot_be_do_not_occupy_the_sidecar(read: RankPages, log: Log, tmp_path: Path) -> None:
    """A page is whatever the trainer wrote: so many ranks would be looked for until the end of time."""
    page = pages.RankPage("1.1", 0, 2, 2)
    absurd = (replace(page, local_world_size=2**63), replace(page, step=2**62), replace(page, stage_step=2**62))
    for local_rank, claimed in enumerate(absurd):
        pages.RankWriter(tmp_path, local_rank, claimed)
    assert read.read().ranks == ()
    assert len(log.said) == 3


def test_what_cannot_be_read_is_told_a_bounded_number_of_times(read: RankPages, log: Log, tmp_path: Path) -> None:
    for number in range(2 * MOST_RANKS):
        (tmp_path / f"rank-{number}").write_bytes(b"x" * pages.PAGE_BYTES)
    assert read.read().ranks == ()
    assert len(log.said) == MOST_PROBLEMS


def test_an_order_that_cannot_be_written_is_told_and_written_later(read: RankPages, log: Log, tmp_path: Path) -> None:
    order = WriteControl(FIRST, 1, 20, 0)
    (tmp_path / "control").mkdir()
    read.write(order)
    assert len(log.said) == 1
    (tmp_path / "control").rmdir()
    read.write(order)
    assert pages.read_control(tmp_path) == pages.ControlPage("1.1", order=1, step=20)
