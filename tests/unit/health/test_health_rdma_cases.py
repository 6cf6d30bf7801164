"""The corpus of RDMA cases: trees of sysfs that change over time, and what must be told of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlguard.health.rdma.learned import Expectation
from rlguard.health.rdma.snapshot import read_snapshot
from rlguard.health.rdma.table import Code, builtin
from rlguard.health.rdma.watch import View, faults, fold

CORPUS = Path(__file__).parents[2] / "data" / "rdma"
CASES = sorted(CORPUS.glob("*.json"))
TABLE = builtin()
UP_FOR = 86_400.0
"""Seconds since boot at second 0 of a case."""


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def told(case: dict[str, Any]) -> dict[float, list[list[str]]]:
    """What is told at each look of a case."""
    files = read(CORPUS / "machines" / f"{case['machine']}.json")
    view, changes, seen = View(TABLE, Expectation(**case["expected"])), list(case["changes"]), {}
    for at in range(0, case["timeline"][-1]["at"] + case["every"], case["every"]):
        while changes and changes[0]["at"] <= at:
            change = changes.pop(0)
            gone = tuple(change["remove"])
            files = {path: text for path, text in files.items() if not (gone and path.startswith(gone))}
            files |= change["set"]
        view = fold(view, read_snapshot(files), UP_FOR + at)
        seen[at] = [[fault.code, fault.device, fault.severity.value] for fault in faults(view)]
    return seen


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_case_tells_what_it_must_when_it_must(path: Path) -> None:
    case = read(path)
    seen = told(case)
    assert {moment["at"]: seen[moment["at"]] for moment in case["timeline"]} == {
        moment["at"]: moment["faults"] for moment in case["timeline"]
    }
    if path.stem.startswith("quiet-"):
        assert not any(seen.values())


def test_there_are_as_many_quiet_cases_as_detections() -> None:
    quiet = [path for path in CASES if path.stem.startswith("quiet-")]
    assert 2 * len(quiet) >= len(CASES) > 40


def test_every_code_that_a_tree_can_show_has_a_case() -> None:
    codes = {fault[0] for path in CASES for moment in read(path)["timeline"] for fault in moment["faults"]}
    assert codes == {code.value for code in Code} - {Code.HUNG.value}
