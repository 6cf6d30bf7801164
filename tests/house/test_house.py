"""The house itself: who may import whom, where clocks are read, how large a file may be, and what no file may hold."""

from __future__ import annotations

import ast
import dataclasses
import re
import subprocess
import sys
import typing
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from rlguard.model import Incident
from rlguard.wire import KINDS

ROOT: Final = Path(__file__).parents[2]
MOST_LINES: Final = 450
DATA: Final = (".lock", ".sum", ".mod", ".json", ".yaml", ".md", ".jsonl")
"""Files whose length is not ours to choose, or that are read from top to bottom."""
USERS_IMAGE: Final = ("rlguard/launch", "rlguard/train")
FIRST_RULES: Final = ("C1", "C2", "C3", "C5", "C6", "C8", "M1", "M2", "A1", "A2", "A3", "A4", "A5", "A6", "A9")
"""The rules of the protocol that nothing may run without."""
DURATIONS: Final = frozenset(
    {
        "Figures.heartbeat_age",
        "MemberReport.heartbeat_age",
        "Notice.seconds_left",
        "Order.grace",
        "Grant.save_within",
        "Timing.stage_interval",
        "Timing.flush_interval",
        "Timing.stall_limit",
        "Timing.attempts_window",
    }
)
"""Every number with a fraction in a message: seconds that are left, or that have passed, never a moment."""
WALL_CLOCKS: Final = frozenset({"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "date.today"})
WHERE_WALL_CLOCKS_ARE_READ: Final = {
    "rlguard/io/clock.py": "the one wall clock of the processes: incidents and conditions show it to people",
    "agent/rlguard_agent/node.py": "the stamp of a Node condition",
    "controller/rlguard_controller/issuer.py": "the dates of a certificate",
    "controller/rlguard_controller/lease.py": "the stamp of the Lease",
    "controller/rlguard_controller/perform.py": "the stamp of an Event",
    "controller/rlguard_controller/trust.py": "the dates of the own certificate",
}


@cache
def tracked() -> tuple[Path, ...]:
    """Every file of the project, relative to its root."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return tuple(path for path in map(Path, listed.splitlines()) if (ROOT / path).is_file())


def texts() -> list[tuple[Path, str]]:
    return [(path, (ROOT / path).read_text(encoding="utf-8", errors="replace")) for path in tracked()]


def sources(*folders: str) -> list[Path]:
    return [path for path in tracked() if path.suffix == ".py" and str(path).startswith(folders or ("",))]


def test_nobody_imports_what_is_not_below_it() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=50)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_file_is_too_large_to_be_read_at_once() -> None:
    lines = {str(path): text.count("\n") for path, text in texts() if not path.name.endswith(DATA)}
    assert {path: count for path, count in lines.items() if count > MOST_LINES} == {}


def test_locks_say_what_and_not_from_where() -> None:
    locks = [(path, text) for path, text in texts() if path.suffix in (".lock", ".sum")]
    assert len(locks) > 2
    assert [path for path, text in locks if "://" in text] == []


def test_no_file_names_a_place_of_one_machine() -> None:
    # GKE keeps the GPU driver of its nodes under the one that is let through.
    places = re.compile(r"(?<![\w.])/(?:work|root|home)/(?!kubernetes/bin/nvidia)\w+")
    assert [f"{path}: {found[0]}" for path, text in texts() if (found := places.search(text))] == []


def test_each_package_says_what_may_live_there() -> None:
    ours = sources("rlguard", "agent", "sidecar", "controller", "chaos")
    packages = [path for path in ours if path.stem == "__init__"]
    assert len(packages) > 10
    silent = [path for path in packages if len(ast.get_docstring(ast.parse((ROOT / path).read_text())) or "") < 40]
    assert silent == []


@pytest.mark.parametrize("path", sources(*USERS_IMAGE), ids=str)
def test_what_runs_in_the_users_image_is_python_310(path: Path) -> None:
    tree = ast.parse((ROOT / path).read_text(), feature_version=(3, 10))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert not names & {"StrEnum", "Self", "UTC", "assert_never", "Never", "reveal_type"}, "came with Python 3.11"
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "ExceptionGroup"]


@pytest.mark.parametrize("rule", FIRST_RULES)
def test_each_rule_of_the_protocol_has_a_test_by_its_name(rule: str) -> None:
    named = re.compile(rf"^(?:async )?def test_{rule.lower()}_", re.MULTILINE)
    assert [path for path in sources("tests/") if named.search((ROOT / path).read_text())] != []


def test_a6_every_moment_in_a_message_is_told_as_a_duration() -> None:
    assert {name for kind in KINDS.values() for name in _fractions(kind)} == DURATIONS


def test_a6_wall_clocks_are_read_only_for_people_and_for_certificates() -> None:
    found = {str(path) for path in sources("rlguard", "agent", "sidecar", "controller") if _reads_wall_clock(path)}
    assert found == set(WHERE_WALL_CLOCKS_ARE_READ)


def _fractions(kind: Any) -> set[str]:
    """The fields of type float, at any depth. An incident is for people, its times are compared by no rule."""
    if kind is Incident:
        return set()
    if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
        hints = typing.get_type_hints(kind)
        own = {f"{kind.__name__}.{name}" for name, hint in hints.items() if float in (hint, *typing.get_args(hint))}
        return own.union(*map(_fractions, hints.values()))
    return set().union(*map(_fractions, typing.get_args(kind)))


def _reads_wall_clock(path: Path) -> bool:
    tree = ast.parse((ROOT / path).read_text())
    return any(ast.unparse(node) in WALL_CLOCKS for node in ast.walk(tree) if isinstance(node, ast.Attribute))
