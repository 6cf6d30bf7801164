"""Opening files in a folder that another container writes too: nobody there is trusted.

Standard library only; used by both sides of the shared memory.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_NEVER: Final = os.O_NOFOLLOW | os.O_CLOEXEC
"""A link could lead to a file of this container that the other may not touch."""


def open_plain(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a plain file that lies in `path.parent` itself; returns its descriptor.

    Raises OSError for a link, also in place of the folder, and for anything that is no plain file. Never waits, as
    opening a FIFO would.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | _NEVER)
    try:
        descriptor = os.open(path.name, flags | os.O_NONBLOCK | _NEVER, 0o644, dir_fd=folder)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "no plain file", str(path))
    return descriptor


def open_page(path: Path, size: int) -> int:
    """Open or make a file of `size` bytes with memory behind every one of them, so that no store into it can fail.

    Raises OSError, when the memory is used up among others: a store into a page without memory ends the process.
    """
    descriptor = open_plain(path, os.O_RDWR | os.O_CREAT)
    try:
        os.ftruncate(descriptor, size)
        os.posix_fallocate(descriptor, 0, size)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_plain(path: Path, most: int) -> bytes:
    """Read a plain file of at most `most` bytes whole. Raises OSError, EFBIG for a larger one."""
    descriptor = open_plain(path)
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"larger than {most} bytes", str(path))
    return content
