"""From the ranks' own log to figures, curve and page; and the bare twin of a job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rlguard_chaos import baseline, report, steplog
from rlguard_chaos.curve import Mark, draw
from rlguard_chaos.kubectl import split_json
from rlguard_chaos.run import Act
from rlguard_chaos.steplog import LoggedStep

STEPS = [
    LoggedStep(10.0, 1, 2, 20.0, "1.1"),
    LoggedStep(11.0, 2, 2, 25.0, "1.1"),
    LoggedStep(19.0, 2, 2, 24.0, "1.2"),
    LoggedStep(20.0, 3, 2, 30.0, "1.2"),
]


def test_a_torn_last_line_of_a_killed_rank_is_left_out(tmp_path: Path) -> None:
    """Whole lines count, a cut one does not, garbage neither."""
    log = tmp_path / "steps-rank0.jsonl"
    log.write_text('{"t": 1.0, "step": 1, "return": 9.5, "world": 2, "incarnation": "1.1"}\nnonsense\n{"t": 2.0, "st')
    assert steplog.read(log) == [LoggedStep(1.0, 1, 2, 9.5, "1.1")]
    assert steplog.read(tmp_path / "absent") == []


def test_the_first_step_after_a_moment() -> None:
    """What the figures of an act are made of."""
    assert steplog.first_after(STEPS, 11.5) == STEPS[2]
    assert steplog.first_after([LoggedStep(5.0, 1, 2, 20.0, None)], 4.0) is not None, "a bare job has no incarnation"


def test_the_curve_has_one_line_for_each_incarnation_and_a_mark_for_each_fault() -> None:
    """Names are escaped: they go into a page."""
    drawing = draw(STEPS, [Mark(12.0, "<kill>")])
    assert drawing.count("<polyline") == 2
    assert "&lt;kill&gt;" in drawing
    assert "<kill>" not in drawing
    assert draw([], []) == "<p>No step carried a return.</p>"


def act(name: str, *, recovered: bool) -> Act:
    return Act(name, f"{name} <happens>", recovered=recovered, reason="why", injected_at=12.0, lost_steps=1)


def test_the_page_is_self_contained_and_the_figures_say_whether_all_recovered(tmp_path: Path) -> None:
    """No link to anywhere else; the JSON has a field for each figure."""
    rows = (report.Row(act("a", recovered=True), 6.0, 9.0), report.Row(act("b", recovered=False), None, None, 90.0))
    figures, page = report.write(report.Report(rows, tuple(STEPS)), tmp_path / "build")
    written = json.loads(figures.read_text())
    assert written["passed"] is False
    assert [item["baseline_s"] for item in written["acts"]] == [9.0, None]
    text = page.read_text()
    assert "http" not in text
    assert "a &lt;happens&gt;" in text
    assert "not within 90 s" in text


def test_the_bare_twin_has_no_label_no_devices_its_own_log_and_notes_its_starts(tmp_path: Path) -> None:
    """All else is the guarded job's."""
    container = {
        "name": "trainer",
        "command": ["torchrun", "--log-dir=/checkpoints/ppo-log"],
        "args": ["train.py", "--finish-file=/checkpoints/ppo-log/finish"],
        "resources": {"limits": {"nvidia.com/gpu": "8"}},
    }
    pod = {"metadata": {"labels": {"rlguard.io/guard": "enabled"}}, "spec": {"containers": [container]}}
    job: dict[str, Any] = {"metadata": {"name": "ppo"}, "spec": {"leaderWorkerTemplate": {"workerTemplate": pod}}}
    twin = baseline.bare_twin(job, "bare", tmp_path, ("node0", "node1"))
    template = twin.manifest["spec"]["leaderWorkerTemplate"]
    made = template["leaderTemplate"]["spec"]["containers"][0]
    assert template["leaderTemplate"]["metadata"]["labels"] == {}
    assert template["workerTemplate"]["spec"]["nodeSelector"] == {"kubernetes.io/hostname": "node1"}
    assert "resources" not in made
    own = ["torchrun", "--log-dir=/checkpoints/bare", "train.py", "--finish-file=/checkpoints/bare/finish"]
    assert made["args"] == own
    assert pod["metadata"]["labels"] == {"rlguard.io/guard": "enabled"}, "the job itself is left as it is"


def test_the_latest_start_before_the_first_step_is_when_the_command_began(tmp_path: Path) -> None:
    """The later member of the two decides."""
    starts = tmp_path / "starts"
    starts.write_text("5.0\n5.5\n40.0\n")
    assert baseline.latest_start(starts, 4.0, 12.0) == 5.5
    assert baseline.latest_start(tmp_path / "absent", 4.0, 12.0) == 4.0


def test_a_stream_of_json_is_cut_where_values_end() -> None:
    """What is not whole yet waits for more."""
    values, rest = split_json('{"a": 1}\n{"b": [2]}\n{"c": ')
    assert values == [{"a": 1}, {"b": [2]}]
    assert rest == '{"c": '
