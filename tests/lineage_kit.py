"""What the lineage rules would resume from when every candidate is whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlguard.checkpoint.lineage import Parent, Records, choose_parent

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rlguard.model import CheckpointId


def newest_valid(records: Records, candidates: Iterable[CheckpointId]) -> CheckpointId | None:
    """What would be resumed from if all candidates are whole and nobody expects more; None: nothing, or no answer."""
    choice = choose_parent(records, list(candidates), None)
    return choice.checkpoint if isinstance(choice, Parent) else None
