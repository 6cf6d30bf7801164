"""`python mountchild.py PATH`: statfs behind a pipe, so that a file system that hangs can be left behind.

For each line on stdin one on stdout: `ok BLOCKS FREE INODES INODES_FREE`, or `error NAME`. Ends when stdin does. Needs
the standard library alone, and little of it, because one runs for each mount.
"""

from __future__ import annotations

import errno
import os
import sys


def answer(path: str) -> str:
    """What statfs says of a path."""
    try:
        found = os.statvfs(path)
    except OSError as error:
        return f"error {errno.errorcode.get(error.errno or 0, 'EIO')}"
    return f"ok {found.f_blocks} {found.f_bavail} {found.f_files} {found.f_ffree}"


def main() -> None:
    """Serve until stdin ends."""
    for _ in sys.stdin:
        sys.stdout.write(answer(sys.argv[1]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
