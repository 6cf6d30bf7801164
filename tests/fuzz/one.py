"""`python one.py TARGET [libFuzzer's options] CORPUS`, or `python one.py TARGET FILE` to run one input again."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from random import Random

import atheris

sys.path.insert(0, str(Path(__file__).parents[1]))

with atheris.instrument_imports(include=["rlguard", "fuzz_kit"]):
    import fuzz_kit


def mutate(data: bytes, most: int, seed: int) -> bytes:
    """Half of the time another JSON value, else other bytes."""
    pick = Random(seed)  # noqa: S311 - no secret
    try:
        changed = json.dumps(fuzz_kit.flawed(json.loads(data), pick)).encode()
    except (ValueError, RecursionError):
        changed = b""
    return changed if 0 < len(changed) <= most and pick.random() < 1 / 2 else atheris.Mutate(data, most)


if __name__ == "__main__":
    target = fuzz_kit.TARGETS[sys.argv.pop(1)]
    mutators = {"custom_mutator": mutate} if target.is_json else {}
    atheris.Setup(sys.argv, target.run, **mutators)
    atheris.Fuzz()
