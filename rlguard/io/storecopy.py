"""The bytes of a checkpoint: copy while hashing, read small files, compare a folder with its manifest."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from rlguard.checkpoint import names
from rlguard.checkpoint.outcomes import Absent, Broken, Verification, Whole
from rlguard.checkpoint.records import Manifest
from rlguard.errors import BadWireError, TornReadError
from rlguard.io.files import NOT_PLAIN, naming
from rlguard.messages import FileEntry
from rlguard.train.pages import PageError, SlotHeader, read_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from rlguard.io.files import Files
    from rlguard.model import CheckpointId

Held = SlotHeader
"""What must stand in a slot's header while its files are copied."""

CHUNK_BYTES: Final = 8 << 20
"""A multiple of any stripe and page size; large enough for one request per stripe of a parallel file system."""

SMALL_BYTES: Final = 64 << 20
"""No claim, record or manifest is larger; what is larger is not read into memory."""


def copy_new(
    files: Files, source: Path, target: Path, progress: Callable[[], None], size: int | None, held: Held | None
) -> FileEntry:
    """Copy into a new file, hash on the way, fsync. See `Store.put_file`. Leaves no file behind when it fails."""
    _check_held(source, held)
    descriptor = files.create(target)
    try:
        try:
            with naming(target):
                entry = _stream(files, source, target, descriptor, progress, size)
            _check_held(source, held)
            with naming(target):
                files.fsync(descriptor)
        finally:
            files.close(descriptor)
    except Exception:
        with suppress(OSError):
            files.unlink(target)
        raise
    return entry


def read_small(files: Files, path: Path) -> bytes:
    """A whole small file. Raises BadWireError if it is larger than any of ours or no plain file."""
    try:
        content = b"".join(bytes(chunk) for chunk in _chunks(files, path, SMALL_BYTES + 1))
    except OSError as error:
        if error.errno in NOT_PLAIN:
            raise BadWireError(f"no plain file ({error.strerror})") from error
        raise
    if len(content) > SMALL_BYTES:
        raise BadWireError(f"larger than {SMALL_BYTES} bytes")
    return content


def verified(
    files: Files, folder: Path, checkpoint: CheckpointId, progress: Callable[[], None], *, deep: bool
) -> Verification:
    """See `Store.verify`."""
    if files.entry(folder) is None:
        return Absent()
    try:
        manifest = Manifest.from_json(json.loads(read_small(files, folder / names.MANIFEST)))
    except FileNotFoundError:
        return Broken(f"{folder}: no {names.MANIFEST}")
    except (BadWireError, ValueError, RecursionError) as error:
        return Broken(f"{folder / names.MANIFEST}: {error}")
    if manifest.checkpoint != checkpoint:
        return Broken(f"{folder / names.MANIFEST}: it is of {manifest.checkpoint}")
    for entry in manifest.files:
        reason = _differs(files, folder / entry.name, entry) or (
            _rotten(files, folder / entry.name, entry, progress) if deep else None
        )
        if reason is not None:
            return Broken(reason)
    return Whole(manifest)


def _stream(
    files: Files, source: Path, target: Path, descriptor: int, progress: Callable[[], None], size: int | None
) -> FileEntry:
    digest, copied = hashlib.sha256(), 0
    for chunk in _chunks(files, source, size):
        digest.update(chunk)
        files.write(descriptor, chunk)
        copied += len(chunk)
        progress()
    if size is not None and copied != size:
        raise TornReadError(f"{source}: {copied} bytes instead of {size}: stage it again")
    return FileEntry(target.name, copied, digest.hexdigest())


def _chunks(files: Files, path: Path, limit: int | None) -> Iterator[memoryview]:
    """The file's bytes, at most `limit`, in one buffer that is used again for the next chunk."""
    descriptor = files.open(path)
    try:
        buffer, done = memoryview(bytearray(CHUNK_BYTES)), 0
        while limit is None or done < limit:
            room = CHUNK_BYTES if limit is None else min(CHUNK_BYTES, limit - done)
            got = files.read(descriptor, buffer[:room])
            if got == 0:
                return
            done += got
            yield buffer[:got]
    finally:
        files.close(descriptor)


def _check_held(source: Path, held: Held | None) -> None:
    if held is None:
        return
    try:
        found = read_header(source.parent)
    except PageError as error:
        raise TornReadError(f"{source.parent}: {error}: stage it again") from error
    if found != held or held.dirty:
        raise TornReadError(f"{source.parent}: the slot holds {found}, not {held}: the copy is thrown away")


def _differs(files: Files, path: Path, entry: FileEntry) -> str | None:
    found = files.entry(path)
    if found is None or found.is_dir:
        return f"{path}: missing"
    return None if found.size == entry.size else f"{path}: {found.size} bytes instead of {entry.size}"


def _rotten(files: Files, path: Path, entry: FileEntry, progress: Callable[[], None]) -> str | None:
    digest = hashlib.sha256()
    for chunk in _chunks(files, path, None):
        digest.update(chunk)
        progress()
    return None if digest.hexdigest() == entry.sha256 else f"{path}: its bytes are not those that were written"
