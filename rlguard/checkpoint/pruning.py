"""What may be thrown away. Only moved to trash at first; unlinked an hour later by whoever leads then."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from rlguard.checkpoint.lineage import Records, is_void, on_chain
from rlguard.errors import FencedError
from rlguard.model import CheckpointId, Incarnation

ALWAYS_KEPT: Final = 2
"""C7: the last two valid ones are never touched, whatever the policy says."""

TRASH_S: Final = 3600.0
"""C7: seconds from when the then newest coordinator first saw something in trash until it may unlink it."""


def what_to_prune(
    records: Records,
    claims: Iterable[Incarnation],
    own: Incarnation,
    committed: Collection[CheckpointId],
    whole: Collection[CheckpointId],
    keep: int,
) -> tuple[CheckpointId, ...]:
    """C7: what the newest coordinator may move to trash, oldest first.

    `whole`: those of `committed` whose manifest verifies. Never a record's parent, never the newest `keep` (at least
    two) whole ones on the chain, nor anything on the chain newer than those. Until the own record is the newest
    nothing is known to be off the chain, so nothing goes. Raises FencedError on a newer claim.
    """
    newer = is_void(claims, own)
    if newer is not None:
        raise FencedError(f"{own} may prune nothing: {newer} has been claimed")
    valid = sorted(checkpoint for checkpoint in whole if on_chain(records, checkpoint))
    if max(records, default=None) != own or not valid:
        return ()
    oldest_kept = valid[-max(keep, ALWAYS_KEPT) :][0]
    parents = {record.parent for record in records.values()}
    return tuple(
        checkpoint
        for checkpoint in sorted(set(committed) - parents)
        if checkpoint < oldest_kept or not on_chain(records, checkpoint)
    )


def ripe(first_seen: Mapping[str, float], now: float) -> tuple[str, ...]:
    """C7: what may be unlinked from trash now.

    `first_seen`: when this coordinator first listed each entry, in seconds of the same clock as `now` (A6: the age
    that another machine's clock put on a file proves nothing).
    """
    return tuple(sorted(entry for entry, seen in first_seen.items() if now - seen >= TRASH_S))
