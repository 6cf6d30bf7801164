"""Shared-memory pages and slots: how a training process and its sidecar speak without a system call per step.

Standard library only; both sides use this file. Every page is 4096 bytes, little-endian, with one writer, and begins
with a magic, a format version and a sequence number that is odd while the page is being written. A reader takes the
sequence before and after the body and reports a torn page rather than a torn value. The sequence is stored as one
machine word (`struct` would zero its bytes first) and relies on stores becoming visible in program order (x86).

Files in the shared folder: `control`, `rank-<local_rank>`, `slot-<local_rank>-<0|1>/`.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import time
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rlguard.train.plain import open_page, open_plain, read_plain

if TYPE_CHECKING:
    from pathlib import Path

PAGE_BYTES: Final = 4096
SLOTS: Final = 2
READ_TRIES: Final = 50
"""A writer needs microseconds; so many tries, with pauses, span several milliseconds."""

LOOK_NS: Final = 100_000_000
FILES_BYTES: Final = 1 << 20
"""No list of a slot's files is longer; what is longer is not read into memory."""

_VERSION: Final = 1
_HEAD: Final = struct.Struct("<4sIQ")  # magic, version, sequence
_SEQUENCE_LIMIT: Final = 1 << 62
_SEQUENCE: Final = 1  # where the sequence stands, in 8-byte words
_BODY_AT: Final = _HEAD.size
_PAUSE_S: Final = 0.0001

CONTROL_NAME: Final = "control"
HEADER_NAME: Final = "header"
FILES_NAME: Final = "files.json"


class PageError(Exception):
    """A page or file list is not what this version writes; the message names the file."""


class TornPageError(PageError):
    """The page was being written at every try: its writer is busy, or died half-way."""


class StageResult(IntEnum):
    """What became of the last stage order."""

    NONE = 0
    STAGED = 1
    PAST = 2  # the rank was already beyond the ordered step: nothing was written
    SKIPPED = 3  # nothing was written, training goes on: no room for the slot
    FAILED = 4  # the slot may be dirty


@dataclass(frozen=True)
class ControlPage:
    """The sidecar's word to its ranks. `order` grows by one with each new order; 0 means none given yet.

    `step` and `slot` say what to stage and where. A rank of another incarnation ignores the page.
    """

    incarnation: str
    order: int = 0
    step: int = 0
    slot: int = 0


@dataclass(frozen=True)
class RankPage:
    """One rank's word to its sidecar.

    `step` is the last finished one (-1: none yet), `heartbeat_ns` CLOCK_BOOTTIME in nanoseconds. `order`,
    `stage_step`, `slot` and `result` describe the last order that was answered. `finished`: the training loop said
    that it has nothing left to do.
    """

    incarnation: str
    rank: int
    world_size: int
    local_world_size: int
    pid: int = 0
    step: int = -1
    heartbeat_ns: int = 0
    order: int = 0
    stage_step: int = 0
    slot: int = 0
    result: StageResult = StageResult.NONE
    hook: bool = False
    reshardable: bool = False
    nan: bool = False
    finished: bool = False


@dataclass(frozen=True)
class SlotHeader:
    """What a slot holds. `sequence` counts the stages ever written there; `dirty` from its first byte to its last.

    A reader copies only when the header is clean, reads it again after the last byte, and throws the copy away
    unless both are equal.
    """

    incarnation: str
    step: int
    sequence: int
    dirty: bool


class SlotFile(NamedTuple):
    """One file of a checkpoint. `shared`: one rank of the world writes it for all, and each node holds a copy."""

    name: str
    size: int
    shared: bool


class _Layout(NamedTuple):
    magic: bytes
    body: struct.Struct


_CONTROL: Final = _Layout(b"RLGC", struct.Struct("<QQQqQ"))
_RANK: Final = _Layout(b"RLGR", struct.Struct("<qQQQQQQQQqQQQ"))
_SLOT: Final = _Layout(b"RLGS", struct.Struct("<QQqQQ"))
_BEAT: Final = struct.Struct("<qQ")  # the first two fields of a rank page: step, heartbeat
_ORDER: Final = struct.Struct("<Q")  # the first field of the control page after the incarnation
_ORDER_AT: Final = _BODY_AT + 16

_HOOK, _RESHARDABLE, _NAN, _FINISHED = 1, 2, 4, 8


def rank_name(local_rank: int) -> str:
    """Name a rank's page."""
    return f"rank-{local_rank}"


def slot_path(shm: Path, local_rank: int, slot: int) -> Path:
    """Name the folder of one slot. Raises PageError for a slot that does not exist."""
    if slot not in range(SLOTS):
        raise PageError(f"no such slot: {slot} (there are {SLOTS}, counted from 0)")
    return shm / f"slot-{local_rank}-{slot}"


def local_ranks(shm: Path) -> list[int]:
    """List local ranks that ever had a page here, in order. Compare incarnations: some may be of an earlier start."""
    names = (entry.name.partition("rank-") for entry in shm.iterdir())
    return sorted(int(number) for before, sign, number in names if sign and not before and number.isdecimal())


