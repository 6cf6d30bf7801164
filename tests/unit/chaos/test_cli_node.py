"""`rlguard node`: what people type, and what they get."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from rlguard.health.catalogue import builtin
from rlguard.health.described import with_every_code
from rlguard.model import Repair
from rlguard_chaos.__main__ import main
from rlguard_chaos.words import MENDS

Output = pytest.CaptureFixture[str]
KERNEL = Path(__file__).parents[2] / "data" / "kernel"


def explained(capsys: Output, *words: str) -> dict[str, object]:
    assert main(["node", "explain", *words, "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert isinstance(value, dict)
    return value


@pytest.mark.parametrize("word", ["79", "xid-79", "XID-79", "xid79", "Xid 79", " xid 79 "])
def test_a_code_may_be_spelled_as_people_spell_it(capsys: Output, word: str) -> None:
    assert explained(capsys, word)["code"] == "xid-79"


def test_a_number_that_is_no_xid_is_an_sxid(capsys: Output) -> None:
    assert explained(capsys, "20034")["code"] == "sxid-20034"


def test_an_explanation_says_what_it_is_what_to_do_what_ends_it_and_who_says_so(
    capsys: Output,
) -> None:
    assert main(["node", "explain", "79"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for words in (
        "fallen off the bus",
        "fatal, for the gpu",
        "reboot the node",
        "over with a reboot",
        "NVIDIA XID catalogue",
    ):
        assert words in shown


@pytest.mark.parametrize("code", sorted(with_every_code(builtin()).rows))
def test_every_code_can_be_explained(capsys: Output, code: str) -> None:
    assert main(["node", "explain", code]) == 0
    assert code in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "near"), [("oom-kil", "oom-kill"), ("sxid-20035", "sxid-20034"), ("what", "codes look like")]
)
def test_an_unknown_code_is_said_to_be_unknown_with_what_is_near(capsys: Output, word: str, near: str) -> None:
    assert main(["node", "explain", word]) == 2
    message = capsys.readouterr().err
    assert "no code of the tables" in message
    assert near in message


def test_every_repair_has_words() -> None:
    assert set(MENDS) == set(Repair)


def test_one_s_own_rows_are_explained_and_a_bad_file_is_refused(tmp_path: Path, capsys: Output) -> None:
    mine = tmp_path / "mine.json"
    mine.write_text('{"version": "mine", "rows": [{"code": "xid-63", "severity": "info"}]}')
    assert explained(capsys, "63", "--catalogue", str(mine))["severity"] == "info"
    mine.write_text("{")
    assert main(["node", "explain", "63", "--catalogue", str(mine)]) == 2
    assert "fault table" in capsys.readouterr().err


def test_a_replay_shows_what_stands_at_the_end_and_says_so_in_its_status(capsys: Output) -> None:
    assert main(["node", "replay", str(KERNEL / "gpu-falls-off.log")]) == 1
    shown = capsys.readouterr().out
    for words in ("xid-79", "lost", "reboot the node"):
        assert words in shown
    assert main(["node", "replay", str(KERNEL / "ecc-reset-clears.log")]) == 0
    assert "no fault stands" in capsys.readouterr().out


def test_a_replay_reads_a_pipe_whatever_bytes_come(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"\xff\xfe\x00 garbage\n[1.0] NVRM: Xid (PCI:0000:9b:00): 79, \xff\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
    assert main(["node", "replay", "-", "--json"]) == 1
    played = json.loads(capsys.readouterr().out)
    assert (played["verdict"], [notice["code"] for notice in played["notices"]]) == ("lost", ["xid-79"])


def test_of_a_line_without_an_end_only_the_beginning_is_read(tmp_path: Path, capsys: Output) -> None:
    log = tmp_path / "log"
    log.write_text("x" * 100_000 + "NVRM: Xid (PCI:0000:9b:00): 79, x\nNVRM: Xid (PCI:0000:06:00): 95, x\n")
    assert main(["node", "replay", str(log), "--json"]) == 1
    (notice,) = json.loads(capsys.readouterr().out)["notices"]
    assert notice["code"] == "xid-95"


def test_lines_of_user_space_are_believed_only_when_asked_for(tmp_path: Path, capsys: Output) -> None:
    log = tmp_path / "log"
    log.write_text("12,1,1,-;NVRM: Xid (PCI:0000:9b:00): 79, x\n")
    assert main(["node", "replay", str(log)]) == 0
    assert main(["node", "replay", str(log), "--any"]) == 1
    assert "[" not in capsys.readouterr().err


def test_a_log_that_is_not_there_is_said_in_one_line(capsys: Output) -> None:
    assert main(["node", "replay", "/nowhere/log"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_markup_in_a_log_is_only_text(tmp_path: Path, capsys: Output) -> None:
    log = tmp_path / "log"
    log.write_text("NVRM: Xid (PCI:0000:9b:00): 13, [/bold][red] x [link=y]\n")
    assert main(["node", "replay", str(log)]) == 1
    assert "[/bold]" in capsys.readouterr().out


def test_codes_that_no_kernel_line_tells_are_explained_too(capsys: Output) -> None:
    assert explained(capsys, "rdma-port-down")["repair"] == "reboot"
    assert explained(capsys, "storage-hung")["clears"] == "seen"
    assert main(["node", "explain", "gpu-lost"]) == 0
    assert "nothing more of it to be seen" in " ".join(capsys.readouterr().out.split())


def test_an_empty_log_is_not_taken_for_a_healthy_machine(tmp_path: Path, capsys: Output) -> None:
    log = tmp_path / "log"
    log.write_text("\n")
    assert main(["node", "replay", str(log)]) == 2
    assert "no line in it" in capsys.readouterr().err


def test_a_file_that_is_not_there_or_no_text_is_named(tmp_path: Path, capsys: Output) -> None:
    assert main(["node", "replay", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err == f"rlguard: {tmp_path}/none: No such file or directory\n"
    mine = tmp_path / "mine.json"
    mine.write_bytes(b"\xff\xfe")
    assert main(["node", "explain", "79", "--catalogue", str(mine)]) == 2
    assert str(mine) in capsys.readouterr().err
