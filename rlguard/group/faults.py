"""What is wrong with a running attempt, what a recovery cost, and when to stop trying."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from rlguard.group.view import After, Attempt, Failure, Heard, Mode, OpenIncident, View, reports, uids
from rlguard.messages import MemberReport, Ranks, Timing
from rlguard.model import Incident, Rung, World

START_WAIT: Final = 120.0
"""A member in reach that has not started its ranks so long after the order, in seconds, has failed."""
QUICK: Final = 60.0
"""Without a training hook there are no steps; two crashes this soon after their start count as the same step."""
GRACE_PLANNED: Final = 2.0
GRACE_FAULT: Final = 0.5
"""Seconds between SIGTERM and SIGKILL: after a fault there is nothing that the ranks could still save."""
KEPT_INCIDENTS: Final = 8
NAN: Final = "nan"
"""The code of the notice by which a member says that its training hook saw a NaN."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What ended an attempt. `seen_at`: when the coordinator heard of it."""

    code: str
    detail: str
    seen_at: float


def find_fault(view: View, now: float) -> Fault | None:
    """The first reason why the attempt that runs cannot go on. Silence alone is none (A4)."""
    attempt = view.attempt
    if attempt is None:
        return None
    for member in attempt.world.members:
        heard = view.members.get(member.uid)
        if heard is not None:
            found = _of_member(view, attempt, heard, now)
            if found is not None:
                return Fault(found[0], f"{member.pod} on {member.node}: {found[1]}", heard.at)
    return _stall(view, attempt, now)


def _of_member(view: View, attempt: Attempt, heard: Heard, now: float) -> tuple[str, str] | None:
    report = heard.report
    ran = report.member.uid in attempt.ran
    if report.incarnation != attempt.incarnation or report.ranks in (Ranks.NONE, Ranks.UNKNOWN):
        return _not_running(view, attempt, heard, ran, now)
    if _broke(report):
        return "rank-exited", _exit_text(report)
    if report.ranks is Ranks.GONE:
        return "ranks-gone", "its ranks were stopped without an order of this coordinator"
    if report.ranks is Ranks.STUCK:
        return "ranks-stuck", "processes survive SIGKILL"
    for notice in report.notices:
        if notice.code == NAN:
            return NAN, notice.detail
    return None


def _broke(report: MemberReport) -> bool:
    """Did a rank die? Its launcher says so at once, while the ranks beside it are still being taken down."""
    if report.ranks is Ranks.STOPPING:
        return report.signal is not None or report.code not in (None, 0)
    return report.ranks is Ranks.EXITED and (report.code != 0 or report.signal is not None)


def _not_running(view: View, attempt: Attempt, heard: Heard, ran: bool, now: float) -> tuple[str, str] | None:
    if ran and heard.report.ranks is not Ranks.UNKNOWN:
        return "launcher-restarted", "its launcher has no ranks any more"
    late = now - attempt.started_at > START_WAIT and view.fresh(heard.report.member.uid, now)
    return ("not-started", f"no ranks {START_WAIT:.0f} s after the order to start") if late else None


def _exit_text(report: MemberReport) -> str:
    how = f"signal {report.signal}" if report.signal is not None else f"code {report.code}"
    told = [line for line in report.tail.splitlines() if any(map(str.isalnum, line))]
    return f"{how}: {told[-1].strip()[:200]}" if told else how


def _stall(view: View, attempt: Attempt, now: float) -> Fault | None:
    if view.grant is None or not view.hook_seen or now - attempt.progress_at <= view.grant.timing.stall_limit:
        return None
    silent = [member.pod for member in attempt.world.members if not view.fresh(member.uid, now)]
    also = f", nothing heard of {', '.join(silent)}" if silent else ""
    return Fault("stalled", f"no new step for {now - attempt.progress_at:.0f} s{also}", now)


