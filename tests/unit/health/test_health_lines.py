"""Parsers of kernel lines: what cannot be said by a line of the corpus, and that nothing makes them fail."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlguard.health.catalogue import builtin
from rlguard.health.lines import dispatch, hardware, network, nvidia, nvswitch, storage, tasks
from rlguard.health.lines.line import TEXT_LIMIT, Line

TABLE = builtin()
FAMILIES = [nvidia, nvswitch, network, hardware, tasks, storage]
CORPUS = sorted((Path(__file__).parents[2] / "data" / "kernel").glob("*.log"))
SAMPLES = [line for log in CORPUS for line in log.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
HOSTILE = st.one_of(
    st.text(max_size=300),
    st.builds(lambda line, cut: line[:cut], st.sampled_from(SAMPLES), st.integers(0, 300)),
    st.builds(
        lambda one, noise, other: one + noise + other,
        st.sampled_from(SAMPLES),
        st.text(max_size=20),
        st.sampled_from(SAMPLES),
    ),
    st.builds(
        lambda line, at, noise: line[:at] + noise + line[at + 1 :],
        st.sampled_from(SAMPLES),
        st.integers(0, 300),
        st.text(max_size=3),
    ),
)


@pytest.mark.parametrize("read", [pytest.param(family.read, id=family.__name__) for family in FAMILIES])
@given(text=HOSTILE)
def test_no_line_makes_a_parser_fail_and_what_it_tells_is_bounded(
    read: Callable[[str], Line | None], text: str
) -> None:
    line = read(text)
    if line is not None:
        assert len(line.text) <= TEXT_LIMIT
        assert 0 < len(line.device) <= 150
        assert len(line.code) <= 40


@given(HOSTILE)
def test_what_is_read_was_worth_reading(text: str) -> None:
    if dispatch.read(text) is not None:
        assert dispatch.worth_reading(text.encode("utf-8", "replace"))


@given(HOSTILE)
def test_every_line_that_tells_something_has_a_row(text: str) -> None:
    line = dispatch.read(text)
    assert line is None or line.code in TABLE.rows or line.code.startswith(("xid-", "sxid-"))


@given(HOSTILE)
def test_a_line_is_read_whatever_stands_before_it(text: str) -> None:
    prefixed = dispatch.read(f"Nov 30 12:00:00 host kernel: [  12.345678] {text}")
    plain = dispatch.read(text)
    if plain is not None and prefixed is not None:
        assert (plain.code, plain.device) == (prefixed.code, prefixed.device)
    else:
        assert plain is None or prefixed is not None


@pytest.mark.parametrize("family", [pytest.param(family, id=family.__name__) for family in FAMILIES])
@pytest.mark.parametrize("filler", ["a", " ", ":", "0", "(", "0000:00:00.0 ", "pod", "x-OST0000-osc-"])
def test_a_huge_line_costs_little(family: object, filler: str) -> None:
    read: Callable[[str], Line | None] = family.read  # type: ignore[attr-defined]
    telltales: tuple[str, ...] = family.TELLTALES  # type: ignore[attr-defined]
    began = time.process_time()
    for telltale in telltales:
        read((telltale + filler * 8192)[:8192])
        read((filler * 8192)[: 8192 - len(telltale)] + telltale)
    assert time.process_time() - began < 1.0


def test_the_ports_of_one_adapter_are_told_apart() -> None:
    lines = [network.read(f"mlx5_core 0000:0C:00.{port} eth{port}: Link down") for port in (0, 1)]
    assert [line and line.device for line in lines] == ["0000:0c:00.0", "0000:0c:00.1"]


def test_the_victim_s_pod_is_named_and_not_the_one_above_it() -> None:
    other, victim = "0a1b2c3d-1111-2222-3333-444455556666", "9a1b2c3d-1111-2222-3333-444455556666"
    assert tasks.pod_of(f"oom_memcg=/kubepods/pod{other},task_memcg=/kubepods/pod{victim}/9f") == victim
    assert tasks.pod_of("task_memcg=/system.slice") is None


def test_the_driver_names_a_gpu_before_its_first_xid() -> None:
    line = "NVRM: GPU at PCI:0000:9b:00: GPU-5e6d3ac5-1b1c-4b0e-8d1e-0a1b2c3d4e5f"
    assert nvidia.read_introduction(line) == ("0000:9b:00", "GPU-5e6d3ac5-1b1c-4b0e-8d1e-0a1b2c3d4e5f")
    assert nvidia.read_introduction("NVRM: GPU at PCI:0000:9b:00: no name") is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000 ...", ("NETIR_LINK_EVT", 1, 0x21, 0)),
        ("RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x0)", ("RLW_RXPIPE", 13, 0, 8)),
        ("MSE_WATCHDOG Fatal XC1 i0 Link -1 (0x00000007", ("MSE_WATCHDOG", None, 0, None)),
        ("NETIR_LINK_EVT Fatal XC0 i0 Link 01", ("NETIR_LINK_EVT", 1, None, None)),
    ],
)
def test_an_nvlink_5_fault_is_decoded(text: str, expected: tuple[object, ...]) -> None:
    link = nvidia.read_nvlink(text)
    assert link is not None
    assert (link.unit, link.link, link.subcode, link.status) == expected


def test_a_link_fault_says_when_the_other_end_is_to_blame() -> None:
    line = "NVRM: Xid (PCI:0009:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000"
    fault = TABLE.read(line)
    assert fault is not None
    assert "the other end of the link is to blame" in fault.detail
    local = TABLE.read(line.replace("0x021425c6", "0x001001c6"))
    assert local is not None
    assert "to blame" not in local.detail


@given(st.text())
def test_no_text_makes_the_decoders_fail(text: str) -> None:
    nvidia.read_nvlink(text)
    nvidia.read_nvlink(f"NETIR Fatal XC0 i0 Link {text}")
    nvidia.read_introduction(f"NVRM: GPU at {text}")
    nvidia.named_cause(f"caused by previous Xid {text}")
    tasks.pod_of(text)


def test_a_file_name_that_the_kernel_shows_is_nothing_that_it_says() -> None:
    name = "NVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus."
    assert builtin().read_line(f"process '/tmp/{name}' started with executable stack") == ()
    assert builtin().read_line(name) != ()
