"""Copies what runs in the user's image into a folder: `python3 -m rlguard.launch.install /rlguard/lib`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Final

_SOURCE: Final = Path(__file__).resolve().parents[1]
_INIT: Final = '"""The part of rlguard that runs inside the user\'s image."""\n'


def install(source: Path, target: Path) -> None:
    """Copy `launch`, `train` and the hook from the package folder `source` into the empty or older `target`.

    Raises OSError, naming the path.
    """
    package = target / "rlguard"
    for part in ("launch", "train"):
        shutil.copytree(
            source / part, package / part, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "site")
        )
    (package / "__init__.py").write_text(_INIT)
    shutil.copyfile(source / "launch" / "site" / "sitecustomize.py", target / "sitecustomize.py")


def main(arguments: list[str]) -> int:
    """Install into the folder named; 2 on wrong usage, 1 when it cannot be written."""
    if len(arguments) != 1:
        print("usage: python3 -m rlguard.launch.install TARGET", file=sys.stderr)  # noqa: T201 # usage
        return 2
    try:
        install(_SOURCE, Path(arguments[0]))
    except OSError as error:
        print(f"cannot install into {arguments[0]}: {error}; is it mounted and writable?", file=sys.stderr)  # noqa: T201 # the init container's log
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
