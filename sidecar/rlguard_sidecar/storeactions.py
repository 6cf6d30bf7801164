"""The coordinator's actions that touch the checkpoint root, each answered by the fact that its docstring names."""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import rlguard
from rlguard.checkpoint import names, outcomes, records
from rlguard.errors import FencedError, RlguardError, StoreError, StoreState
from rlguard.group import coordinator_facts
from rlguard.group.coordinator_facts import LineageScan, Operation
from rlguard.io.storeclient import StoreClient
from rlguard.model import CheckpointId, Incarnation
from rlguard.wire import to_json
from rlguard_sidecar.rootcheck import check, is_there, volume_of

CLAIM_WITHIN: Final = 5.0
"""C9: claims and records are small; a root that takes longer than so many seconds for one hangs."""
LOOK_WITHIN: Final = 10.0
"""The same for a look at everything; the first one also starts the child."""

Fact = coordinator_facts.CoordinatorFact


@dataclass(frozen=True, slots=True)
class Stores:
    """Two children for one root, so that a long commit does not delay a claim. `durable`: it is the shared one."""

    lineage: StoreClient
    bulk: StoreClient
    durable: bool


class StoreActions:
    """Does one action at a time as it is told to; `now` is CLOCK_BOOTTIME in seconds."""

    def __init__(
        self, stores: Stores, pod_uid: str, job_uid: Callable[[], str | None], now: Callable[[], float]
    ) -> None:
        self._stores = stores
        self._uid = pod_uid
        self._job_uid = job_uid
        self._now = now
        self._nonces: dict[Incarnation, str] = {}
        self._own: Incarnation | None = None
        self._volume_seen = not stores.durable
        self._committed: set[CheckpointId] = set()
        self._do: Mapping[type, tuple[Operation, Callable[[Any], Awaitable[Fact]]]] = {
            coordinator_facts.LookAtDisk: (Operation.LOOK, self._look),
            coordinator_facts.ClaimAttempt: (Operation.CLAIM, self._claim),
            coordinator_facts.VerifyCheckpoint: (Operation.VERIFY, self._verify),
            coordinator_facts.WriteRecord: (Operation.RECORD, self._record),
            coordinator_facts.ReservePort: (Operation.PORT, self._reserve),
            coordinator_facts.BeginFlush: (Operation.BEGIN_FLUSH, self._begin),
            coordinator_facts.Commit: (Operation.COMMIT, self._commit),
            coordinator_facts.MarkComplete: (Operation.COMPLETE, self._complete),
            coordinator_facts.WriteIncident: (Operation.INCIDENT, self._incident),
        }

    @property
    def bulk(self) -> StoreClient:
        """The child for what may take long."""
        return self._stores.bulk

    def operation(self, action: Any) -> Operation | None:
        """Which operation an action is, None for one that is not ours."""
        found = self._do.get(type(action))
        return found[0] if found else None

    async def do(self, action: Any) -> Fact:
        """Do it. Whatever the root does, there is an answer."""
        operation, method = self._do[type(action)]
        try:
            await self._see_volume()
            return await method(action)
        except (RlguardError, OSError) as error:
            return coordinator_facts.StoreFailed(self._now(), operation, str(error))

    async def _see_volume(self) -> None:
        """Raise StoreError until the volume has once been seen: where none is mounted no lineage may begin."""
        if self._volume_seen:
            return
        problem = await check(volume_of(str(self._stores.lineage.root)))
        if not is_there(problem):
            raise StoreError(problem, StoreState.MISSING)
        self._volume_seen = True

    async def _scan(self) -> LineageScan:
        scan = await self._stores.lineage.scan(LOOK_WITHIN)
        own = [one for one, claim in scan.claims.items() if claim.leader_uid == self._uid]
        self._own = max(own, default=None)
        return to_fact(scan, self._job_uid())

    async def _look(self, _action: coordinator_facts.LookAtDisk) -> Fact:
        return coordinator_facts.DiskSeen(self._now(), await self._scan())

    async def _claim(self, action: coordinator_facts.ClaimAttempt) -> Fact:
        asked = action.incarnation
        nonce = self._nonces.setdefault(asked, secrets.token_hex(8))
        try:
            claim = await self._stores.lineage.claim_next(asked.generation, action.leader_uid, nonce, CLAIM_WITHIN)
        except FencedError:
            return coordinator_facts.ClaimRefused(self._now(), asked, await self._scan())
        scan = await self._scan()
        newest = max((one for one, _ in scan.claims), default=asked)
        if claim.incarnation != asked or newest != asked:
            return coordinator_facts.ClaimRefused(self._now(), asked, scan)
        return coordinator_facts.Claimed(self._now(), asked, nonce, scan)

    async def _verify(self, action: coordinator_facts.VerifyCheckpoint) -> Fact:
        checkpoint, store = action.checkpoint, self._stores.lineage
        # What this process committed it has hashed; of anything else every byte is read before it is trusted.
        deep = checkpoint not in self._committed
        found = await store.verify(checkpoint, deep=deep)
        if isinstance(found, outcomes.Absent):
            await self._restore(checkpoint)
            found = await store.verify(checkpoint, deep=deep)
        if isinstance(found, outcomes.Whole):
            directory = str(store.path_of(checkpoint))
            return coordinator_facts.Verified(
                self._now(),
                checkpoint,
                whole=True,
                directory=directory,
                world_size=found.manifest.world_size,
                detail="",
            )
        detail = found.reason if isinstance(found, outcomes.Broken) else "it is not there"
        return coordinator_facts.Verified(self._now(), checkpoint, False, None, None, detail)  # noqa: FBT003 - not whole

    async def _restore(self, checkpoint: CheckpointId) -> None:
        try:
            await self._stores.lineage.restore(checkpoint)
        except StoreError as error:
            if error.state is not StoreState.MISSING:
                raise

    async def _record(self, action: coordinator_facts.WriteRecord) -> Fact:
        await self._stores.lineage.record(action.record, CLAIM_WITHIN)
        return coordinator_facts.Recorded(self._now(), action.record.incarnation)

    async def _reserve(self, action: coordinator_facts.ReservePort) -> Fact:
        # The master listens on every address of the pod, so the port must be free on all of them.
        with socket.create_server(("", 0)) as reserved:
            return coordinator_facts.PortReserved(self._now(), action.incarnation, int(reserved.getsockname()[1]))

    async def _begin(self, action: coordinator_facts.BeginFlush) -> Fact:
        if not self._stores.durable:
            raise StoreError("no checkpoint root is configured: nothing can be flushed", StoreState.MISSING)
        nonce = secrets.token_hex(8)
        tmp = await self._stores.bulk.begin(action.checkpoint, self._uid, nonce)
        directory = self._stores.bulk.root / names.TMP / str(tmp)
        return coordinator_facts.FlushBegun(self._now(), nonce, action.checkpoint, str(directory))

    async def _commit(self, action: coordinator_facts.Commit) -> Fact:
        tmp = names.TmpName(action.checkpoint, self._uid, action.nonce)
        manifest = records.Manifest(
            action.checkpoint, action.world_size, action.job_uid, self._uid, action.files, rlguard.__version__
        )
        result = await self._stores.bulk.commit(tmp, manifest)
        # The store compares with the checkpoint's incarnation; a flush may outlive the attempt that staged it.
        if isinstance(result, outcomes.Void) and result.newer > action.incarnation:
            scan = await self._stores.bulk.scan()
            claim = scan.claims.get(result.newer)
            leader = claim.leader_uid if claim is not None else ""
            return coordinator_facts.Voided(self._now(), action.checkpoint, result.newer, leader)
        self._committed.add(action.checkpoint)
        return coordinator_facts.Committed(
            self._now(), action.checkpoint, str(self._stores.bulk.path_of(action.checkpoint))
        )

    async def _complete(self, action: coordinator_facts.MarkComplete) -> Fact:
        if self._own is None:
            await self._scan()
        if self._own is None:
            raise StoreError("this leader pod has claimed nothing: it cannot complete the job", StoreState.MISSING)
        completed = records.Completed(action.checkpoint, action.job_uid)
        await self._stores.lineage.complete(self._own, completed)
        return coordinator_facts.MarkedComplete(self._now())

    async def _incident(self, action: coordinator_facts.WriteIncident) -> Fact:
        contents = {f"{pod}.txt": tail.encode() for pod, tail in action.tails}
        contents["incident.json"] = (json.dumps(to_json(action.incident), indent=1) + "\n").encode()
        await self._stores.lineage.incident(action.incident.id, contents)
        return coordinator_facts.IncidentWritten(self._now(), action.incident)


def to_fact(scan: outcomes.Scan, job_uid: str | None) -> LineageScan:
    """The store's scan as the coordinator's core wants it. `job_uid` None: not known yet, no completion counts."""
    claims = dict.fromkeys(scan.claimed, "") | {one: claim.leader_uid for one, claim in scan.claims.items()}
    return LineageScan(
        claims=tuple(sorted(claims.items())),
        records=tuple(scan.records[one] for one in sorted(scan.records)),
        unreadable=tuple(sorted(scan.unreadable)),
        visible=tuple(sorted(scan.committed | frozenset(scan.trashed))),
        completed=is_completed(scan, job_uid),
    )


def is_completed(scan: outcomes.Scan, job_uid: str | None) -> bool:
    """C10: is this very job done; a mark of an earlier job of the same name says nothing."""
    return scan.completed is not None and scan.completed.job_uid == job_uid


def stores_of(root: str | None, private: Path) -> Stores:
    """The stores for a root. Without one the lineage lies in a folder of this pod: memory slots are valid by it."""
    folder = private / "lineage" if root is None else Path(root)
    return Stores(StoreClient(folder), StoreClient(folder), durable=root is not None)
