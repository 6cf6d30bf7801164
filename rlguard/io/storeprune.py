"""Throwing away, in two steps (C7): move to trash at once, unlink an hour later by whoever leads then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlguard.checkpoint import names
from rlguard.checkpoint.lineage import is_void
from rlguard.checkpoint.outcomes import Whole
from rlguard.checkpoint.pruning import what_to_prune
from rlguard.errors import BadWireError, FencedError
from rlguard.io.storescan import claimed_in, listing

if TYPE_CHECKING:
    from pathlib import Path

    from rlguard.io.store import Store
    from rlguard.model import CheckpointId, Incarnation


def prune(store: Store, own: Incarnation, keep: int) -> tuple[CheckpointId, ...]:
    """C7: move to trash what `what_to_prune` names, and the tries of older incarnations. Returns the checkpoints.

    An unreadable record may name anything as its parent, so then nothing moves. Raises FencedError on a newer claim,
    looked for again before every move.
    """
    with store.telling():
        scan = store.scan()
        if scan.unreadable:
            return ()
        whole = [one for one in scan.committed if isinstance(store.verify(one, deep=False), Whole)]
        doomed = what_to_prune(scan.records, scan.claimed, own, scan.committed, whole, keep)
        for checkpoint in doomed:
            _move(store, own, store.path_of(checkpoint))
        for tmp in map(names.parse_tmp, listing(store.files, store.root / names.TMP)):
            if tmp is not None and tmp.checkpoint.incarnation < own:
                _move(store, own, store.path_of_tmp(tmp))
    return doomed


def trash(store: Store) -> tuple[str, ...]:
    """What lies in trash, each as `<incarnation>/<name>`. The caller notes when it first saw each (`ripe`)."""
    folder = store.root / names.TRASH
    with store.telling():
        found = [name for name in listing(store.files, folder) if names.parse_incarnation(name) is not None]
        return tuple(f"{name}/{entry}" for name in found for entry in listing(store.files, folder / name))


def purge(store: Store, own: Incarnation, entries: tuple[str, ...]) -> None:
    """C7: unlink entries of `trash` for good. Raises FencedError on a newer claim, looked for before each."""
    for entry in entries:
        folder, _, name = entry.partition("/")
        if names.parse_incarnation(folder) is None or not names.is_data_file(name):
            raise BadWireError(f"not an entry of trash: {entry!r}")
        with store.telling():
            _check_newest(store, own)
            store.remove_tree(store.root / names.TRASH / folder / name)


def _check_newest(store: Store, own: Incarnation) -> None:
    newer = is_void(claimed_in(store.files, store.root), own)
    if newer is not None:
        raise FencedError(f"{own} may throw nothing away: {newer} has been claimed")


def _move(store: Store, own: Incarnation, path: Path) -> None:
    _check_newest(store, own)
    folder = store.root / names.TRASH / str(own)
    store.make_folder(folder)
    target = folder / path.name
    if store.files.entry(target) is not None:  # thrown away before, taken back, and now again
        target = folder / f"{path.name}.again.{store.files.token()}"
    store.files.rename(path, target)
    store.files.sync_dir(folder)
    store.files.sync_dir(path.parent)
