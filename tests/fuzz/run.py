"""`make fuzz`: every target of `fuzz_kit` for some seconds each, guided by coverage, from seeds of the test data.

What the fuzzer learns stays in `build/fuzz/<target>/corpus`, so that the next run goes on from there. What breaks a
target is printed with how to run it again, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import fuzz_kit  # noqa: E402 - its folder is no package

ONE: Final = Path(__file__).with_name("one.py")
LIMITS: Final = ("-timeout=10", "-rss_limit_mb=2048", "-max_len=32768", "-print_final_stats=1", "-verbosity=0")
SHOWN: Final = 2000


def fuzz(name: str, seconds: int, folder: Path) -> bool:
    """Run one target; false when something broke it."""
    corpus, found = folder / name / "corpus", folder / name / "found"
    for path in (corpus, found):
        path.mkdir(parents=True, exist_ok=True)
    for seed in fuzz_kit.TARGETS[name].seeds():
        (corpus / hashlib.sha256(seed).hexdigest()[:16]).write_bytes(seed)
    before = set(found.iterdir())
    options = (f"-max_total_time={seconds}", f"-artifact_prefix={found}/", *LIMITS)
    command = (sys.executable, str(ONE), name, *options, str(corpus))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", check=False)
    runs = next((line.split()[-1] for line in done.stderr.splitlines() if "number_of_executed_units" in line), "?")
    known, word = len(list(corpus.iterdir())), "BROKEN" if done.returncode else "ok"
    say(f"{name:16} {runs:>9} runs, {known:5} inputs known: {word}")
    if done.returncode:
        _show(name, done, sorted(set(found.iterdir()) - before))
    return done.returncode == 0


def _show(name: str, done: subprocess.CompletedProcess[str], inputs: list[Path]) -> None:
    told = "\n".join(line for line in done.stderr.splitlines() if not line.startswith(("INFO:", "WARNING:", "stat::")))
    say(f"{done.stdout[-SHOWN:]}{told[-SHOWN:]}")
    for path in inputs:
        say(f"the input: {path.read_bytes()[:SHOWN]!r}")
        say(f"again: PYTHONPATH=. {sys.executable} {ONE.relative_to(ROOT)} {name} {path}")


def say(text: str) -> None:
    """Print at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    """Fuzz the targets that are named, else all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=20, help="for each target (20)")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(fuzz_kit.TARGETS))
    arguments = parser.parse_args()
    unknown = set(arguments.targets) - set(fuzz_kit.TARGETS)
    if unknown:
        parser.error(f"no target: {', '.join(sorted(unknown))}")
    whole = [fuzz(name, arguments.seconds, ROOT / "build/fuzz") for name in arguments.targets or fuzz_kit.TARGETS]
    return 0 if all(whole) else 1


if __name__ == "__main__":
    sys.exit(main())
