"""The store for asyncio: each call runs in a child process that is killed when it falls silent (C9)."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any, Final

from rlguard.checkpoint import names
from rlguard.checkpoint.records import Claim, file_entry
from rlguard.errors import StoreError, StoreHungError
from rlguard.io import storewire
from rlguard.io.childprocess import ChildProcess
from rlguard.model import CheckpointId, Incarnation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rlguard.checkpoint.names import TmpName
    from rlguard.checkpoint.outcomes import CommitResult, Scan, Verification
    from rlguard.checkpoint.records import Completed, Manifest, Record
    from rlguard.io.storecopy import Held
    from rlguard.messages import FileEntry

SILENCE_S: Final = 30.0
"""Seconds without a sign of life after which a call is hung; a copy that moves on gives signs."""

MOST_STUCK: Final = 4
"""Killed children that the kernel does not let die (D state) before no more are started."""

_LINE_BYTES: Final = 64 << 20


class StoreClient:
    """One checkpoint root. One call runs at a time, others wait for it; `close` it at the end.

    Every method raises StoreHungError when nothing is heard for `silence_s`, else what `Store` raises. After a hang
    the same call may be repeated: all operations of the store may be.
    """

    def __init__(self, root: Path, command: Sequence[str] = (sys.executable, "-m", "rlguard.io.storechild")) -> None:
        self.root = root
        self._lock = asyncio.Lock()
        self._child = ChildProcess((*command, str(root)), _LINE_BYTES)

    async def call(self, operation: str, args: Mapping[str, Any] | None = None, silence_s: float = SILENCE_S) -> Any:
        """One operation of `storewire.OPERATIONS`, with its answer as JSON."""
        request = json.dumps({"op": operation, "args": dict(args or {})}).encode() + b"\n"
        async with self._lock:
            await self._have_child()
            try:
                answer = await self._answer(request, silence_s)
            except TimeoutError:
                await self._child.kill()
                raise StoreHungError(
                    f"{self.root}: no answer to '{operation}' for {silence_s:g} s: the file system hangs; "
                    f"check its server and this node's mount"
                ) from None
            except BaseException:  # also cancelled: the next call must not read this one's answer
                await self._child.kill()
                raise
        if "error" in answer:
            raise storewire.error_from_json(answer["error"])
        return answer["ok"]

    async def scan(self, silence_s: float = SILENCE_S) -> Scan:
        """See `Store.scan`."""
        return storewire.scan_from_json(await self.call("scan", silence_s=silence_s))

    async def claim_next(self, generation: int, leader_uid: str, nonce: str, silence_s: float = SILENCE_S) -> Claim:
        """See `Store.claim_next`."""
        args = {"generation": generation, "leader_uid": leader_uid, "nonce": nonce}
        raw = await self.call("claim_next", args, silence_s)
        return Claim.from_json(Incarnation.parse(raw["incarnation"]), raw)

    async def record(self, record: Record, silence_s: float = SILENCE_S) -> None:
        """See `Store.record`."""
        await self.call("record", {"record": record.to_json()}, silence_s)

    async def begin(self, checkpoint: CheckpointId, pod_uid: str, nonce: str, silence_s: float = SILENCE_S) -> TmpName:
        """See `Store.begin`."""
        args = {"checkpoint": str(checkpoint), "pod_uid": pod_uid, "nonce": nonce}
        return storewire.tmp_from_json(await self.call("begin", args, silence_s))

    async def put_file(
        self,
        tmp: TmpName,
        name: str,
        source: Path,
        size: int | None = None,
        held: Held | None = None,
        silence_s: float = SILENCE_S,
    ) -> FileEntry:
        """See `Store.put_file`."""
        slot = storewire.held_to_json(held)
        args = {"tmp": str(tmp), "name": name, "source": str(source), "size": size, "held": slot}
        return file_entry(await self.call("put_file", args, silence_s))

    async def commit(
        self, tmp: TmpName, manifest: Manifest, wait_s: float = 60.0, silence_s: float = SILENCE_S
    ) -> CommitResult:
        """See `Store.commit`."""
        args = {"tmp": str(tmp), "manifest": manifest.to_json(), "wait_s": wait_s}
        return storewire.commit_from_json(await self.call("commit", args, silence_s))

    async def discard(self, tmp: TmpName, silence_s: float = SILENCE_S) -> None:
        """See `Store.discard`."""
        await self.call("discard", {"tmp": str(tmp)}, silence_s)

    async def verify(self, checkpoint: CheckpointId, *, deep: bool, silence_s: float = SILENCE_S) -> Verification:
        """See `Store.verify`."""
        args = {"checkpoint": str(checkpoint), "deep": deep}
        return storewire.verification_from_json(await self.call("verify", args, silence_s))

    async def restore(self, checkpoint: CheckpointId, silence_s: float = SILENCE_S) -> None:
        """See `Store.restore`."""
        await self.call("restore", {"checkpoint": str(checkpoint)}, silence_s)

    async def complete(self, own: Incarnation, completed: Completed, silence_s: float = SILENCE_S) -> None:
        """See `Store.complete`."""
        await self.call("complete", {"own": str(own), "completed": completed.to_json()}, silence_s)

    async def incident(self, incident: str, contents: Mapping[str, bytes], silence_s: float = SILENCE_S) -> None:
        """See `Store.incident`."""
        await self.call("incident", {"id": incident, "contents": storewire.bytes_to_json(contents)}, silence_s)

    async def prune(self, own: Incarnation, keep: int, silence_s: float = SILENCE_S) -> tuple[CheckpointId, ...]:
        """See `storeprune.prune`."""
        moved = await self.call("prune", {"own": str(own), "keep": keep}, silence_s)
        return tuple(map(CheckpointId.parse, moved))

    async def trash(self, silence_s: float = SILENCE_S) -> tuple[str, ...]:
        """See `storeprune.trash`."""
        return tuple(await self.call("trash", silence_s=silence_s))

    async def purge(self, own: Incarnation, entries: Sequence[str], silence_s: float = SILENCE_S) -> None:
        """See `storeprune.purge`."""
        await self.call("purge", {"own": str(own), "entries": list(entries)}, silence_s)

    def path_of(self, checkpoint: CheckpointId) -> Path:
        """Where a committed checkpoint lies."""
        return self.root / names.STEPS / str(checkpoint)

    async def close(self) -> None:
        """End the child. One that the kernel holds is left to die later."""
        async with self._lock:
            await self._child.kill()

    async def _have_child(self) -> None:
        if self._child.is_running:
            return
        if self._child.stuck >= MOST_STUCK:
            raise StoreHungError(f"{self.root}: {self._child.stuck} processes hang in it; no more are started")
        await self._child.start()

    async def _answer(self, request: bytes, silence_s: float) -> dict[str, Any]:
        self._child.write(request)
        while True:
            async with asyncio.timeout(silence_s):
                line = await _line(self._child)
            if not line.endswith(b"\n"):
                raise StoreError(f"{self.root}: the store's process died in the middle of a call; call again")
            try:
                answer: dict[str, Any] = json.loads(line)
            except ValueError as error:
                raise StoreError(f"{self.root}: the store's process answered no JSON: {line[:200]!r}") from error
            if "progress" not in answer:
                return answer


async def _line(child: ChildProcess) -> bytes:
    try:
        return await child.read_line()
    except ValueError as error:
        raise StoreError(
            f"the store's process answered more than {_LINE_BYTES} bytes: is the root full of files?"
        ) from error
