"""Records of the kernel log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlguard.health.kmsg import OVERRUN, Gathered, gather, parse_record


def record(sequence: int, text: str = "NVRM: x", priority: int = 4) -> bytes:
    return f"{priority},{sequence},{1000 + sequence},-;{text}\n".encode()


def look(position: int | None, *packets: bytes, kernel_only: bool = True) -> Gathered:
    return gather(position, packets, kernel_only=kernel_only, about=lambda packet: b"NVRM" in packet)


def test_a_record_is_facility_level_sequence_and_text() -> None:
    parsed = parse_record(b"12,339,5140900,-;NET: Registered PF_INET\n SUBSYSTEM=net\n DEVICE=n3\n")
    assert parsed is not None
    assert (parsed.facility, parsed.level, parsed.sequence, parsed.text) == (1, 4, 339, "NET: Registered PF_INET")


def test_more_header_fields_than_four_are_for_the_future() -> None:
    parsed = parse_record(b"6,7,8,c,caller=T12;hello; world\n")
    assert parsed is not None
    assert parsed.text == "hello; world"


def test_escaped_bytes_are_what_they_were() -> None:
    parsed = parse_record(rb"4,1,1,-;one\x0atwo \x5cx" + b"\n")
    assert parsed is not None
    assert parsed.text == "one\ntwo \\x"


@pytest.mark.parametrize("data", [b"", b";", b"4,1,1,-", b"x,1,1,-;a", b"4,,1,-;a", b"4,1;a", b"EPIPE", b"\x00\xff"])
def test_what_is_no_record_is_none(data: bytes) -> None:
    assert parse_record(data) is None


@given(st.binary())
def test_no_bytes_make_the_parser_fail(data: bytes) -> None:
    parse_record(data)
    parse_record(b"4,1,1,-;" + data)


def test_records_in_a_row_are_no_gap() -> None:
    seen = look(None, record(5), record(6), record(7))
    assert (seen.position, seen.records, seen.overruns, seen.lost) == (7, 3, 0, 0)


def test_where_looking_began_is_no_gap_but_a_jump_after_a_known_position_is() -> None:
    assert look(None, record(900)).overruns == 0
    assert (look(4, record(7)).overruns, look(4, record(7)).lost) == (1, 2)


def test_an_overrun_is_one_gap_with_its_jump_and_counts_even_at_the_end() -> None:
    seen = look(5, OVERRUN, record(10))
    assert (seen.overruns, seen.lost) == (1, 4)
    assert look(5, record(6), OVERRUN).overruns == 1


def test_records_up_to_the_position_are_not_seen_again() -> None:
    seen = look(6, record(5, "NVRM: a"), record(6, "NVRM: b"), record(7, "NVRM: c"))
    assert (seen.texts, seen.records, seen.overruns) == ({"NVRM: c": 1}, 1, 0)


def test_only_the_kernel_is_believed_unless_told_otherwise() -> None:
    forged = record(1, priority=12)
    assert look(None, forged).texts == {}
    assert look(None, forged, kernel_only=False).texts == {"NVRM: x": 1}


def test_texts_are_those_asked_for_each_with_its_count_and_garbage_is_counted() -> None:
    seen = look(None, record(1), b"what", record(2), record(3, "other"))
    assert (seen.texts, seen.garbage, seen.position) == ({"NVRM: x": 2}, 1, 3)


def test_texts_stand_in_the_order_in_which_they_came_last() -> None:
    seen = look(None, record(1, "NVRM: down"), record(2, "NVRM: up"), record(3, "NVRM: down"))
    assert list(seen.texts.items()) == [("NVRM: up", 1), ("NVRM: down", 2)]


@given(st.lists(st.integers(0, 30)), st.integers(0, 30))
def test_no_order_of_records_moves_the_position_back(sequences: list[int], position: int) -> None:
    seen = look(position, *(record(sequence) for sequence in sequences))
    assert seen.position == max([position, *sequences])
