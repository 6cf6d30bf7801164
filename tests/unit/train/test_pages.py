"""Pages carry values whole, or say that they could not."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlguard.train import pages

if TYPE_CHECKING:
    from pathlib import Path

WORD = st.integers(0, 2**64 - 1)
STEP = st.integers(-1, 2**63 - 1)
INCARNATION = st.builds("{}.{}".format, WORD, WORD)
RANK_PAGES = st.builds(
    pages.RankPage,
    incarnation=INCARNATION,
    rank=WORD,
    world_size=WORD,
    local_world_size=WORD,
    pid=WORD,
    step=STEP,
    heartbeat_ns=WORD,
    order=WORD,
    stage_step=STEP,
    slot=WORD,
    result=st.sampled_from(pages.StageResult),
    hook=st.booleans(),
    reshardable=st.booleans(),
    nan=st.booleans(),
    finished=st.booleans(),
)
PAGE = pages.RankPage("3.1", rank=5, world_size=8, local_world_size=4)


@pytest.fixture(scope="module")
def shm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make one folder for all examples: a page may be written over again."""
    return tmp_path_factory.mktemp("shm")


@given(page=RANK_PAGES)
def test_a_rank_page_is_read_as_written(shm: Path, page: pages.RankPage) -> None:
    """Every field, at the ends of its range too."""
    pages.RankWriter(shm, 3, page).close()
    assert pages.read_rank(shm, 3) == page


@given(page=st.builds(pages.ControlPage, incarnation=INCARNATION, order=WORD, step=STEP, slot=WORD))
def test_a_control_page_is_read_as_written_and_its_order_shows_at_a_peek(shm: Path, page: pages.ControlPage) -> None:
    """Every field; the peek needs no system call."""
    writer = pages.ControlWriter(shm)
    writer.write(page)
    writer.close()
    assert pages.read_control(shm) == page
    assert pages.ControlPeek(shm).order() == page.order


@given(header=st.builds(pages.SlotHeader, incarnation=INCARNATION, step=STEP, sequence=WORD, dirty=st.booleans()))
def test_a_slot_header_is_read_as_written(shm: Path, header: pages.SlotHeader) -> None:
    """Every field."""
    slot = pages.slot_path(shm, 0, 1)
    slot.mkdir(exist_ok=True)
    writer = pages.HeaderWriter(slot)
    writer.write(header)
    writer.close()
    assert pages.read_header(slot) == header


def test_a_heartbeat_changes_step_and_time_and_nothing_else(tmp_path: Path) -> None:
    """The fast path writes part of the page."""
    writer = pages.RankWriter(tmp_path, 0, PAGE)
    writer.beat(41, 1234)
    assert pages.read_rank(tmp_path, 0) == replace(PAGE, step=41, heartbeat_ns=1234)
    writer.update(order=7, result=pages.StageResult.PAST)
    read = pages.read_rank(tmp_path, 0)
    assert read is not None
    assert (read.step, read.order, read.result) == (41, 7, pages.StageResult.PAST)
    assert read.heartbeat_ns > 1234


class Watched:
    """A body or part of one that looks at its page, as a reader would, in the middle of being written."""

    def __init__(self, shm: Path) -> None:
        self.shm = shm
        self.torn = 0

    def pack_into(self, *_args: object) -> None:
        """Stand in for `struct.Struct.pack_into`."""
        with pytest.raises(pages.TornPageError):
            pages.read_rank(self.shm, 0)
        self.torn += 1


