"""Copies a memory slot into the folder of one try on the shared file system, byte for byte, torn-read checked (M2)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rlguard.checkpoint import names
from rlguard.errors import RlguardError, StoreError, TornReadError
from rlguard.group.member_facts import FlushEnded, RunFlush
from rlguard.io.storeclient import StoreClient
from rlguard.messages import FileEntry, FlushOrder
from rlguard.model import CheckpointId
from rlguard.train import pages


async def flush(store: StoreClient, shm: Path, action: RunFlush, ranks: int, now: Callable[[], float]) -> FlushEnded:
    """Copy the slot of each of the pod's `ranks`. All that can go wrong is in the answer, in words."""
    nonce = action.order.nonce
    try:
        files = await _copy(store, shm, action, ranks)
    except (RlguardError, pages.PageError, OSError) as error:
        return FlushEnded(now(), nonce, done=False, detail=f"{type(error).__name__}: {error}", files=())
    return FlushEnded(now(), nonce, done=True, detail="", files=files)


async def _copy(store: StoreClient, shm: Path, action: RunFlush, ranks: int) -> tuple[FileEntry, ...]:
    order = action.order
    tmp = names.parse_tmp(Path(order.directory).name)
    if tmp is None:
        raise StoreError(f"{order.directory}: not the folder of a checkpoint being written")
    if not ranks:
        raise StoreError("no rank of this pod has a page: there is nothing to copy")
    written: list[FileEntry] = []
    for local_rank in range(ranks):
        slot = pages.slot_path(shm, local_rank, action.slot)
        held = _hold(slot, order.checkpoint)
        written += [
            await store.put_file(tmp, file.name, slot / file.name, file.size, held) for file in _chosen(slot, order)
        ]
    return tuple(written)


def _chosen(slot: Path, order: FlushOrder) -> list[pages.SlotFile]:
    return [file for file in pages.read_files_json(slot) if order.shared or not file.shared]


def _hold(slot: Path, checkpoint: CheckpointId) -> pages.SlotHeader:
    """The slot's header as it must stand from the first byte to the last. Raises TornReadError if it is another's."""
    header = pages.read_header(slot)
    if (
        header is None
        or header.dirty
        or (header.incarnation, header.step) != (str(checkpoint.incarnation), checkpoint.step)
    ):
        raise TornReadError(f"{slot}: holds {header}, not {checkpoint}")
    return header
