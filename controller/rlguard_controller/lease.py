"""Which of the controllers leads: one Lease, and a label on the leader's pod by which its Service finds it.

No two machines' clocks are compared: a Lease counts as abandoned when it has not changed for its duration as seen
here. A leader that cannot renew stops acting (it can write nothing then anyway) but goes on telling what is written;
only another holder ends its turn.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final

from rlguard.io.kube import Json, Kube, KubeError

NAME: Final = "rlguard-controller"
LABEL: Final = "rlguard.io/leader"
DURATION: Final = 10.0
"""A Lease that nobody has renewed for so long, in seconds, may be taken."""
RENEW: Final = 2.0
ACT: Final = 7.0
"""A leader acts only within so many seconds after its last renewal, so it has stopped before another one begins."""
END_WITHIN: Final = 5.0
"""A turn that does not end so many seconds after it was told to never will."""


class Election:
    """One candidate; `holding()` says whether it may act now."""

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        pod: str,
        now: Callable[[], float],
        log: Any,
        give_up: Callable[[], None] = lambda: os._exit(1),
    ) -> None:
        """`give_up` ends the process at once: what does not heed a cancellation does not heed another one either."""
        self._kube = kube
        self._namespace = namespace
        self._pod = pod
        self._now = now
        self._log = log
        self._give_up = give_up
        self._seen: tuple[str, float] | None = None
        self._renewed_at: float | None = None
        self._lost = False

    def holding(self) -> bool:
        """True while the Lease is ours beyond doubt."""
        return self._renewed_at is not None and self._now() - self._renewed_at <= ACT

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Lead whenever the Lease is ours, for ever. An error of `lead` is raised."""
        await self._mark(leading=False)
        while True:
            if await self._try():
                await self._turn(lead)
            await asyncio.sleep(RENEW)

    async def _turn(self, lead: Callable[[], Awaitable[None]]) -> None:
        self._log.info("this controller leads")
        turn = asyncio.ensure_future(lead())
        marked = False
        try:
            while not turn.done():
                marked = marked or await self._mark(leading=True)
                await asyncio.wait([turn], timeout=RENEW)
                if not await self._try() and self._lost:
                    self._log.warning("another controller leads")
                    return
            turn.result()
        finally:
            self._renewed_at = None
            await self._end(turn)
            await self._mark(leading=False)
            await self._release()

    async def _end(self, turn: asyncio.Future[None]) -> None:
        """End the turn, or else the process: a former leader that goes on serving would keep all links to itself."""
        turn.cancel()
        await asyncio.wait([turn], timeout=END_WITHIN)
        if turn.done():
            await asyncio.gather(turn, return_exceptions=True)
            return
        stuck = [f"{task.get_name()}: {_where(task)}" for task in asyncio.all_tasks()]
        self._log.error("the turn as the leader does not end; this process is started again", tasks=stuck)
        self._give_up()

    async def _try(self) -> bool:
        """Take or renew the Lease. False: it is another's, or the API server is away."""
        asked_at = self._now()
        self._lost = False
        try:
            ours = await self._take()
        except KubeError as error:
            self._log.info("the Lease could not be renewed", error=str(error))
            return False
        self._lost = not ours
        self._renewed_at = asked_at if ours else None
        return ours

    async def _take(self) -> bool:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{self._namespace}/leases"
        lease = await self._kube.find(f"{path}/{NAME}")
        if lease is None:
            await self._kube.create(path, self._lease({}, {}, self._pod))
        elif self._may_take(lease):
            spec = lease.get("spec") or {}
            await self._kube.replace(f"{path}/{NAME}", self._lease(lease["metadata"], spec, self._pod))
        else:
            return False
        return True

    async def _release(self) -> None:
        """Let the next one begin at once."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/{self._namespace}/leases/{NAME}"
        try:
            lease = await self._kube.get(path)
            if lease["spec"].get("holderIdentity") == self._pod:
                await self._kube.replace(path, self._lease(lease["metadata"], lease["spec"], ""))
        except KubeError as error:
            self._log.info("the Lease was not released", error=str(error))

    def _may_take(self, lease: Json) -> bool:
        spec = lease.get("spec") or {}
        if spec.get("holderIdentity") in (self._pod, "", None):
            return True
        version = lease["metadata"]["resourceVersion"]
        if self._seen is None or self._seen[0] != version:
            self._seen = (version, self._now())
        return self._now() - self._seen[1] > DURATION

    def _lease(self, metadata: Json, spec: Json, holder: str) -> Json:
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        mine = spec.get("holderIdentity") == self._pod
        turns = int(spec.get("leaseTransitions") or 0)
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {**metadata, "name": NAME, "namespace": self._namespace},
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": int(DURATION),
                "acquireTime": spec.get("acquireTime", stamp) if mine else stamp,
                "renewTime": stamp,
                "leaseTransitions": turns if mine or not spec else turns + 1,
            },
        }

    async def _mark(self, *, leading: bool) -> bool:
        """Put the leader's label on our pod and take it off all others; True once that is done."""
        path = f"/api/v1/namespaces/{self._namespace}/pods"
        try:
            if leading:
                found = await self._kube.list(path, {"labelSelector": f"{LABEL}=true", "resourceVersion": ""})
                names = [item["metadata"]["name"] for item in found.items]
                for name in [name for name in names if name != self._pod]:
                    await self._label(f"{path}/{name}", None)
            await self._label(f"{path}/{self._pod}", "true" if leading else None)
        except KubeError as error:
            self._log.warning("the leader's label could not be set", leading=leading, error=str(error))
            return False
        return True

    async def _label(self, path: str, value: str | None) -> None:
        await self._kube.patch(path, {"metadata": {"labels": {LABEL: value}}})


def _where(task: asyncio.Task[Any]) -> str:
    """The functions that a task waits in, outermost first."""
    names: list[str] = []
    inner: Any = task.get_coro()
    while hasattr(inner, "cr_code"):
        names.append(f"{inner.cr_code.co_name}:{inner.cr_frame.f_lineno if inner.cr_frame else 0}")
        inner = inner.cr_await
    return " > ".join([*names, type(inner).__name__])