def test_a_page_is_torn_to_readers_while_either_path_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole page, and the heartbeat alone."""
    writer, watched = pages.RankWriter(tmp_path, 0, PAGE), Watched(tmp_path)
    monkeypatch.setattr(pages, "_BEAT", watched)
    writer.beat(1, 1)
    assert watched.torn == 1
    monkeypatch.undo()
    monkeypatch.setattr(writer, "_layout", writer._layout._replace(body=watched))
    writer.write(PAGE)
    assert watched.torn == 2
    assert pages.read_rank(tmp_path, 0) is not None


@given(body=st.binary(min_size=16, max_size=64), begin=st.integers(16, 80))
def test_a_page_under_way_is_torn_whatever_its_bytes(shm: Path, body: bytes, begin: int) -> None:
    """A writer killed between its first and its last store."""
    pages.RankWriter(shm, 9, PAGE).close()
    path = shm / pages.rank_name(9)
    page = bytearray(path.read_bytes())
    page[8] |= 1  # the sequence is odd while a page is written
    page[begin : begin + len(body)] = body
    path.write_bytes(page)
    with pytest.raises(pages.TornPageError, match="rank-9"):
        pages.read_rank(shm, 9)


def test_a_page_left_torn_is_whole_again_with_its_next_writer(tmp_path: Path) -> None:
    """And the new sequence differs from every earlier one."""
    pages.RankWriter(tmp_path, 0, PAGE).close()
    path = tmp_path / pages.rank_name(0)
    page = bytearray(path.read_bytes())
    page[8] |= 1
    path.write_bytes(page)
    pages.RankWriter(tmp_path, 0, replace(PAGE, incarnation="3.2")).close()
    read = pages.read_rank(tmp_path, 0)
    assert read is not None
    assert read.incarnation == "3.2"
    assert int.from_bytes(path.read_bytes()[8:16], "little") > int.from_bytes(page[8:16], "little")


def test_a_reader_never_sees_two_writes_mixed(tmp_path: Path) -> None:
    """One process writes pages whose fields all agree, as fast as it can; this one reads."""
    program = (
        "import sys; from pathlib import Path; from rlguard.train import pages\n"
        "writer = pages.RankWriter(Path(sys.argv[1]), 0, pages.RankPage('0.0', 0, 0, 0)); print(flush=True)\n"
        "for n in range(10**9): writer.write(pages.RankPage(f'{n}.{n}', n, n, n, step=n, heartbeat_ns=n))\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE) as writing:
        try:
            assert writing.stdout is not None
            writing.stdout.readline()
            seen = [_read_or_torn(tmp_path) for _ in range(3000)]
        finally:
            writing.kill()
    whole = [page for page in seen if page is not None]
    assert len(set(whole)) > 1
    for page in whole:
        assert page.step == -1 or page.incarnation == f"{page.step}.{page.step}"
        assert page.step == -1 or page.heartbeat_ns == page.rank == page.step


def _read_or_torn(shm: Path) -> pages.RankPage | None:
    try:
        return pages.read_rank(shm, 0)
    except pages.TornPageError:
        return None


def test_a_control_page_that_comes_late_is_seen_at_the_next_look(tmp_path: Path) -> None:
    """Looking for it costs a system call, so it is not looked for at every step."""
    peek = pages.ControlPeek(tmp_path)
    assert peek.order(10) == 0
    pages.ControlWriter(tmp_path).write(pages.ControlPage("3.1", order=4))
    assert peek.order(11) == 0
    assert peek.order(10 + pages.LOOK_NS) == 4
    assert peek.order(11 + pages.LOOK_NS) == 4


def test_nothing_written_reads_as_nothing(tmp_path: Path) -> None:
    """Absent, empty, short, and made but never written."""
    assert pages.read_control(tmp_path) is None
    assert pages.ControlPeek(tmp_path).order() == 0
    for content in (b"", b"RLGC", bytes(pages.PAGE_BYTES)):
        (tmp_path / pages.CONTROL_NAME).write_bytes(content)
        assert pages.read_control(tmp_path) is None


@pytest.mark.parametrize(("at", "value"), [(0, 0x58), (4, 9)])
def test_a_page_of_another_kind_or_version_is_named_and_refused(tmp_path: Path, at: int, value: int) -> None:
    """An image with a newer rlguard must not be misread."""
    pages.ControlWriter(tmp_path).write(pages.ControlPage("1.1"))
    path = tmp_path / pages.CONTROL_NAME
    page = bytearray(path.read_bytes())
    page[at] = value
    path.write_bytes(page)
    with pytest.raises(pages.PageError, match="control: holds"):
        pages.read_control(tmp_path)


def test_local_ranks_are_those_with_a_page(tmp_path: Path) -> None:
    """Slots and other files are not ranks."""
    for rank in (10, 2):
        pages.RankWriter(tmp_path, rank, PAGE).close()
    for other in ("rank-x", "slot-0-1", "control"):
        (tmp_path / other).mkdir()
    assert pages.local_ranks(tmp_path) == [2, 10]


def test_a_slot_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    """Two slots, no third."""
    with pytest.raises(pages.PageError, match="no such slot: 2"):
        pages.slot_path(tmp_path, 0, 2)


def test_a_file_list_is_read_as_written(tmp_path: Path) -> None:
    """Names, sizes, and which are shared."""
    files = (pages.SlotFile(".metadata", 10, shared=True), pages.SlotFile("objects-1.pt", 0, shared=False))
    pages.write_files_json(tmp_path, files)
    assert pages.read_files_json(tmp_path) == files


@pytest.mark.parametrize("name", ["../x", "a/b", "/etc/passwd", "", ".", "..", "a\0b", "header", "files.json", 7])
def test_a_file_list_cannot_lead_out_of_its_slot(tmp_path: Path, name: object) -> None:
    """The sidecar copies what is listed: a training process must not make it copy anything else."""
    (tmp_path / pages.FILES_NAME).write_text(json.dumps([{"name": name, "size": 1, "shared": False}]))
    with pytest.raises(pages.PageError, match=r"files\.json"):
        pages.read_files_json(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", '[{"name": "a"}]', '[{"name": "a", "size": -1, "shared": true}]', "7"]
)
def test_a_file_list_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    """Half-written or foreign."""
    (tmp_path / pages.FILES_NAME).write_text(text)
    with pytest.raises(pages.PageError, match=r"files\.json"):
        pages.read_files_json(tmp_path)


def test_reading_pages_does_not_need_torch() -> None:
    """The sidecar's image has none."""
    check = "import sys, rlguard.train.pages; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
