# ruff: noqa: D102 # helpers of tests, named after what they do
"""What the tests of the store share: a quick clock, and the steps of a coordinator's life."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlguard.checkpoint.outcomes import Committed
from rlguard.checkpoint.records import Claim, Manifest, Record
from rlguard.io.files import Files
from rlguard.model import CheckpointId, Incarnation, Member, World

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlguard.checkpoint.names import TmpName
    from rlguard.io.store import Store

WORLD = World((Member(0, "u0", "p0", "n0", "10.0.0.1"),))


def inc(text: str) -> Incarnation:
    return Incarnation.parse(text)


def ckpt(text: str) -> CheckpointId:
    return CheckpointId.parse(text)


class QuickFiles(Files):
    """The real file system with a clock of its own: waits take no time."""

    def __init__(self) -> None:
        self.time = 0.0
        self.while_waiting: Callable[[], None] = lambda: None

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds
        self.while_waiting()


def started(store: Store, incarnation: str, parent: str | None = None) -> None:
    """Claim and record one incarnation."""
    store.claim(Claim(inc(incarnation), "leader", f"n-{incarnation.replace('.', '-')}"))
    nonce = f"n-{incarnation.replace('.', '-')}"
    store.record(Record(inc(incarnation), "job", "leader", nonce, WORLD, ckpt(parent) if parent else None))


def written(store: Store, name: str, content: bytes = b"weights", nonce: str = "t1") -> tuple[TmpName, Manifest]:
    """Begin a try and put one file into it."""
    source = store.root.parent / "source"
    source.write_bytes(content)
    tmp = store.begin(ckpt(name), "pod", nonce)
    entry = store.put_file(tmp, "__0_0.distcp", source)
    return tmp, Manifest(ckpt(name), 1, "job", "leader", (entry,), "0.1.0")


def committed(store: Store, name: str, content: bytes = b"weights", nonce: str = "t1") -> None:
    assert store.commit(*written(store, name, content, nonce)) == Committed(ckpt(name))
