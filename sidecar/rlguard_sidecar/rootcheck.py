"""`python -m rlguard_sidecar.rootcheck VOLUME`: can the volume be used. A process of its own: a hung one is killed.

Prints one sentence that says what is wrong, or nothing.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Final

PATIENCE: Final = 10.0
"""Seconds after which a look at the volume is hung."""
MOST_STUCK: Final = 4
"""Killed looks that the kernel does not let die (D state) before no more are begun."""
_stuck: set[asyncio.Task[int]] = set()

FOLDER: Final = ".rlguard"
ABSENT: Final = "not mounted"
HUNG: Final = "hung"


def volume_of(root: str) -> Path:
    """The volume's folder that a checkpoint root lies in: what comes before `.rlguard`."""
    path = Path(root)
    return next((parent.parent for parent in (path, *path.parents) if parent.name == FOLDER), path.parent)


def is_there(problem: str) -> bool:
    """Whether a volume with this problem can at least be read; one that is full or read-only can."""
    return not problem.startswith((ABSENT, HUNG))


def problem_of(volume: Path) -> str:
    """What keeps the sidecar from writing there, empty if nothing. Writes nothing itself."""
    if not volume.is_dir():
        return f"{ABSENT}: {volume} does not exist; mount the volume there or make the folder on it"
    state = os.statvfs(volume)
    if state.f_flag & os.ST_RDONLY:
        return f"read-only: {volume}; mount the volume read-write"
    if state.f_bavail == 0:
        return f"full: {volume}; free space on it"
    if not os.access(volume, os.W_OK | os.X_OK):
        return f"not writable: {volume} for user {os.geteuid()}; give it write permission"
    return ""


async def check(volume: Path) -> str:
    """Look from a child process; a child that hangs is killed and left to the kernel."""
    if len(_stuck) >= MOST_STUCK:
        return f"{HUNG}: {volume} has not answered {MOST_STUCK} looks; check its server and this node's mount"
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "rlguard_sidecar.rootcheck", str(volume), stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(PATIENCE):
            output, _ = await child.communicate()
    except TimeoutError:
        return f"{HUNG}: {volume} does not answer; check its server and this node's mount"
    finally:
        if child.returncode is None:
            child.kill()
            reaped = asyncio.create_task(child.wait())
            _stuck.add(reaped)
            reaped.add_done_callback(_stuck.discard)
    return output.decode().strip() if child.returncode == 0 else f"{volume} cannot be looked at"


def main() -> None:
    """Look and say."""
    try:
        problem = problem_of(Path(sys.argv[1]))
    except OSError as error:
        problem = f"{error.strerror}: {sys.argv[1]}"
    sys.stdout.write(problem)


if __name__ == "__main__":
    main()
