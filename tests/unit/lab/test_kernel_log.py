"""The fake kernel log behaves as /dev/kmsg: a ring, one record per read, a gap that shows."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlguard_chaos.lab.edge import KernelLog
from rlguard_chaos.lab.ring import LINE_LIMIT, Ring, escape

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@given(st.integers(1, 20), st.lists(st.text(), max_size=60))
def test_a_ring_holds_the_newest_records_under_their_own_numbers(capacity: int, lines: list[str]) -> None:
    ring = Ring(capacity)
    written = [ring.append(line, 4, 7) for line in lines]
    assert written == list(range(len(lines)))
    assert ring.next_sequence - ring.first_sequence == min(capacity, len(lines))
    for sequence in range(ring.first_sequence, ring.next_sequence):
        assert ring.read(sequence) == f"4,{sequence},7,-;{escape(lines[sequence])[:LINE_LIMIT]}\n".encode()


def test_an_overwritten_record_is_told_from_one_not_written_yet() -> None:
    ring = Ring(2)
    for line in "abc":
        ring.append(line, 4, 0)
    with pytest.raises(IndexError):
        ring.read(0)
    assert ring.read(3) is None


@given(st.text())
def test_a_record_is_one_line_of_printable_characters(text: str) -> None:
    assert all(" " <= character <= "~" for character in escape(text))


def test_unprintable_bytes_are_escaped_as_the_kernel_does() -> None:
    assert escape("a\tb\\c\u00e9") == r"a\x09b\x5cc\xc3\xa9"


class Bench:
    """A kernel log with one writer, driven by hand."""

    def __init__(self, folder: Path, capacity: int) -> None:
        self.ring = Ring(capacity)
        self.folder = folder
        self.log = KernelLog(self.ring, folder / "kmsg.sock", folder / "control.sock")
        self.lines: list[socket.socket] = []
        self.writer = self.connect("control.sock")

    def close(self) -> None:
        """Close every socket."""
        self.log.close()
        for line in self.lines:
            line.close()

    def connect(self, name: str) -> socket.socket:
        """A new connection to one of the two sockets."""
        line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.lines.append(line)
        line.settimeout(5)
        line.connect(str(self.folder / name))
        self.log.serve(1)
        return line

    def write(self, text: str) -> int:
        """Append a record; its sequence number."""
        self.writer.send(json.dumps({"text": text, "priority": 4}).encode())
        self.log.serve(1)
        return int(json.loads(self.writer.recv(4096))["sequence"])

    def read(self, reader: socket.socket) -> bytes:
        """The next packet for a reader."""
        self.log.serve(0)
        return reader.recv(8192)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A kernel log with a ring of 5 records."""
    made = Bench(tmp_path, capacity=5)
    yield made
    made.close()


def test_a_new_reader_gets_what_the_ring_holds_and_then_follows(bench: Bench) -> None:
    bench.write("before")
    reader = bench.connect("kmsg.sock")
    assert bench.read(reader).endswith(b";before\n")
    assert bench.write("after") == 1
    record = bench.read(reader)
    assert record.startswith(b"4,1,")
    assert record.endswith(b",-;after\n")


def test_a_reader_that_is_overrun_is_told_once_and_goes_on_at_the_oldest(bench: Bench) -> None:
    reader = bench.connect("kmsg.sock")
    for number in range(200):
        bench.write("x" * 900)
        assert number == bench.ring.next_sequence - 1
    seen = [bench.read(reader)]
    while not seen[-1].startswith(b"4,199,"):
        seen.append(bench.read(reader))
    assert seen.count(b"EPIPE") == 1
    gap = seen.index(b"EPIPE")
    numbers = [int(record.split(b",")[1]) for record in seen if record != b"EPIPE"]
    assert numbers[:gap] == list(range(gap))
    assert numbers[gap:] == [195, 196, 197, 198, 199]


def test_a_reader_that_goes_away_harms_nobody(bench: Bench) -> None:
    gone, stays = bench.connect("kmsg.sock"), bench.connect("kmsg.sock")
    gone.close()
    bench.log.serve(0)
    bench.write("still here")
    assert bench.read(stays).endswith(b";still here\n")