def boottime_ns() -> int:
    """Read CLOCK_BOOTTIME: it goes on while the machine sleeps and no clock step touches it."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class PageWriter:
    """The one writer of one page: keeps it mapped. Creates the file when it is missing."""

    def __init__(self, path: Path, layout: _Layout) -> None:
        descriptor = open_page(path, PAGE_BYTES)
        try:
            self._map = mmap.mmap(descriptor, PAGE_BYTES)
        finally:
            os.close(descriptor)
        self._layout = layout
        self._words = memoryview(self._map).cast("Q")
        magic, version, sequence = _HEAD.unpack_from(self._map)
        if (magic, version) != (layout.magic, _VERSION):
            sequence = 0
            _HEAD.pack_into(self._map, 0, layout.magic, _VERSION, 0)
        # A writer that died half-way left an odd number: the next even one must still be a new one.
        self._sequence = (sequence + 1) & ~1

    def put(self, *fields: int) -> None:
        """Replace the whole body."""
        self._words[_SEQUENCE] = self._sequence + 1
        self._layout.body.pack_into(self._map, _BODY_AT, *fields)
        self._sequence += 2
        self._words[_SEQUENCE] = self._sequence

    def close(self) -> None:
        """Unmap the page; the file stays."""
        self._words.release()
        self._map.close()


class ControlWriter:
    """The sidecar's end of the control page. Not mapped: a trainer that cuts the file short must not end the sidecar.

    Every method raises OSError.
    """

    def __init__(self, shm: Path) -> None:
        self._descriptor = open_page(shm / CONTROL_NAME, PAGE_BYTES)
        magic, version, sequence = _HEAD.unpack(os.pread(self._descriptor, _HEAD.size, 0).ljust(_HEAD.size, b"\0"))
        known = (magic, version) == (_CONTROL.magic, _VERSION)
        self._sequence = (sequence + 1) & ~1 if known and sequence < _SEQUENCE_LIMIT else 0

    def write(self, page: ControlPage) -> None:
        """Publish an order."""
        body = _CONTROL.body.pack(*parse_incarnation(page.incarnation), page.order, page.step, page.slot)
        self._mark(self._sequence + 1)
        os.pwrite(self._descriptor, body.ljust(PAGE_BYTES - _BODY_AT, b"\0"), _BODY_AT)
        self._sequence += 2
        self._mark(self._sequence)

    def close(self) -> None:
        """Close the page; the file stays."""
        os.close(self._descriptor)

    def _mark(self, sequence: int) -> None:
        os.pwrite(self._descriptor, _HEAD.pack(_CONTROL.magic, _VERSION, sequence), 0)


class RankWriter(PageWriter):
    """A rank's end of its own page: publishes the first one at once."""

    def __init__(self, shm: Path, local_rank: int, page: RankPage) -> None:
        super().__init__(shm / rank_name(local_rank), _RANK)
        self.page = page
        self.write(page)

    def write(self, page: RankPage) -> None:
        """Publish everything."""
        flags = _HOOK * page.hook | _RESHARDABLE * page.reshardable | _NAN * page.nan | _FINISHED * page.finished
        self.page = page
        self.put(
            page.step,
            page.heartbeat_ns,
            *parse_incarnation(page.incarnation),
            page.rank,
            page.world_size,
            page.local_world_size,
            page.pid,
            page.order,
            page.stage_step,
            page.slot,
            page.result,
            flags,
        )

    def beat(self, step: int, now_ns: int) -> None:
        """Publish a finished step: three small stores, no system call, no allocation of note."""
        words, sequence = self._words, self._sequence
        words[_SEQUENCE] = sequence + 1
        _BEAT.pack_into(self._map, _BODY_AT, step, now_ns)
        words[_SEQUENCE] = self._sequence = sequence + 2

    def update(self, **changes: Any) -> None:
        """Publish the page with some fields changed and a fresh heartbeat; the step is the one last beaten."""
        step = _BEAT.unpack_from(self._map, _BODY_AT)[0]
        self.write(replace(self.page, **{"step": step, "heartbeat_ns": boottime_ns(), **changes}))


class ControlPeek:
    """A rank's view of the control page: one unpack tells whether a new order is there."""

    def __init__(self, shm: Path) -> None:
        self._shm = shm
        self._map: mmap.mmap | None = None
        self._look_at = 0

    def order(self, now_ns: int | None = None) -> int:
        """Return the order number now, 0 when the page does not exist yet. May be torn: `read_control` confirms it.

        A missing page is looked for every `LOOK_NS`, so that a step stays free of system calls; without a time, now.
        """
        if self._map is None:
            if now_ns is not None and now_ns < self._look_at:
                return 0
            self._look_at = (now_ns or 0) + LOOK_NS
            if not self._attach():
                return 0
        return int(_ORDER.unpack_from(self._map, _ORDER_AT)[0])  # type: ignore[arg-type] # attached above

    def _attach(self) -> bool:
        try:
            descriptor = open_plain(self._shm / CONTROL_NAME)
        except FileNotFoundError:
            return False
        try:
            if os.fstat(descriptor).st_size < PAGE_BYTES:
                return False
            self._map = mmap.mmap(descriptor, PAGE_BYTES, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)
        return True


