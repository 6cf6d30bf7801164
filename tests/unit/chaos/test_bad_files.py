"""Whatever is given as an experiment or a cluster, the answer is one line on stderr and exit status 2."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from rlguard_chaos.__main__ import main

HEAD = "name: n\ntitle: t\nsteps:\n"
BOMB = (
    HEAD
    + "- &a [x, x, x, x, x, x, x, x]\n"
    + "".join(f"- &{b} [{','.join(['*' + a] * 8)}]\n" for a, b in zip("abcdefghi", "bcdefghij", strict=True))
)
FILES: dict[str, bytes] = {
    "empty": b"",
    "binary": bytes(range(256)),
    "syntax": b"{{{",
    "list": b"[1, 2]",
    "deep": b"[" * 20_000,
    "bomb": BOMB.encode(),
    "merge bomb": (HEAD + "- &a {x: 1}\n- {<<: [*a, *a]}\n").encode(),
    "unknown alias": (HEAD + "- *nobody\n").encode(),
    "an object": b"name: !!python/object/apply:os.system ['true']",
    "a key that is a list": b"? [a]\n: b\n",
    "a date that is none": b"name: 2001-99-99",
    "steps": (HEAD + "- " + "[" * 500 + "]" * 500 + "\n").encode(),
    "phase": (HEAD + "- expect: {within: 1, phase: [a]}\n").encode(),
    "huge": b"#" * (2 << 20),
}
SAMPLE = "rank-killed"


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr().err
    assert said.startswith("rlguard: ")
    assert said.count("\n") == 1
    assert len(said) < 1000
    return said


@pytest.mark.parametrize("content", FILES.values(), ids=FILES)
def test_a_bad_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    assert main(["chaos", "run", str(path), "--job", "j", "--kubeconfig", str(tmp_path / "none")]) == 2
    assert "bad.yaml" in one_line(capsys)


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a kubectl on PATH that reaches nothing and says why."""
    program = tmp_path / "bin" / "kubectl"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'The connection to the server was refused' >&2\nexit 1\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)


@pytest.mark.usefixtures("kubectl")
def test_a_cluster_that_cannot_be_reached_is_said_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "run", SAMPLE, "--job", "j", "--kubeconfig", str(tmp_path / "none")]) == 2
    assert "refused" in one_line(capsys)


def test_a_file_that_may_not_be_touched_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_name: object) -> None:
        raise PermissionError(13, "Permission denied", "/some/file")

    monkeypatch.setattr("rlguard_chaos.cli._find", refuse)
    assert main(["chaos", "run", SAMPLE, "--job", "j"]) == 2
    assert "/some/file" in one_line(capsys)


@pytest.mark.parametrize("words", [["status"], ["kubectl", "get", "pods"], ["node", "kill", "node0"], ["down"], ["up"]])
def test_the_lab_says_that_it_needs_root(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    assert main(["lab", *words]) == 2
    assert "sudo" in one_line(capsys)
