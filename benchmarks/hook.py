"""What the training hook costs the training thread: the heartbeat of a step in which nothing is due.

Runs in the user's environment (torch, no rlguard installed); started with another Python it starts itself there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from table import Row, arguments, show

ROOT = Path(__file__).parents[1]
CALLS, ROUNDS = 100_000, 7
LIMIT_US = 2.0
MEASURE = """
import json, statistics, sys, time, torch
import rlguard.train
calls, rounds = map(int, sys.argv[1:])
guard = rlguard.train.Guard({"model": torch.nn.Linear(4, 4), "rng": rlguard.train.Rng()})
guard.resume()
def timed(call):
    begun = time.perf_counter()
    for step in range(1, calls + 1):
        call(step)
    return (time.perf_counter() - begun) / calls * 1e6
hook = [timed(guard.step) for _ in range(rounds)]
nothing = [timed(lambda step: None) for _ in range(rounds)]
print(json.dumps([statistics.median(hook), statistics.median(nothing)]))
"""


def main() -> int:
    """Measure in a rank's own environment, with pages in shared memory."""
    options = arguments(__doc__).parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as shm:
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "RLGUARD_SHM": shm,
            "RLGUARD_RUN": shm,
            "RLGUARD_INCARNATION": "1.1",
            "RANK": "0",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "1",
            "LOCAL_WORLD_SIZE": "1",
        }
        command = [str(ROOT / ".venv-user" / "bin" / "python"), "-c", MEASURE, str(CALLS), str(ROUNDS)]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, cwd=shm)
    hook, nothing = json.loads(done.stdout.splitlines()[-1])
    holds = hook <= LIMIT_US
    row = Row("guard.step, nothing due (rival: an empty call)", hook, "us", nothing, f"<= {LIMIT_US} us", holds)
    return show([row], as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
