"""Requests to the store's process and its answers <-> JSON: one table of operations for both ends."""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rlguard.checkpoint import names
from rlguard.checkpoint.names import TmpName
from rlguard.checkpoint.outcomes import Absent, Broken, CommitResult, Committed, Scan, Verification, Void, Whole
from rlguard.checkpoint.records import Claim, Completed, Manifest, Record
from rlguard.errors import BadWireError, FencedError, RlguardError, StoreError, StoreState, TornReadError
from rlguard.io import storeprune
from rlguard.io.storecopy import Held
from rlguard.model import CheckpointId, Incarnation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rlguard.io.store import Store

Fields = dict[str, Any]

_ERRORS: Final[Mapping[str, type[RlguardError]]] = {
    kind.__name__: kind for kind in (FencedError, TornReadError, BadWireError)
}


def scan_to_json(scan: Scan) -> Fields:
    """A scan as JSON."""
    return {
        "exists": scan.exists,
        "claimed": [str(one) for one in sorted(scan.claimed)],
        "claims": {str(one): claim.to_json() for one, claim in scan.claims.items()},
        "records": [record.to_json() for record in scan.records.values()],
        "unreadable": [str(one) for one in sorted(scan.unreadable)],
        "committed": [str(one) for one in sorted(scan.committed)],
        "trashed": {str(one): str(folder) for one, folder in scan.trashed.items()},
        "completed": scan.completed.to_json() if scan.completed else None,
        "problems": list(scan.problems),
    }


def scan_from_json(raw: Fields) -> Scan:
    """The scan that `scan_to_json` wrote."""
    parse = Incarnation.parse
    return Scan(
        exists=raw["exists"],
        claimed=frozenset(map(parse, raw["claimed"])),
        claims={parse(one): Claim.from_json(parse(one), claim) for one, claim in raw["claims"].items()},
        records={record.incarnation: record for record in map(Record.from_json, raw["records"])},
        unreadable=frozenset(map(parse, raw["unreadable"])),
        committed=frozenset(map(CheckpointId.parse, raw["committed"])),
        trashed={CheckpointId.parse(one): parse(folder) for one, folder in raw["trashed"].items()},
        completed=Completed.from_json(raw["completed"]) if raw["completed"] else None,
        problems=tuple(raw["problems"]),
    )


def commit_to_json(result: CommitResult) -> Fields:
    """The end of a commit as JSON; `newer` null: committed."""
    newer = str(result.newer) if isinstance(result, Void) else None
    return {"checkpoint": str(result.checkpoint), "newer": newer}


def commit_from_json(raw: Fields) -> CommitResult:
    """The end of a commit."""
    checkpoint = CheckpointId.parse(raw["checkpoint"])
    return Committed(checkpoint) if raw["newer"] is None else Void(checkpoint, Incarnation.parse(raw["newer"]))


def verification_to_json(found: Verification) -> Fields:
    """A verification as JSON; both null: absent."""
    manifest = found.manifest.to_json() if isinstance(found, Whole) else None
    return {"manifest": manifest, "broken": found.reason if isinstance(found, Broken) else None}


def verification_from_json(raw: Fields) -> Verification:
    """A verification."""
    if raw["manifest"] is not None:
        return Whole(Manifest.from_json(raw["manifest"]))
    return Absent() if raw["broken"] is None else Broken(raw["broken"])


def held_to_json(held: Held | None) -> Fields | None:
    """A slot header as JSON."""
    return None if held is None else asdict(held)


def error_to_json(error: RlguardError) -> Fields:
    """An error as JSON."""
    state = str(error.state) if isinstance(error, StoreError) else None
    return {"kind": type(error).__name__, "message": str(error), "state": state}


def error_from_json(raw: Fields) -> RlguardError:
    """The error that the other end raised."""
    kind = _ERRORS.get(raw["kind"])
    if kind is not None:
        return kind(raw["message"])
    return StoreError(raw["message"], StoreState(raw["state"] or StoreState.FAILED))


def bytes_to_json(contents: Mapping[str, bytes]) -> dict[str, str]:
    """File contents as JSON."""
    return {name: b64encode(content).decode() for name, content in contents.items()}


def tmp_from_json(text: str) -> TmpName:
    """The name of a try, as members get it from the committer. Raises BadWireError."""
    tmp = names.parse_tmp(text)
    if tmp is None:
        raise BadWireError(f"not the name of a try: {text!r}")
    return tmp


def _claim_next(store: Store, args: Fields) -> Fields:
    claim = store.claim_next(args["generation"], args["leader_uid"], args["nonce"])
    return {"incarnation": str(claim.incarnation), **claim.to_json()}


def _put_file(store: Store, args: Fields) -> Fields:
    held = None if args["held"] is None else Held(**args["held"])
    tmp = tmp_from_json(args["tmp"])
    return asdict(store.put_file(tmp, args["name"], Path(args["source"]), args["size"], held))


def _begin(store: Store, args: Fields) -> str:
    return str(store.begin(CheckpointId.parse(args["checkpoint"]), args["pod_uid"], args["nonce"]))


def _commit(store: Store, args: Fields) -> Fields:
    tmp, manifest = tmp_from_json(args["tmp"]), Manifest.from_json(args["manifest"])
    return commit_to_json(store.commit(tmp, manifest, args["wait_s"]))


def _verify(store: Store, args: Fields) -> Fields:
    return verification_to_json(store.verify(CheckpointId.parse(args["checkpoint"]), deep=args["deep"]))


def _complete(store: Store, args: Fields) -> None:
    store.complete(Incarnation.parse(args["own"]), Completed.from_json(args["completed"]))


def _incident(store: Store, args: Fields) -> str:
    return str(store.incident(args["id"], {name: b64decode(text) for name, text in args["contents"].items()}))


def _prune(store: Store, args: Fields) -> list[str]:
    return [str(one) for one in storeprune.prune(store, Incarnation.parse(args["own"]), args["keep"])]


def _purge(store: Store, args: Fields) -> None:
    storeprune.purge(store, Incarnation.parse(args["own"]), tuple(args["entries"]))


OPERATIONS: Final[Mapping[str, Callable[[Store, Fields], Any]]] = {
    "scan": lambda store, _args: scan_to_json(store.scan()),
    "claim_next": _claim_next,
    "record": lambda store, args: store.record(Record.from_json(args["record"])),
    "begin": _begin,
    "put_file": _put_file,
    "commit": _commit,
    "discard": lambda store, args: store.discard(tmp_from_json(args["tmp"])),
    "verify": _verify,
    "restore": lambda store, args: store.restore(CheckpointId.parse(args["checkpoint"])),
    "complete": _complete,
    "incident": _incident,
    "prune": _prune,
    "trash": lambda store, _args: list(storeprune.trash(store)),
    "purge": _purge,
}
