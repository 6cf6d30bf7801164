"""What another container may put into the shared folder: it is refused, at once, and nothing outside is touched."""

from __future__ import annotations

import os
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

from rlguard.train import pages
from rlguard.train.plain import open_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def link(path: Path) -> None:
    """Make a link to a file that is there."""
    path.symlink_to(path.parent / "victim")


def listener(path: Path) -> None:
    """Make a socket."""
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


TRAPS = {"link": link, "fifo": os.mkfifo, "folder": os.mkdir, "socket": listener}


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """Keep a file that the trainer may not touch."""
    path = tmp_path / "victim"
    path.write_text("secret")
    yield path
    assert path.read_text() == "secret"


@pytest.mark.usefixtures("victim")
@pytest.mark.parametrize("trap", TRAPS.values(), ids=TRAPS)
def test_what_is_no_plain_file_is_refused_without_waiting(tmp_path: Path, trap: Callable[[Path], None]) -> None:
    for name in (pages.CONTROL_NAME, pages.rank_name(0), pages.HEADER_NAME, pages.FILES_NAME):
        trap(tmp_path / name)
    for access in (
        lambda: pages.ControlWriter(tmp_path),
        lambda: pages.read_control(tmp_path),
        lambda: pages.read_rank(tmp_path, 0),
        lambda: pages.read_header(tmp_path),
        lambda: pages.read_files_json(tmp_path),
    ):
        with pytest.raises(OSError, match=str(tmp_path)):
            access()


def test_a_link_in_place_of_the_slot_leads_nowhere(tmp_path: Path) -> None:
    """Else a trainer could have files of the sidecar's container copied out."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "token").write_text("secret")
    (tmp_path / "slot-0-0").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotADirectoryError):
        open_plain(tmp_path / "slot-0-0" / "token")


def test_a_control_page_that_was_cut_short_is_written_again(tmp_path: Path) -> None:
    writer = pages.ControlWriter(tmp_path)
    os.truncate(tmp_path / pages.CONTROL_NAME, 0)
    writer.write(pages.ControlPage("1.1", order=1, step=20))
    assert pages.read_control(tmp_path) == pages.ControlPage("1.1", order=1, step=20)


def test_a_list_of_files_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / pages.FILES_NAME).write_text("[" * 100_000)
    with pytest.raises(pages.PageError):
        pages.read_files_json(tmp_path)


def test_a_huge_list_of_files_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / pages.FILES_NAME).open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="larger than"):
        pages.read_files_json(tmp_path)


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """Mount memory of which nothing is left."""
    folder = tmp_path / "full"
    folder.mkdir()
    mounted = subprocess.run(["/bin/mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", folder], check=False)
    if mounted.returncode != 0:
        pytest.skip("mounting needs root")
    try:
        (folder / "fill").write_bytes(bytes(8192))
        yield folder
    finally:
        subprocess.run(["/bin/umount", folder], check=True)


@pytest.mark.parametrize("what", ["rank", "control", "header"])
def test_memory_that_is_used_up_is_an_error_and_not_the_end_of_the_process(full: Path, what: str) -> None:
    """A store into a mapped page without memory behind it is a SIGBUS."""
    make: dict[str, Callable[[], object]] = {
        "rank": lambda: pages.RankWriter(full, 0, pages.RankPage("1.1", 0, 1, 1)),
        "control": lambda: pages.ControlWriter(full),
        "header": lambda: pages.HeaderWriter(full),
    }
    with pytest.raises(OSError, match="No space left"):
        make[what]()
