"""Lines of NVIDIA's driver, as seen on machines (hosts and ids changed)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlguard.health.xid import TEXT_LIMIT, normalise_pci, read_xid, recovery_action, says_nonfatal

XIDS = [
    (
        "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, ",
        "GPU has fallen off the bus.",
        ("0000:05:00", 79, None, None),
    ),
    ("NVRM: Xid (0000:03:00): 14, ", "Channel 00000001", ("0000:03:00", 14, None, None)),
    (
        "NVRM: Xid (PCI:0000:9b:00): 119, pid=2024380, name=nvidia-smi, ",
        "Timeout after 6s of waiting for RPC response from GPU4 GSP! Expected function 103 (GSP_RM_ALLOC) (0x2081 0x4).",  # noqa: E501 - a line as it is
        ("0000:9b:00", 119, 2024380, "nvidia-smi"),
    ),
    (
        "NVRM: Xid (PCI:0000:3b:00): 120, pid='<unknown>', name=<unknown>, ",
        "GSP Error: Task 1 raised error code 0x5 for reason 0x0 at 0x63f01ac (0 more errors skipped)",
        ("0000:3b:00", 120, None, None),
    ),
    (
        "NVRM: Xid (PCI:0000:c1:00): 48, pid='<unknown>', name=<unknown>, ",
        "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at physAddr 0x18f31d80 partition 16, subpartition 3.",  # noqa: E501 - a line as it is
        ("0000:c1:00", 48, None, None),
    ),
    (
        "NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, ",
        "Row Remapper: New row marked for remapping, reset gpu to activate.",
        ("0000:10:1c", 63, 1896, None),
    ),
    (
        "NVRM: Xid (PCI:0000:44:00): 94, pid=7194, name=python3, ",
        "Contained: SM (0x1). RST: No, D-RST: No",
        ("0000:44:00", 94, 7194, "python3"),
    ),
    (
        "NVRM: Xid (PCI:0000:18:00): 109, pid=1797828, name=pt_main_thread, ",
        "Ch 00000008, errorString CTX SWITCH TIMEOUT, Info 0x58005",
        ("0000:18:00", 109, 1797828, "pt_main_thread"),
    ),
    (
        "NVRM: Xid (PCI:0000:87:00): 74, pid='<unknown>', name=<unknown>, ",
        "NVLink: fatal error detected on link 14(0x100000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
        ("0000:87:00", 74, None, None),
    ),
    (
        "NVRM: Xid (PCI:0008:01:00): 45, pid=1818990, name=python3, ",
        "Ch 00000001 caused by previous Xid 149",
        ("0008:01:00", 45, 1818990, "python3"),
    ),
    (
        "NVRM: Xid (PCI:0018:01:00): 145, pid=876767, name=ray::WorkerDict, ",
        "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008)",
        ("0018:01:00", 145, 876767, "ray::WorkerDict"),
    ),
    (
        "NVRM: Xid (PCI:0009:01:00): 149, ",
        "NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000",
        ("0009:01:00", 149, None, None),
    ),
    (
        "NVRM: Xid (PCI:0009:01:00): 154, ",
        "GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)",
        ("0009:01:00", 154, None, None),
    ),
    (
        "NVRM: Xid (PCI:0000:5d:00): 13, pid='<unknown>', name=<unknown>, ",
        "Graphics SM Warp Exception on (GPC 7, TPC 7, SM 0): Illegal Instruction Parameter",
        ("0000:5d:00", 13, None, None),
    ),
    (
        "NVRM: Xid (PCI:0000:C1:00): 171, pid=1, name=nvc:[driver], ",
        "Double Bit ECC Error in FBPA 4 subpartition 1",
        ("0000:c1:00", 171, 1, "nvc:[driver]"),
    ),
    ("NVRM: Xid (0000:01:00): 31, ", "Ch 0000000b, engmask 00000120, intr 10000000", ("0000:01:00", 31, None, None)),
    ("NVRM: Xid (PCI:0000:01:00): 62, pid=XXX, name=XXX, ", "0c4d", ("0000:01:00", 62, None, "XXX")),
]

FALLEN_OFF = [
    ("NVRM: GPU 0000:29:00.0: GPU has fallen off the bus.", "0000:29:00"),
    (
        "NVRM: The NVIDIA GPU 0000:18:00.0\nNVRM: (PCI ID: 10de:2901) installed in this system has\nNVRM: fallen off the bus and is not responding to commands.",  # noqa: E501 - a line as it is
        "0000:18:00",
    ),
    ("NVRM: fallen off the bus and is not responding to commands.", None),
]

PREFIXES = [
    "May 25 12:34:56 gpu-7 kernel: [12345.678901] ",
    "[Mon May 25 12:34:56 2026] ",
    "kern: warning: [2026-05-25T12:34:56.789Z]: ",
    "message repeated 5 times: [ ",
]

QUIET = [
    "",
    "NVRM: Xid error: xyz",
    "NVRM: Xid (invalid): 79, x",
    "NVRM: Xid (PCI:0000:05:00): , GPU",
    "NVRM: Xid (PCI:0000:05:00): 123456, GPU",
    "Xid (PCI:0000:05:00): 79, GPU has fallen off the bus.",
    "my program says GPU has fallen off the bus",
    "NVRM: GPU at PCI:0000:9b:00: GPU-2b1d53a1-0000-0000-0000-000000000000",
    "NVRM: The NVIDIA GPU 0000:18:00.0",
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86.15",
    "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)",
]


@pytest.mark.parametrize(("head", "tail", "expected"), XIDS)
@pytest.mark.parametrize("prefix", ["", *PREFIXES])
def test_every_known_form_of_a_line_is_read_whatever_stands_before_it(
    head: str, tail: str, expected: tuple[object, ...], prefix: str
) -> None:
    xid = read_xid(prefix + head + tail)
    assert xid is not None
    assert (xid.pci, xid.code, xid.pid, xid.name) == expected
    assert xid.text == " ".join(tail.split())


@pytest.mark.parametrize(("line", "pci"), FALLEN_OFF)
@pytest.mark.parametrize("prefix", ["", *PREFIXES])
def test_a_gpu_that_fell_off_the_bus_is_xid_79_also_without_the_word(line: str, pci: str | None, prefix: str) -> None:
    xid = read_xid(prefix + line)
    assert xid is not None
    assert (xid.pci, xid.code) == (pci, 79)


@pytest.mark.parametrize("line", QUIET)
def test_what_only_looks_like_a_fault_is_none(line: str) -> None:
    assert read_xid(line) is None


@given(st.text())
def test_no_text_makes_the_parser_fail(text: str) -> None:
    read_xid(text)
    normalise_pci(text)
    recovery_action(text)


@given(st.text(), st.text())
def test_a_true_start_with_any_end_is_still_read(before: str, after: str) -> None:
    xid = read_xid(f"{before}NVRM: Xid (PCI:0000:05:00): 79, {after}")
    assert xid is not None
    assert len(xid.text) <= TEXT_LIMIT


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PCI:0000:9b:00", "0000:9b:00"),
        ("0000:9b:00.0", "0000:9b:00"),
        ("00000000:9B:00.0", "0000:9b:00"),
        ("00010018:01:00", "10018:01:00"),
        ("0018:01:00", "0018:01:00"),
        ("9b:00.0", None),
        ("", None),
    ],
)
def test_a_device_has_one_name_however_it_is_spelt(text: str, expected: str | None) -> None:
    assert normalise_pci(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)", 4),
        ("GPU recovery action changed from 0x0 (None) to 0x1 (PF FLR)", 1),
        ("GPU recovery action changed from 0x4 (Drain and Reset) to 0x0 (None)", 0),
        ("GPU recovery action changed", None),
    ],
)
def test_the_recovery_action_is_the_number_not_the_words(text: str, expected: int | None) -> None:
    assert recovery_action(text) == expected


def test_nonfatal_is_a_word_of_its_own() -> None:
    assert says_nonfatal("RLW_RXPIPE Nonfatal XC0")
    assert says_nonfatal("12028, Non-fatal, Link 32")
    assert not says_nonfatal("NETIR_LINK_EVT  Fatal   XC0")
