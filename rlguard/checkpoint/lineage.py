"""The rules of the lineage: what is valid, what to resume from, who is fenced.

Incarnations and checkpoints compare by generation, attempt, then step, so `max` is "newest" everywhere here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from rlguard.checkpoint.records import Record
from rlguard.errors import FencedError
from rlguard.model import CheckpointId, Incarnation

Records = Mapping[Incarnation, Record]
"""All readable lineage records, each under its own incarnation."""


@dataclass(frozen=True, slots=True)
class Link:
    """One incarnation of a chain. `left_at`: the last step of it that counts, None for the newest (all count)."""

    incarnation: Incarnation
    left_at: int | None


@dataclass(frozen=True, slots=True)
class Parent:
    """Resume from `checkpoint`; None: nothing was ever committed here, start at step 0."""

    checkpoint: CheckpointId | None


@dataclass(frozen=True, slots=True)
class NotVisible:
    """C8: `expected` was committed, but only `seen` shows. Look again, then stop with `CheckpointNotVisible`."""

    expected: CheckpointId
    seen: CheckpointId | None

    def __str__(self) -> str:
        there = f"the newest there is {self.seen}" if self.seen is not None else "none is there"
        return (
            f"CheckpointNotVisible: {self.expected} was committed, but {there}; "
            "bring the files back, or mount the volume that has them"
        )


@dataclass(frozen=True, slots=True)
class NothingWhole:
    """Checkpoints are there and every one failed verification: a person must decide, step 0 is no answer."""

    broken: tuple[CheckpointId, ...]

    def __str__(self) -> str:
        names = ", ".join(map(str, self.broken))
        return f"NothingWhole: every checkpoint fails verification ({names}); bring one back whole"


@dataclass(frozen=True, slots=True)
class BrokenLineage:
    """The record of `incarnation` is needed and missing or unreadable, so nobody can say what is valid.

    Look again as for NotVisible, then a person must decide.
    """

    incarnation: Incarnation

    def __str__(self) -> str:
        return f"BrokenLineage: the record of {self.incarnation} is missing or unreadable; bring the file back"


Choice = Parent | NotVisible | NothingWhole | BrokenLineage


def chain(records: Records, newest: Incarnation) -> tuple[Link, ...]:
    """C3: the incarnations that `newest` descends from, newest first, with the step at which the chain left each.

    An ancestor whose record is missing ends the chain: what lies before it cannot be proved.
    """
    links = [Link(newest, None)]
    record = records.get(newest)
    while record is not None and record.parent is not None and record.parent.incarnation < links[-1].incarnation:
        links.append(Link(record.parent.incarnation, record.parent.step))
        record = records.get(record.parent.incarnation)
    return tuple(links)


def on_chain(records: Records, checkpoint: CheckpointId, newest: Incarnation | None = None) -> bool:
    """C3: is `checkpoint` on the chain of the record `newest` (default: the newest record there is).

    Without any record nothing is. Holds for memory slots and peer copies as for folders.
    """
    tip = max(records, default=None) if newest is None else newest
    if tip is None or tip not in records:
        return False
    return _within(chain(records, tip), checkpoint)


def choose_parent(
    records: Records,
    candidates: Collection[CheckpointId],
    expected: CheckpointId | None,
    broken: Collection[CheckpointId] = (),
    unreadable: Collection[Incarnation] = (),
) -> Choice:
    """What a new incarnation resumes from. C2: call it with what was listed *after* the own claim was written.

    `candidates`: all that is visible, on disk, in trash and in memory slots that all members hold.
    `expected`: the newest committed checkpoint that controller and members know of (C8).
    `broken`: those of them that failed verification; the caller verifies the answer and asks again with it in here.
    `unreadable`: records that exist and cannot be read.
    """
    tip = max(records, default=None)
    if unreadable and (tip is None or max(unreadable) > tip):
        return BrokenLineage(max(unreadable))
    valid = _valid(records, candidates)
    seen = max(valid, default=None)
    if expected is not None and not _superseded(records, expected) and (seen is None or seen < expected):
        return NotVisible(expected, seen)
    whole = [checkpoint for checkpoint in valid if checkpoint not in broken]
    if whole:
        return Parent(max(whole))
    gap = _gap(records)
    if gap is not None:
        return BrokenLineage(gap)
    return NothingWhole(tuple(sorted(valid))) if valid else Parent(None)


def next_incarnation(taken: Iterable[Incarnation], generation: int) -> Incarnation:
    """C1: the first free attempt of `generation`, given every claim and record name there is.

    Raises FencedError when a newer generation has begun.
    """
    newest = max(taken, default=Incarnation(generation, 0))
    if newest.generation > generation:
        raise FencedError(f"generation {generation} is over: {newest} has been claimed; stop the ranks and exit")
    attempt = newest.attempt if newest.generation == generation else 0
    return Incarnation(generation, attempt + 1)


def is_void(claims: Iterable[Incarnation], own: Incarnation) -> Incarnation | None:
    """C2: the newest claim, if it is newer than `own`.

    Then what `own` just renamed into place counts only if the newer record names it (ask `on_chain` once it is there).
    """
    newest = max(claims, default=own)
    return newest if newest > own else None


def _valid(records: Records, candidates: Iterable[CheckpointId]) -> list[CheckpointId]:
    tip = max(records, default=None)
    links = () if tip is None else chain(records, tip)
    return [checkpoint for checkpoint in candidates if _within(links, checkpoint)]


def _within(links: tuple[Link, ...], checkpoint: CheckpointId) -> bool:
    return any(
        link.incarnation == checkpoint.incarnation and (link.left_at is None or checkpoint.step <= link.left_at)
        for link in links
    )


def _gap(records: Records) -> Incarnation | None:
    """The incarnation at which the newest record's chain breaks off for want of a record."""
    tip = max(records, default=None)
    last = None if tip is None else chain(records, tip)[-1].incarnation
    return last if last is not None and last not in records else None


def _superseded(records: Records, expected: CheckpointId) -> bool:
    """A visible record left `expected` behind (a roll-back). An absent record proves nothing."""
    tip, gap = max(records, default=None), _gap(records)
    if tip is None or tip < expected.incarnation or (gap is not None and expected.incarnation < gap):
        return False
    return not on_chain(records, expected)
