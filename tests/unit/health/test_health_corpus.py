"""The replay corpus: kernel logs in `tests/data/kernel` and what the agent must make of them (docs/corpus.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlguard.health.catalogue import LINE_TABLES, builtin, from_files
from rlguard.health.replay import COMMENT, Replay, Step, read_log, replay
from rlguard.model import Severity, Verdict

FOLDER = Path(__file__).parents[2] / "data" / "kernel"
TABLE = builtin()


def expected_of(log: Path) -> dict[str, Any]:
    expected = json.loads(log.with_suffix(".expected.json").read_text(encoding="utf-8"))
    assert isinstance(expected, dict)
    return expected


def lines_of(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8").splitlines()


def cases(kind: str) -> list[Any]:
    return [pytest.param(log, id=log.stem) for log in sorted(FOLDER.glob("*.log")) if kind in expected_of(log)]


def single_lines() -> list[Any]:
    return [
        pytest.param(lines_of(log)[each["line"] - 1], each, id=f"{log.stem}:{each['line']}")
        for log in sorted(FOLDER.glob("*.log"))
        for each in expected_of(log).get("each", [])
    ]


def play(lines: list[str]) -> Replay:
    return replay(read_log(lines), TABLE)


def shown(step: Step) -> dict[str, Any]:
    return {
        "line": step.number,
        "told": list(step.told),
        "began": [f"{_name(one.id)} {one.severity} {one.repair}" for one in step.began],
        "ended": list(step.ended),
        "verdict": step.verdict.value,
    }


def _name(notice_id: str) -> str:
    return notice_id.partition("/")[2]


@pytest.mark.parametrize(("line", "expected"), single_lines())
def test_a_line_by_itself_is_what_it_is_expected_to_be(line: str, expected: dict[str, Any]) -> None:
    (entry,) = read_log([line])
    sighting = next(iter(TABLE.read_line(entry.text)))
    fault = getattr(sighting, "fault", None)
    assert fault is not None
    seen = {name: getattr(fault, name) for name in ("code", "device", "severity", "repair")}
    assert {**seen, "verdict": play([line]).verdict} == {
        name: value for name, value in expected.items() if name != "line"
    }


@pytest.mark.parametrize("log", cases("timeline"))
def test_a_log_has_the_timeline_that_is_expected(log: Path) -> None:
    expected = expected_of(log)
    played = play(lines_of(log))
    assert [shown(step) for step in played.steps] == expected["timeline"]
    assert played.verdict == expected["verdict"]


@pytest.mark.parametrize("log", cases("quiet"))
def test_what_must_stay_quiet_stays_quiet(log: Path) -> None:
    played = play(lines_of(log))
    assert [shown(step) for step in played.steps if step.began] == []
    assert (played.verdict, played.notices) == (Verdict.HEALTHY, ())


@pytest.mark.parametrize("code", sorted(from_files(LINE_TABLES).rows))
def test_every_row_of_the_tables_has_a_line_that_tells_it(code: str) -> None:
    told = {each["code"] for log in FOLDER.glob("*.log") for each in expected_of(log).get("each", [])}
    timelines = {
        name for log in FOLDER.glob("*.log") for step in expected_of(log).get("timeline", []) for name in step["told"]
    }
    assert code in told | timelines


def test_there_are_at_least_as_many_lines_that_must_stay_quiet_as_lines_that_must_not() -> None:
    loud = sum(
        each["severity"] != Severity.INFO for log in FOLDER.glob("*.log") for each in expected_of(log).get("each", [])
    )
    quiet = [line for log in FOLDER.glob("*.log") if "quiet" in expected_of(log) for line in lines_of(log)]
    assert sum(not line.startswith(COMMENT) for line in quiet) >= loud


def test_every_log_says_what_is_expected_of_it() -> None:
    for log in FOLDER.glob("*.log"):
        assert {"each", "timeline", "quiet"} & expected_of(log).keys(), log.name
    assert {path.name.removesuffix(".expected.json") for path in FOLDER.glob("*.json")} == {
        log.stem for log in FOLDER.glob("*.log")
    }
