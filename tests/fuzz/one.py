"""`python one.py TARGET [libFuzzer's options] CORPUS`, or `python one.py TARGET FILE` to run one input again."""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[1]))

with atheris.instrument_imports(include=["rlguard", "fuzz_kit"]):
    import fuzz_kit

if __name__ == "__main__":
    name = sys.argv.pop(1)
    atheris.Setup(sys.argv, fuzz_kit.TARGETS[name].run)
    atheris.Fuzz()
