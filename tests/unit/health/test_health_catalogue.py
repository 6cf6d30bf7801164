"""The Xid table and what it makes of lines."""

from __future__ import annotations

import json

import pytest

from rlguard.errors import BadConfigError
from rlguard.health.catalogue import builtin, parse
from rlguard.model import Repair, Scope, Severity

TABLE = builtin()


def line(code: int, text: str = "text") -> str:
    return f"NVRM: Xid (PCI:0000:05:00): {code}, {text}"


def test_every_row_has_a_meaning_and_a_source_and_what_is_fatal_has_a_repair() -> None:
    for row in TABLE.rows.values():
        assert row.meaning
        assert row.source
        severity, scope, repair = row.rating
        if severity is Severity.FATAL:
            assert repair in (Repair.RESET_GPU, Repair.REBOOT, Repair.REPLACE)
            assert scope is not Scope.PROCESS


@pytest.mark.parametrize("code", [46, 48, 54, 62, 64, 74, 79, 81, 95, 109, 110, 119, 120, 123, 136, 140, 143, 151, 155])
def test_faults_of_the_machine_are_fatal(code: int) -> None:
    fault = TABLE.read(line(code))
    assert fault is not None
    assert fault.severity is Severity.FATAL


@pytest.mark.parametrize("code", [8, 13, 31, 32, 68, 69, 80, 94, 126, 135, 139])
def test_faults_of_a_program_cost_a_process_restart_and_no_more(code: int) -> None:
    fault = TABLE.read(line(code))
    assert fault is not None
    assert (fault.severity, fault.scope, fault.repair) == (Severity.WARNING, Scope.PROCESS, Repair.RESTART_PROCESS)


@pytest.mark.parametrize("code", [37, 38, 43, 44, 45, 92, 121, 152, 160])
def test_what_the_vendor_says_to_ignore_is_information(code: int) -> None:
    fault = TABLE.read(line(code))
    assert fault is not None
    assert fault.severity is Severity.INFO


@pytest.mark.parametrize("code", [1, 999, 65535])
def test_an_unknown_code_is_told_but_never_fatal(code: int) -> None:
    fault = TABLE.read(line(code))
    assert fault is not None
    assert (fault.severity, fault.repair) == (Severity.WARNING, Repair.NONE)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6", Severity.FATAL),
        ("RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2", Severity.WARNING),
    ],
)
def test_an_nvlink_fault_is_as_bad_as_its_word_says(text: str, expected: Severity) -> None:
    fault = TABLE.read(line(149, text))
    assert fault is not None
    assert fault.severity is expected


@pytest.mark.parametrize(
    ("number", "severity", "repair"),
    [
        ("0x0", Severity.INFO, Repair.NONE),
        ("0x1", Severity.FATAL, Repair.RESET_GPU),
        ("0x2", Severity.FATAL, Repair.REBOOT),
        ("0x4", Severity.FATAL, Repair.RESET_GPU),
        ("0x9", Severity.INFO, Repair.NONE),
    ],
)
def test_a_recovery_action_is_rated_by_its_number(number: str, severity: Severity, repair: Repair) -> None:
    fault = TABLE.read(line(154, f"GPU recovery action changed from 0x0 (None) to {number} (whatever)"))
    assert fault is not None
    assert (fault.severity, fault.repair) == (severity, repair)


def test_a_fault_names_code_device_and_meaning() -> None:
    fault = TABLE.read(line(79, "GPU has fallen off the bus."))
    assert fault is not None
    assert (fault.code, fault.device) == ("xid-79", "0000:05:00")
    assert fault.detail == "Xid 79 (GPU has fallen off the bus): GPU has fallen off the bus."


def test_a_fault_without_device_is_the_node_s() -> None:
    fault = TABLE.read("NVRM: fallen off the bus and is not responding to commands.")
    assert fault is not None
    assert fault.device == "node"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        json.dumps({"version": "1", "rows": [{"code": 1}]}),
        json.dumps({"version": "1", "rows": [{"code": 1, "meaning": "m", "severity": "awful", "scope": "gpu"}]}),
        json.dumps({"version": "1", "rows": 7}),
    ],
)
def test_a_damaged_table_is_refused_with_words(text: str) -> None:
    with pytest.raises(BadConfigError, match="fault table"):
        parse([text])
