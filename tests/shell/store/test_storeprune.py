"""Throwing away: into trash first, never what may be needed, never once fenced (C7)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from storekit import QuickFiles, ckpt, committed, inc, started, written

from rlguard.checkpoint.outcomes import Whole
from rlguard.checkpoint.records import Claim
from rlguard.errors import BadWireError, FencedError, StoreError
from rlguard.io import storeprune
from rlguard.io.store import Store

if TYPE_CHECKING:
    from pathlib import Path


def test_c7_pruned_checkpoints_go_to_trash_and_come_back_whole(store: Store) -> None:
    started(store, "1.1")
    for step in (1, 2, 3, 4):
        committed(store, f"{step}@1.1")
    assert storeprune.prune(store, inc("1.1"), keep=2) == (ckpt("1@1.1"), ckpt("2@1.1"))
    assert store.scan().trashed == {ckpt("1@1.1"): inc("1.1"), ckpt("2@1.1"): inc("1.1")}
    store.restore(ckpt("2@1.1"))
    assert isinstance(store.verify(ckpt("2@1.1"), deep=True), Whole)
    storeprune.purge(store, inc("1.1"), storeprune.trash(store))
    assert storeprune.trash(store) == ()
    with pytest.raises(StoreError, match="not in trash"):
        store.restore(ckpt("1@1.1"))


def test_c7_a_fenced_pruner_moves_and_unlinks_nothing(store: Store) -> None:
    started(store, "1.1")
    for step in (1, 2, 3):
        committed(store, f"{step}@1.1")
    storeprune.prune(store, inc("1.1"), keep=2)
    store.claim(Claim(inc("2.1"), "other", "n"))
    with pytest.raises(FencedError):
        storeprune.prune(store, inc("1.1"), keep=1)
    with pytest.raises(FencedError):
        storeprune.purge(store, inc("1.1"), storeprune.trash(store))
    assert storeprune.trash(store) == ("1.1/1@1.1",)


def test_c7_a_pruner_that_is_fenced_between_two_moves_stops_there(store: Store, files: QuickFiles) -> None:
    started(store, "1.1")
    for step in (1, 2, 3, 4):
        committed(store, f"{step}@1.1")
    rename = files.rename

    def rename_and_claim(source: Path, target: Path) -> None:
        rename(source, target)
        Store(store.root).claim(Claim(inc("2.1"), "other", "n"))

    files.rename = rename_and_claim  # type: ignore[method-assign]
    with pytest.raises(FencedError):
        storeprune.prune(store, inc("1.1"), keep=2)
    assert storeprune.trash(store) == ("1.1/1@1.1",)


def test_c7_tries_of_older_incarnations_are_swept_and_own_ones_stay(store: Store) -> None:
    started(store, "1.1")
    committed(store, "1@1.1")
    written(store, "2@1.1", nonce="dead")
    started(store, "1.2", "1@1.1")
    written(store, "3@1.2", nonce="live")
    storeprune.prune(store, inc("1.2"), keep=2)
    assert os.listdir(store.root / "tmp") == ["3@1.2.pod.live"]  # noqa: PTH208 # names


@pytest.mark.parametrize("entry", ["", "1.1", "../x/y", "1.1/..", "1.1/a/b", "x/y"])
def test_c7_only_entries_of_trash_are_unlinked(store: Store, entry: str) -> None:
    started(store, "1.1")
    with pytest.raises(BadWireError):
        storeprune.purge(store, inc("1.1"), (entry,))
