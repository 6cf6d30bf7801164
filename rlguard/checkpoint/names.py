"""Names in the checkpoint root <-> values. A name that is not ours is None: foreign files are never fatal.

Only the canonical spelling counts (`3.2`, never `03.2`), so that one value has one name and a link can fence.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from rlguard.model import CheckpointId, Incarnation

LINEAGE: Final = "lineage"
STEPS: Final = "steps"
TMP: Final = "tmp"
TRASH: Final = "trash"
INCIDENTS: Final = "incidents"
COMPLETED: Final = "completed.json"
MANIFEST: Final = "rlguard.json"

MOST: Final = 10**12
"""No life of a group counts so far; a greater number was made up, and counting on from it would run out of digits."""

_CLAIM: Final = ".claim"
_RECORD: Final = ".json"
_TOKEN: Final = re.compile(r"[A-Za-z0-9-]{1,64}")
_FILE: Final = re.compile(r"[A-Za-z0-9._@+=-]{1,200}")


class TmpName(NamedTuple):
    """One try at writing a checkpoint. C5: every try has a name that no other try ever had."""

    checkpoint: CheckpointId
    pod_uid: str
    nonce: str

    def __str__(self) -> str:
        return f"{self.checkpoint}.{self.pod_uid}.{self.nonce}"


def claim_name(incarnation: Incarnation) -> str:
    """The claim's file name in `lineage/`."""
    return f"{incarnation}{_CLAIM}"


def record_name(incarnation: Incarnation) -> str:
    """The record's file name in `lineage/`."""
    return f"{incarnation}{_RECORD}"


def parse_incarnation(name: str) -> Incarnation | None:
    """A folder name in `trash/`, or None."""
    try:
        incarnation = Incarnation.parse(name)
    except ValueError:
        return None
    return incarnation if str(incarnation) == name and max(incarnation) <= MOST else None


def parse_claim(name: str) -> Incarnation | None:
    """A claim's file name in `lineage/`, or None."""
    return parse_incarnation(name.removesuffix(_CLAIM)) if name.endswith(_CLAIM) else None


def parse_record(name: str) -> Incarnation | None:
    """A record's file name in `lineage/`, or None."""
    return parse_incarnation(name.removesuffix(_RECORD)) if name.endswith(_RECORD) else None


def parse_checkpoint(name: str) -> CheckpointId | None:
    """A folder name in `steps/` (or of a pruned one in `trash/<incarnation>/`), or None."""
    try:
        checkpoint = CheckpointId.parse(name)
    except ValueError:
        return None
    return checkpoint if str(checkpoint) == name and max(checkpoint.incarnation) <= MOST else None


def parse_tmp(name: str) -> TmpName | None:
    """A folder name in `tmp/` (or of something set aside in `trash/<incarnation>/`), or None."""
    head, _, nonce = name.rpartition(".")
    head, _, pod_uid = head.rpartition(".")
    checkpoint = parse_checkpoint(head)
    if checkpoint is None or not is_token(pod_uid) or not is_token(nonce):
        return None
    return TmpName(checkpoint, pod_uid, nonce)


def is_token(text: str) -> bool:
    """Can this be a pod UID or a nonce inside a name: letters, digits, dashes, at most 64."""
    return _TOKEN.fullmatch(text) is not None


def is_data_file(name: str) -> bool:
    """Can this be a file of a checkpoint: one plain name, not the manifest's, leading nowhere else."""
    return _FILE.fullmatch(name) is not None and name not in {".", "..", MANIFEST}
