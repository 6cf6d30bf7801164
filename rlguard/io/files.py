"""The file system as the store uses it: one small method per operation, so that a test can record, fail or stop each.

Methods raise OSError; the store turns it into a StoreError by `refused`.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from rlguard.errors import StoreError, StoreState
from rlguard.train.plain import open_plain

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NEXT: Final = {
    StoreState.FULL: "free space on the volume (or on the one storage target that is full)",
    StoreState.QUOTA: "raise the volume's quota or free space under it",
    StoreState.READ_ONLY: "mount the volume read-write; a volume that became read-only needs its server looked at",
    StoreState.DENIED: "give the sidecar's user write permission on the folder",
    StoreState.STALE: "the server forgot the file: check that the export is still the same, then mount it again",
    StoreState.IO_ERROR: "check the file server and this node's kernel log",
    StoreState.MISSING: "check that the volume is mounted and nobody removed the folder",
    StoreState.NO_HARD_LINKS: "use a volume that supports hard links; without them a claim cannot fence",
    StoreState.FAILED: "check the file server",
}

_STATES: Final = {
    errno.ENOSPC: StoreState.FULL,
    errno.EDQUOT: StoreState.QUOTA,
    errno.EROFS: StoreState.READ_ONLY,
    errno.EACCES: StoreState.DENIED,
    errno.EPERM: StoreState.DENIED,
    errno.ESTALE: StoreState.STALE,
    errno.EIO: StoreState.IO_ERROR,
    errno.ENOENT: StoreState.MISSING,
    errno.EMLINK: StoreState.NO_HARD_LINKS,
    errno.EOPNOTSUPP: StoreState.NO_HARD_LINKS,
}


NOT_PLAIN: Final = frozenset({errno.ELOOP, errno.EINVAL, errno.ENXIO, errno.EISDIR, errno.ENOTDIR})
"""How `Files.open` and reading refuse a link, a FIFO, a socket and a folder."""


def refused(error: OSError, path: object) -> StoreError:
    """The StoreError for `error`: which file, which errno, what to do. `path` is used where the error names none."""
    state = _STATES.get(error.errno or 0, StoreState.FAILED)
    name = errno.errorcode.get(error.errno or 0, "no errno")
    where = error.filename2 or error.filename or path
    return StoreError(f"{where}: {error.strerror or error} ({name}): {_NEXT[state]}", state)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Give an OSError that came from a descriptor the name of its file."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


class Entry(NamedTuple):
    """What a name stands for; `size` in bytes."""

    is_dir: bool
    size: int


class Files:
    """The real file system and its clock. Symbolic links are never followed for a name's own entry."""

    def now(self) -> float:
        """Seconds of CLOCK_BOOTTIME, to bound waits."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def token(self) -> str:
        """A new random name part, 16 hex digits."""
        return secrets.token_hex(8)

    def entry(self, path: Path) -> Entry | None:
        """What `path` is, None if there is nothing."""
        try:
            found = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return Entry(stat.S_ISDIR(found.st_mode), found.st_size)

    def listdir(self, path: Path) -> list[str]:
        """Names in a folder, in no order."""
        return os.listdir(path)  # noqa: PTH208 # names, not paths

    def mkdir(self, path: Path) -> None:
        """Make one folder; FileExistsError if there is one."""
        path.mkdir()

    def create(self, path: Path) -> int:
        """Open a new file for writing (O_EXCL: never one that exists). Returns its descriptor."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)

    def open(self, path: Path) -> int:
        """Open a plain file for reading, an errno of `NOT_PLAIN` for what is none. Returns its descriptor."""
        return open_plain(path)

    def read(self, descriptor: int, buffer: memoryview) -> int:
        """Read up to the buffer's length; 0 at the end."""
        return os.readv(descriptor, [buffer])

    def write(self, descriptor: int, data: memoryview) -> None:
        """Write all of `data`."""
        while data:
            data = data[os.write(descriptor, data) :]

    def fsync(self, descriptor: int) -> None:
        """Make a file's content durable."""
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        """Close; late write errors of network file systems show here."""
        os.close(descriptor)

    def sync_dir(self, path: Path) -> None:
        """Make a folder's entries durable. File systems that know no fsync of a folder answer EINVAL: accepted."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        finally:
            os.close(descriptor)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name; FileExistsError if that is taken."""
        try:
            os.link(source, target, follow_symlinks=False)
        except OSError as error:
            if error.errno == errno.EPERM:  # Linux: "the file system does not support hard links"
                error.errno = errno.EOPNOTSUPP
            raise

    def rename(self, source: Path, target: Path) -> None:
        """Move a file or folder within the root."""
        source.rename(target)

    def unlink(self, path: Path) -> None:
        """Remove a file's name."""
        path.unlink()

    def rmdir(self, path: Path) -> None:
        """Remove an empty folder."""
        path.rmdir()
