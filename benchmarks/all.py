"""Run every benchmark of this folder and print one table."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from table import Row, lines

HELPERS = {"all.py", "table.py", "agent_rig.py"}


def main() -> int:
    """One after the other: they must not disturb each other."""
    rows: list[Row] = []
    broken: list[str] = []
    for script in sorted(path for path in Path(__file__).parent.glob("*.py") if path.name not in HELPERS):
        print(f"{script.name} ...", file=sys.stderr, flush=True)
        done = subprocess.run([sys.executable, str(script), "--json"], stdout=subprocess.PIPE, text=True, check=False)
        if done.stdout.startswith("{"):
            rows += [Row(**row) for row in json.loads(done.stdout)["rows"]]
        else:
            broken.append(script.name)
    lines(rows)
    for name in broken:
        print(f"{name} printed no figures (see above)")
    return int(bool(broken) or any(row.holds is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
