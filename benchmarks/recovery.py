"""What a fault costs: every act of the demo on the lab, beside the same job without rlguard in the same run."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from table import Row, arguments, show

RATIO = 1.3


def main() -> int:
    """Play the demo (as root, some five minutes) or read the figures of one."""
    parser = arguments(__doc__)
    parser.add_argument("--figures", type=Path, help="demo.json of a demo that has run already")
    options = parser.parse_args()
    figures = options.figures or play()
    acts = {act["name"]: act for act in json.loads(figures.read_text())["acts"]}
    return show(rows(acts), as_json=options.json)


def play() -> Path:
    """Run the demo; its output goes to stderr, so that stdout stays one JSON object."""
    build = Path(tempfile.mkdtemp(prefix="rlguard-bench-"))
    command = [sys.executable, "-m", "rlguard_chaos", "demo", "--build", str(build)]
    subprocess.run(command, stdout=sys.stderr, check=True)
    return build / "demo.json"


def rows(acts: dict[str, dict[str, Any]]) -> list[Row]:
    """The promises that the demo measures."""
    killed, lost = acts["rank-killed"], acts["leader-lost"]
    took, bare = killed["time_to_first_step_s"], killed["bare_restart_s"]
    holds = took <= RATIO * bare
    made = [
        Row(
            "rank killed: first new step, beside a bare restart",
            took,
            "s",
            bare,
            f"<= {RATIO} x rival",
            holds,
        ),
        Row("rank killed: first new step, beside LWS + torchrun", took, "s", killed["baseline_s"], "", None),
        Row("leader's node lost: first new step", lost["time_to_first_step_s"], "s", lost["baseline_s"], "", None),
    ]
    for name, act in acts.items():
        if act["detected_after_s"] is not None:
            made.append(Row(f"{name}: seen after", act["detected_after_s"], "s", None, "", None))
            made.append(Row(f"{name}: steps lost", act["lost_steps"], "steps", None, "", None))
    return made


if __name__ == "__main__":
    sys.exit(main())
