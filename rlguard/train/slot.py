"""Writing a slot and reading a checkpoint back, from a slot or from a folder on disk."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from rlguard.train import image, pages

if TYPE_CHECKING:
    from rlguard.train.state import State, Tree

_SPARE_BYTES: Final = 1 << 20  # headers, file list, the zip frames of small tensors


class NoRoomError(Exception):
    """The slot does not fit into what is left of the shared memory; the message has both figures."""


class NotThereError(Exception):
    """The place does not hold the checkpoint that was asked for; the message names the place."""


@dataclass(frozen=True)
class Seat:
    """Which rank this is, and where."""

    shm: Path
    incarnation: str
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int


class SlotWriter:
    """One of this rank's two slots. The node's first rank writes the tensors, each rank its own objects."""

    def __init__(self, seat: Seat, slot: int) -> None:
        self._seat = seat
        self._folder = pages.slot_path(seat.shm, seat.local_rank, slot)
        self._image = image.Image(self._folder)

    def write(self, state: State, step: int) -> None:
        """Stage. Raises NoRoomError with nothing touched; after anything else that it raises the slot is dirty."""
        objects = _saved(
            {"world_size": self._seat.world_size, "step": step, "incarnation": self._seat.incarnation}, state
        )
        tensors = state.tensors() if self._seat.local_rank == 0 else {}
        self._folder.mkdir(exist_ok=True)
        self._check_room(tensors, objects)
        old = pages.read_header(self._folder) if (self._folder / pages.HEADER_NAME).exists() else None
        header = pages.SlotHeader(self._seat.incarnation, step, old.sequence + 1 if old else 1, dirty=True)
        writer = pages.HeaderWriter(self._folder)
        try:
            writer.write(header)
            self._fill(tensors, objects)
            writer.write(pages.SlotHeader(header.incarnation, step, header.sequence, dirty=False))
        finally:
            writer.close()

    def _fill(self, tensors: Tree, objects: bytes) -> None:
        name = objects_name(self._seat.rank)
        (self._folder / name).write_bytes(objects)
        files = [pages.SlotFile(name, len(objects), shared=False)]
        if tensors:
            self._image.write(tensors)
            files += [pages.SlotFile(f, (self._folder / f).stat().st_size, shared=True) for f in image.FILES]
        pages.write_files_json(self._folder, tuple(files))
        keep = {file.name for file in files} | {pages.HEADER_NAME, pages.FILES_NAME}
        for entry in self._folder.iterdir():
            if entry.name not in keep:
                entry.unlink()

    def _check_room(self, tensors: Tree, objects: bytes) -> None:
        payload = sum(leaf.tensor.nbytes for leaf in image.leaves(tensors))
        need = len(objects) + payload + _SPARE_BYTES
        held = sum(entry.stat().st_size for entry in self._folder.iterdir())
        room = os.statvfs(self._folder)
        free = room.f_bavail * room.f_frsize + held
        if need > free:
            raise NoRoomError(f"{self._folder} needs {need} bytes and {free} are left; give {self._seat.shm} more room")


def objects_name(rank: int) -> str:
    """Name the file of one rank's objects."""
    return f"objects-{rank}.pt"


def read_slot(seat: Seat, slot: int, checkpoint: tuple[str, int], state: State) -> tuple[Tree, Tree]:
    """Read (tensors, objects) of `(incarnation, step)` from this pod's memory. Raises NotThereError."""
    own = pages.slot_path(seat.shm, seat.local_rank, slot)
    first = pages.slot_path(seat.shm, 0, slot)
    for folder in {own, first}:
        _check_header(folder, checkpoint)
    return _read(first, own, seat, state, mine=True)


def read_directory(folder: Path, seat: Seat, state: State) -> tuple[Tree, Tree]:
    """Read (tensors, objects) from a committed checkpoint's folder. Raises NotThereError."""
    return _read(folder, folder, seat, state, mine=False)


def _check_header(folder: Path, checkpoint: tuple[str, int]) -> None:
    try:
        header = pages.read_header(folder)
    except (OSError, pages.PageError) as error:
        raise NotThereError(f"{folder}: {error}") from error
    if header is None:
        raise NotThereError(f"{folder}: nothing was ever staged there")
    if header.dirty or (header.incarnation, header.step) != checkpoint:
        state = "half-written " if header.dirty else ""
        raise NotThereError(f"{folder}: holds {state}{header.step}@{header.incarnation}")


def _read(tensors_in: Path, objects_in: Path, seat: Seat, state: State, *, mine: bool) -> tuple[Tree, Tree]:
    if not (tensors_in / image.METADATA).exists() and state.tensors():
        raise NotThereError(f"{tensors_in}: no {image.METADATA}")
    try:
        tensors = image.load(tensors_in) if (tensors_in / image.METADATA).exists() else {}
        return tensors, _objects(objects_in, seat, state, mine=mine)
    except (KeyboardInterrupt, SystemExit, NotThereError):
        raise
    except BaseException as error:  # CheckpointException is no Exception
        raise NotThereError(f"{tensors_in}, {objects_in}: cannot be read: {error}") from error


def _objects(folder: Path, seat: Seat, state: State, *, mine: bool) -> Tree:
    """Read this rank's objects; for a rank the old world did not have, what all ranks hold alike."""
    own = folder / objects_name(seat.rank)
    found = sorted(folder.glob("objects-*.pt"))
    if not found:
        raise NotThereError(f"{folder}: no {own.name}")
    saved: Tree = torch.load(own if own in found else found[0], map_location="cpu", weights_only=False)
    if own in found:
        return dict(saved["objects"])
    if saved["world_size"] == seat.world_size:
        raise NotThereError(f"{folder}: no {own.name}, and the world was of the same size")
    # In its own slot lie the objects of this very seat, which had another rank then.
    return dict(saved["objects"]) if mine else state.common(saved["objects"])


def _saved(about: dict[str, Any], state: State) -> bytes:
    buffer = io.BytesIO()
    torch.save({**about, "objects": state.objects()}, buffer)
    return buffer.getvalue()