def fail(view: View, fault: Fault, now: float) -> View:
    """An attempt has ended by a fault: note it, spend budget, take the ranks down."""
    attempt = view.attempt
    if attempt is None or view.grant is None:
        return view
    quick = attempt.furthest is None and now - attempt.started_at < QUICK
    step = attempt.furthest if attempt.furthest is not None else (-1 if quick else None)
    failures = (*view.failures, Failure(now, fault.code, step))
    spent = exhausted(failures, view.grant.timing, now)
    view = replace(view, failures=failures, save=None)
    rung, why = (Rung.GIVE_UP, spent) if spent else (Rung.IN_PLACE, f"{fault.code}: start again in the same pods")
    view = note_incident(view, fault, rung, why, now)
    return halt(view, now, spent or f"{fault.code}: {fault.detail}", GRACE_FAULT, After.GIVE_UP if spent else None)


def exhausted(failures: tuple[Failure, ...], timing: Timing, now: float) -> str | None:
    """Is the budget spent, and which? A failure too many within the window, or the same one at the same step."""
    recent = [failure for failure in failures if now - failure.at <= timing.attempts_window]
    if len(recent) > timing.attempts:
        return f"{len(recent)} failed attempts within {timing.attempts_window:.0f} s, {timing.attempts} are allowed"
    last = failures[-timing.same_step_limit :]
    same = {(failure.fault, failure.step) for failure in last}
    if len(last) == timing.same_step_limit and len(same) == 1 and last[0].step is not None:
        where = f"step {last[0].step}" if last[0].step >= 0 else "before its first step"
        return f"{last[0].fault} {len(last)} times at the same place: {where}"
    return None


def halt(view: View, now: float, why: str, grace: float, after: After | None = None) -> View:
    """Begin to take the ranks down. What comes after follows from what is known, unless it is said."""
    hold = view.recreate is not None or (view.grant is not None and view.grant.save_within is not None)
    need = view.attempt.world_number if view.attempt and view.leaving else None
    view = replace(view, grace=grace, save=None, stage=None, need_number=need)
    view = replace(view, after=after or (After.HOLD if hold else After.RESTART))
    return view.go(Mode.STOPPING, now, why)


def note_incident(view: View, fault: Fault, rung: Rung, why: str, now: float) -> View:
    """Open an incident for the attempt that ends."""
    attempt = view.attempt
    if attempt is None:
        return view
    incident = Incident(
        id=str(attempt.incarnation),
        fault=fault.code,
        detail=fault.detail,
        detected_at=view.wall(fault.seen_at),
        decision=rung,
        why=why,
        decided_at=view.wall(now),
    )
    tails = tuple((report.member.pod, report.tail) for report in reports(view, attempt.world).values())
    opened = OpenIncident(incident, tails, attempt.furthest)
    return replace(view, incidents=(*view.incidents, opened)[-KEPT_INCIDENTS:])


def note_resumed(view: View, before: Attempt | None) -> View:
    """A new attempt starts: open incidents learn what it resumes from, on which rung, and what was lost."""
    if view.attempt is None or before is None:
        return view
    rung = _rung(before.world, view.attempt.world)
    return _amend(view, lambda item: _resumed(item, view.attempt, rung))


def _resumed(item: OpenIncident, attempt: Attempt | None, rung: Rung) -> OpenIncident:
    parent = attempt.parent if attempt else None
    base = parent.step if parent else 0
    lost = None if item.furthest is None else max(0, item.furthest - base)
    incident = replace(item.incident, decision=rung, resumed=parent, lost_steps=lost)
    return item if incident == item.incident else replace(item, incident=incident, written=False)


def note_first_step(view: View, at: float) -> View:
    """Every rank has done a new step: the recovery is over."""
    first = view.wall(at)
    return _amend(
        view,
        lambda item: replace(item, incident=replace(item.incident, first_step_at=first), written=False, closed=True),
    )


def _amend(view: View, change: Callable[[OpenIncident], OpenIncident]) -> View:
    if all(item.closed for item in view.incidents):
        return view
    return replace(view, incidents=tuple(item if item.closed else change(item) for item in view.incidents))


def _rung(before: World, after: World) -> Rung:
    if uids(before.members) == uids(after.members):
        return Rung.IN_PLACE
    if len(before.members) == len(after.members):
        return Rung.REPLACE
    return Rung.SHRINK if len(after.members) < len(before.members) else Rung.GROW
