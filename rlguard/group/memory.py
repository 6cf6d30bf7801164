"""The two slots of a pod's memory: which may be overwritten, and what became of a stage (M1)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from rlguard.group.member_facts import RankSeen, SlotSeen
from rlguard.messages import FlushOrder, StageResult, StageState
from rlguard.model import CheckpointId, Incarnation

SLOTS: Final = (0, 1)
WORST_FIRST: Final = (StageResult.PAST, StageResult.FAILED, StageResult.SKIPPED)


@dataclass(frozen=True, slots=True)
class Reading:
    """A flush that reads `slot`."""

    order: FlushOrder
    slot: int


@dataclass(frozen=True, slots=True)
class StageChoice:
    """What this member made of the stage order numbered `order`. `slot` None: none was free, skipped."""

    order: int
    incarnation: Incarnation
    step: int
    slot: int | None


def slot_with(slots: Collection[SlotSeen], checkpoint: CheckpointId | None) -> int | None:
    """The slot that holds exactly `checkpoint`, whole."""
    if checkpoint is None:
        return None
    return next((slot.slot for slot in slots if slot.checkpoint == checkpoint), None)


def choose_slot(
    slots: Collection[SlotSeen], confirmed: CheckpointId | None, read: Collection[int], loading: int | None
) -> int | None:
    """M1: never the slot of the checkpoint that all members hold, nor one that a flush or a load reads."""
    kept = slot_with(slots, confirmed)
    free = [slot for slot in SLOTS if slot not in {kept, loading, *read}]
    return min(free, key=lambda slot: (_held(slots, slot) is not None, _held(slots, slot) or _NEVER), default=None)


_NEVER: Final = CheckpointId(Incarnation(0, 0), 0)


def _held(slots: Collection[SlotSeen], slot: int) -> CheckpointId | None:
    return next((item.checkpoint for item in slots if item.slot == slot), None)


def stage_state(
    choice: StageChoice | None, ranks: Collection[RankSeen], slots: Collection[SlotSeen]
) -> StageState | None:
    """The answer to the newest stage order, from what all ranks of the pod say."""
    if choice is None:
        return None
    own = [rank for rank in ranks if rank.incarnation == choice.incarnation and rank.hook]
    furthest = max((rank.step for rank in own if rank.step is not None), default=0)
    return StageState(choice.order, choice.step, _result(choice, own, slots), furthest)


def _result(choice: StageChoice, own: list[RankSeen], slots: Collection[SlotSeen]) -> StageResult:
    if choice.slot is None:
        return StageResult.SKIPPED
    answers = [rank.result for rank in own if rank.order == choice.order]
    for result in WORST_FIRST:
        if result in answers:
            return result
    whole = slot_with(slots, CheckpointId(choice.incarnation, choice.step)) == choice.slot
    all_staged = bool(own) and answers.count(StageResult.STAGED) == own[0].local_world_size
    return StageResult.STAGED if whole and all_staged else StageResult.PENDING
