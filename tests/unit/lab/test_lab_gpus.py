"""The GPUs that a node of the lab shows: the stand-in library and its state file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rlguard.errors import BadConfigError
from rlguard_chaos.lab import fakes, gpus, layout


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where nodes have their fakes."""
    monkeypatch.setattr(layout, "STATE", tmp_path)
    return tmp_path / "nodes"


def without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(shutil, "which", lambda _: None)


def test_a_machine_without_a_compiler_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_a_compiler(monkeypatch, tmp_path)
    assert "apt-get install gcc" in gpus.unavailable()
    with pytest.raises(BadConfigError, match="no C compiler"):
        gpus.install(tmp_path, 1)


def test_a_node_without_the_stand_in_boots_without_gpus(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, nodes: Path
) -> None:
    without_a_compiler(monkeypatch, tmp_path)
    fakes.prepare("node0")
    assert list((nodes / "node0" / "fakes" / "nvml").iterdir()) == []
    with pytest.raises(BadConfigError, match="no C compiler"):
        fakes.change_gpus("node0", {"count": 1})


def test_a_node_shows_the_gpus_that_it_says_it_has_and_keeps_what_was_changed(nodes: Path) -> None:
    if reason := gpus.unavailable():
        pytest.skip(reason)
    state = nodes / "node0" / "fakes" / "nvml" / "state"
    fakes.prepare("node0")
    assert gpus.read_state(state)["count"] == "8"
    fakes.change_gpus("node0", {"device.3.lost": 1, "device.0.serial": None})
    fakes.tell_xid("node0", 3, 79)
    fakes.tell_xid("node0", 3, 45)
    fakes.prepare("node0")
    said = gpus.read_state(state)
    assert (said["device.3.lost"], said["xid.1"], said["xid.2"]) == ("1", "3 79", "3 45")
    assert "device.0.serial" not in said
    assert sorted(path.name for path in state.parent.iterdir()) == ["libnvidia-ml.so.1", "state"]


def test_the_library_is_built_once_and_anew_when_its_source_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if reason := gpus.unavailable():
        pytest.skip(reason)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first = gpus.library()
    built = first.stat().st_mtime_ns
    assert gpus.library() == first
    assert first.stat().st_mtime_ns == built
    source = tmp_path / "stub.c"
    source.write_text(gpus.SOURCE.read_text() + "\n/* another */\n")
    monkeypatch.setattr(gpus, "SOURCE", source)
    assert gpus.library() != first


def test_the_gpus_of_a_node_are_told_apart() -> None:
    state = gpus.healthy(8)
    for what in ("uuid", "pci", "serial", "minor"):
        assert len({state[f"device.{index}.{what}"] for index in range(8)}) == 8
