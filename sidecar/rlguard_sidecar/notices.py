"""All that threatens this pod, in one list: what its node's agent says, and that the pod itself is ending."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from rlguard.messages import AgentReport
from rlguard.model import Notice, Repair, Scope, Severity

ENDING: Final = "pod-terminating"


class Notices:
    """Keeps the newest word of each source and counts deadlines down by this machine's clock (A6). `now`: seconds."""

    def __init__(self, pod_uid: str, grace: float) -> None:
        self._uid = pod_uid
        self._grace = grace
        self._agent: tuple[Notice, ...] = ()
        self._agent_at = 0.0
        self._ending_since: float | None = None

    def agent_said(self, report: AgentReport, now: float) -> None:
        """The agent's whole list, replacing the one before. Without an agent the last list stands."""
        self._agent, self._agent_at = report.notices, now

    def end(self, now: float) -> None:
        """The launcher got SIGTERM at `now`: the kubelet kills the pod when the grace period is over."""
        self._ending_since = now

    @property
    def agent_ids(self) -> tuple[str, ...]:
        """The ids of the agent's notices."""
        return tuple(notice.id for notice in self._agent)

    def standing(self, now: float) -> tuple[Notice, ...]:
        """All notices that stand, with the time left as of `now`."""
        gone = now - self._agent_at
        agent = tuple(_later(notice, gone) for notice in self._agent)
        if self._ending_since is None:
            return agent
        return (*agent, self._ending(now - self._ending_since))

    def _ending(self, gone: float) -> Notice:
        return Notice(
            id=f"{ENDING}-{self._uid}",
            code=ENDING,
            severity=Severity.FATAL,
            scope=Scope.PROCESS,
            repair=Repair.NONE,
            detail="the pod has been told to end",
            seconds_left=max(0.0, self._grace - gone),
        )


def _later(notice: Notice, seconds: float) -> Notice:
    if notice.seconds_left is None:
        return notice
    return replace(notice, seconds_left=max(0.0, notice.seconds_left - seconds))
