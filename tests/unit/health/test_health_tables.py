"""The tables of faults, a user's own rows over them, and the rules for what ends a fault."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlguard.errors import BadConfigError
from rlguard.health.catalogue import builtin, parse
from rlguard.health.conditions import TRUE_IS_BAD
from rlguard.health.faults import Clears, Sighting, Until
from rlguard.model import Repair, Scope, Severity

TABLE = builtin()


def override(*rows: dict[str, object]) -> str:
    return json.dumps({"version": "mine", "rows": list(rows)})


def test_every_code_that_a_row_names_is_a_row_or_unlisted_on_purpose() -> None:
    named = {code for row in TABLE.rows.values() for code in (*row.ends, *row.follows)}
    assert named - TABLE.rows.keys() == {"sxid-28000", "sxid-28001"}


def test_what_only_another_line_ends_has_such_a_line() -> None:
    ended = {code for row in TABLE.rows.values() for code in row.ends} | {"xid-154"}
    assert {row.code for row in TABLE.rows.values() if row.clears.until is Until.PAIR} <= ended


def test_what_counts_on_a_good_device_only_has_a_line_that_says_good() -> None:
    ended = {code for row in TABLE.rows.values() for code in row.ends}
    assert {row.code for row in TABLE.rows.values() if row.needs_good} <= ended


def test_conditions_are_described_as_they_are_rated() -> None:
    for kind, rating in TRUE_IS_BAD.items():
        assert TABLE.rows[f"condition-{kind}"].rating == rating


def test_a_user_s_row_changes_what_it_names_and_nothing_else() -> None:
    table = builtin(override({"code": "xid-63", "severity": "info", "repair": "none"}))
    assert table.rows["xid-63"].rating == (Severity.INFO, Scope.GPU, Repair.NONE)
    assert table.rows["xid-63"].meaning == TABLE.rows["xid-63"].meaning
    assert {code for code, row in table.rows.items() if row != TABLE.rows[code]} == {"xid-63"}
    assert table.version == f"{TABLE.version}+mine"


def test_a_user_may_describe_a_new_code_but_must_describe_it_whole() -> None:
    row = {"code": "xid-900", "meaning": "new", "severity": "fatal", "scope": "gpu", "repair": "replace"}
    whole = {**row, "clears": "boot", "source": "our vendor"}
    (fact,) = builtin(override(whole)).read_line("NVRM: Xid (PCI:0000:05:00): 900, x")
    assert isinstance(fact, Sighting)
    assert fact.fault.severity is Severity.FATAL
    with pytest.raises(BadConfigError, match="xid-900"):
        builtin(override(row))


@pytest.mark.parametrize(
    "text", ["", "[]", '{"version": 1}', override({"code": "xid-79", "clears": "soon"}), "[" * 9999]
)
def test_a_damaged_file_of_a_user_is_refused_with_words(text: str) -> None:
    with pytest.raises(BadConfigError, match="fault table"):
        builtin(text)


@pytest.mark.parametrize(
    ("words", "severity"),
    [
        ("Fatal, Link 12 TX Replay Error", Severity.FATAL),
        ("Non-fatal, Link 12 TX Replay Error", Severity.INFO),
        ("Non-fatal, Link 12 TX Replay Error, may become fatal", Severity.INFO),
    ],
)
def test_the_word_in_a_switch_s_line_decides(words: str, severity: Severity) -> None:
    (fact,) = TABLE.read_line(f"nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20001, {words}")
    assert isinstance(fact, Sighting)
    assert fact.fault.severity is severity


@given(st.text() | st.recursive(st.none() | st.integers() | st.text(max_size=5), st.lists).map(json.dumps))
def test_no_file_makes_the_reader_fail_otherwise(text: str) -> None:
    try:
        parse([text])
    except BadConfigError:
        return


@pytest.mark.parametrize("text", ["boot", "check", "pair", "seen", "quiet:600", "quiet:0.5"])
def test_a_rule_is_written_as_it_is_read(text: str) -> None:
    assert str(Clears.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["", "never", "quiet", "quiet:", "quiet:x", "quiet:nan", "quiet:inf", "quiet:-1", "boot:3"]
)
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Clears.parse(text)