class HeaderWriter(PageWriter):
    """A rank's end of a slot's header."""

    def __init__(self, slot: Path) -> None:
        super().__init__(slot / HEADER_NAME, _SLOT)

    def write(self, header: SlotHeader) -> None:
        """Publish the header."""
        self.put(*parse_incarnation(header.incarnation), header.step, header.sequence, header.dirty)


def read_control(shm: Path) -> ControlPage | None:
    """Read the control page, None when it was never written. Raises TornPageError, PageError, OSError."""
    fields = _read(shm / CONTROL_NAME, _CONTROL)
    if fields is None:
        return None
    generation, attempt, order, step, slot = fields
    return ControlPage(f"{generation}.{attempt}", order, step, slot)


def read_rank(shm: Path, local_rank: int) -> RankPage | None:
    """Read one rank's page, None when it was never written. Raises TornPageError, PageError, OSError."""
    path = shm / rank_name(local_rank)
    fields = _read(path, _RANK)
    if fields is None:
        return None
    step, heartbeat_ns, generation, attempt, rank, world, local, pid, order, stage_step, slot, result, flags = fields
    if result not in set(StageResult):
        raise PageError(f"{path}: unknown stage result {result}; the training image has a newer rlguard")
    return RankPage(
        incarnation=f"{generation}.{attempt}",
        rank=rank,
        world_size=world,
        local_world_size=local,
        pid=pid,
        step=step,
        heartbeat_ns=heartbeat_ns,
        order=order,
        stage_step=stage_step,
        slot=slot,
        result=StageResult(result),
        hook=bool(flags & _HOOK),
        reshardable=bool(flags & _RESHARDABLE),
        nan=bool(flags & _NAN),
        finished=bool(flags & _FINISHED),
    )


def read_header(slot: Path) -> SlotHeader | None:
    """Read a slot's header, None when nothing was ever staged there. Raises TornPageError, PageError, OSError."""
    fields = _read(slot / HEADER_NAME, _SLOT)
    if fields is None:
        return None
    generation, attempt, step, sequence, dirty = fields
    return SlotHeader(f"{generation}.{attempt}", step, sequence, bool(dirty))


def read_files_json(slot: Path) -> tuple[SlotFile, ...]:
    """Read the files of the slot's checkpoint. Raises PageError for anything but plain names and sizes, OSError."""
    path = slot / FILES_NAME
    try:
        entries = json.loads(read_plain(path, FILES_BYTES))
        files = tuple(SlotFile(entry["name"], entry["size"], entry["shared"]) for entry in entries)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise PageError(f"{path}: not a list of files with name, size and shared: {error}") from error
    for file in files:
        if not _is_plain(file):
            raise PageError(f"{path}: bad entry {file!r}; a name may not leave the slot and a size is a number")
    return files


def write_files_json(slot: Path, files: tuple[SlotFile, ...]) -> None:
    """Replace the slot's file list in one step."""
    temporary = slot / f".{FILES_NAME}"
    temporary.write_text(json.dumps([file._asdict() for file in files]))
    temporary.replace(slot / FILES_NAME)


def _is_plain(file: SlotFile) -> bool:
    name, size, shared = file
    plain = isinstance(name, str) and name not in ("", ".", "..", HEADER_NAME, FILES_NAME)
    return plain and not set("/\0") & set(name) and type(size) is int and size >= 0 and isinstance(shared, bool)


def parse_incarnation(incarnation: str) -> tuple[int, int]:
    """Return generation and attempt of `"3.2"`. Raises ValueError for anything else."""
    generation, _, attempt = incarnation.partition(".")
    if not (generation.isdecimal() and attempt.isdecimal()):
        raise ValueError(f"no incarnation: {incarnation[:60]!r}")
    return int(generation), int(attempt)


def _read(path: Path, layout: _Layout) -> tuple[Any, ...] | None:
    try:
        descriptor = open_plain(path)
    except FileNotFoundError:
        return None
    try:
        page = _settled(descriptor, path)
    finally:
        os.close(descriptor)
    if page is None:
        return None
    magic, version, _ = _HEAD.unpack_from(page)
    if magic != layout.magic or version != _VERSION:
        raise PageError(f"{path}: holds {magic!r} version {version}, expected {layout.magic!r} version {_VERSION}")
    return layout.body.unpack_from(page, _BODY_AT)


def _settled(descriptor: int, path: Path) -> bytes | None:
    """Read the page between two equal, even sequence numbers; None when it was never written."""
    for attempt in range(READ_TRIES):
        page = os.pread(descriptor, PAGE_BYTES, 0)
        sequence = _HEAD.unpack_from(page)[2] if len(page) == PAGE_BYTES else 0
        if sequence == 0:
            return None
        # The copy above may itself straddle a write: only a second look at the body tells.
        if sequence % 2 == 0 and os.pread(descriptor, PAGE_BYTES, 0) == page:
            return page
        if attempt:
            time.sleep(_PAUSE_S)
    raise TornPageError(f"{path}: was being written at each of {READ_TRIES} tries")
