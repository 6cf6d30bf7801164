"""The shared file systems of the guarded pods on this node, each asked every ten seconds whether it is still there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rlguard.health.assess import CannotLook, Fact, Observed, Source
from rlguard.health.storage import Mount, NotProbed, Probed, builtin, judge, read_mounts
from rlguard.io.clock import boottime
from rlguard.io.mounts import COMMAND, MountProbe, mount_table

EVERY: Final = 10.0
ANSWER_WITHIN: Final = 10.0
"""Seconds after which a file system hangs; a busy one may take some."""
MOST_PROBES: Final = 16
"""File systems asked, each by a process of its own."""
_ADVICE: Final = (
    "mount kubelet's folder of pods with the chart value agent.hostPaths, set RLGUARD_AGENT_PODS or "
    "RLGUARD_AGENT_MOUNTS (agent.env) if they are elsewhere, or RLGUARD_AGENT_STORAGE to off"
)


@dataclass(frozen=True, slots=True)
class Places:
    """Where to look: the mount table, kubelet's folder of pods, and what to start for each mount."""

    table: Path
    pods: Path
    command: Sequence[str] = COMMAND


class StorageSource:
    """`guarded()` names the UIDs of the pods whose mounts count."""

    def __init__(self, places: Places, guarded: Callable[[], Collection[str]], tell: Callable[[Fact], None]) -> None:
        self._places = places
        self._guarded = guarded
        self._tell = tell
        self._rules = builtin()
        self._probes: dict[str, MountProbe] = {}
        self._writable: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await self.look()
            await asyncio.sleep(EVERY)

    async def look(self) -> None:
        """Look once, and tell what is wrong. Never raises."""
        try:
            # In a thread: a disk of the node's own that hangs makes this source stuck, and nothing else.
            text = await asyncio.to_thread(self._read)
        except OSError as error:
            self._blind(f"{error}; {_ADVICE}")
            return
        mounts = read_mounts(text, str(self._places.pods), self._guarded(), self._rules)
        await self._forget(mounts)
        answers = await asyncio.gather(*(self._ask(mount) for mount in mounts))
        self._conclude(list(zip(mounts, answers, strict=True)))

    def _read(self) -> str:
        if not self._places.pods.is_dir():
            raise FileNotFoundError(f"{self._places.pods} is not there")
        return mount_table(self._places.table)

    async def _ask(self, mount: Mount) -> Probed:
        probe = self._probes.get(mount.device)
        if probe is None or (probe.point not in mount.points and not probe.stuck):
            if probe is not None:
                await probe.close()
            elif len(self._probes) >= MOST_PROBES:
                return NotProbed(f"not looked at: more than {MOST_PROBES} shared file systems on one node")
            probe = self._probes[mount.device] = MountProbe(mount.points[0], self._places.command)
        return await probe.ask(ANSWER_WITHIN)

    async def _forget(self, mounts: Sequence[Mount]) -> None:
        """End the probes of what is mounted no more; one that hangs is kept until the kernel lets go of it."""
        there = {mount.device for mount in mounts}
        for device in [device for device in self._probes if device not in there]:
            await self._probes[device].close()
            if not self._probes[device].stuck:
                del self._probes[device]

    def _conclude(self, seen: list[tuple[Mount, Probed]]) -> None:
        judged = judge(seen, self._writable, self._rules)
        self._writable = judged.writable
        if judged.faults or not judged.unseen:
            self._tell(Observed(Source.STORAGE, boottime(), judged.faults))
        if judged.unseen:
            self._blind("; ".join(judged.unseen)[:300])

    def _blind(self, reason: str) -> None:
        self._tell(CannotLook(Source.STORAGE, reason))
