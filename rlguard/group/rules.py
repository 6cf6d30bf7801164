"""The coordinator's state machine: what follows from what is known, mode by mode, until nothing more follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from rlguard.group.attempts import choose, gather, open_or_adopt, start
from rlguard.group.faults import GRACE_PLANNED, Fault, fail, find_fault, halt, note_first_step, note_incident
from rlguard.group.saving import rescue_pending, save_done, schedule
from rlguard.group.view import After, Attempt, Leaving, Mode, Save, SaveFor, View, uids
from rlguard.messages import Grant, Ranks, Want
from rlguard.model import Notice, Repair, Rung, Scope, Severity
from rlguard.policy import LEAVE_MARGIN, SAVE_LIMIT

STOP_LIMIT: Final = 30.0
"""A member in reach whose ranks are not down so long after the grace is told to be stuck."""
HELD_LIMIT: Final = 300.0
"""A group held for its recreation waits so long, in seconds; then it goes on as it is (A7)."""
ROUNDS: Final = 12

LOSES: Final = frozenset({Scope.GPU, Scope.NVSWITCH, Scope.NIC, Scope.NODE})
FINAL: Final = frozenset({Mode.FENCED, Mode.COMPLETED, Mode.UNGUARDED, Mode.GAVE_UP})
BEFORE_RANKS: Final = frozenset({Mode.CLAIMING, Mode.CHOOSING, Mode.RECORDING})


def advance(view: View, now: float) -> View:
    """Follow the rules until nothing changes. Returns the same object if nothing does."""
    for _ in range(ROUNDS):
        after = _round(view, now)
        if after is view:
            return view
        view = after
    return view


def _round(view: View, now: float) -> View:
    if view.mode in FINAL:
        return schedule(view, now) if view.mode is Mode.GAVE_UP else view
    obeyed = obey(view, now)
    if obeyed is not view:
        return obeyed
    return RULES[view.mode](view, now)


# ---------------------------------------------------------------- the controller's word


def obey(view: View, now: float) -> View:
    """What the newest grant demands regardless of the mode."""
    grant = view.grant
    if grant is None:
        return view
    if grant.leader.uid != view.own_uid:
        return view.go(Mode.FENCED, now, f"generation {grant.generation} has another leader pod")
    if view.attempt is not None and view.attempt.incarnation.generation < grant.generation:
        return view.go(Mode.FENCED, now, f"generation {grant.generation} has begun")
    if grant.want is Want.UNTOUCHED and view.mode is Mode.GATHERING:
        return view.go(Mode.UNGUARDED, now, grant.why or "the controller's word")
    if view.scan is not None and view.scan.completed and view.mode is Mode.GATHERING:
        return view.go(Mode.COMPLETED, now, "the job is complete")
    return _obey_idle(view, grant, now)


def _obey_idle(view: View, grant: Grant, now: float) -> View:
    idle = grant.want is Want.IDLE
    if idle and view.mode is Mode.RUNNING:
        return halt(view, now, grant.why, GRACE_PLANNED, After.IDLE)
    if idle and (view.mode in BEFORE_RANKS or view.mode in (Mode.GATHERING, Mode.HELD)):
        return view.go(Mode.IDLE, now, grant.why)
    if view.mode in BEFORE_RANKS and view.attempt and grant.world_number != view.attempt.world_number:
        return replace(view, attempt=view.before, blocked=None).go(Mode.GATHERING, now, "another world is granted")
    if view.mode in BEFORE_RANKS and _to_be_recreated(view):
        return replace(view, attempt=view.before, blocked=None).go(Mode.HELD, now, grant.why)
    return view


# ---------------------------------------------------------------- running


def run(view: View, now: float) -> View:
    """Ranks run: look for faults, the end, a changed world, notices; stage and flush."""
    attempt = view.attempt
    if attempt is None:
        return view
    fault = find_fault(view, now)
    if fault is not None:
        return fail(view, fault, now)
    if _all_finished(view, attempt):
        return replace(view, save=None, stage=None).go(Mode.COMPLETING, now, "all ranks have ended with code 0")
    view = _first_step(view, attempt, now)
    noticed = notice(view, now)
    return noticed if noticed is not view else _save_or_schedule(view, attempt, now)


def _save_or_schedule(view: View, attempt: Attempt, now: float) -> View:
    wanted = _want_save(view, attempt, now)
    if wanted is not None:
        return replace(view, save=wanted, stage_due=now)
    if view.save is not None and save_done(view, view.save, now):
        return _saved(view, view.save, now)
    return schedule(view, now)


def _all_finished(view: View, attempt: Attempt) -> bool:
    told = [view.members[uid].report for uid in attempt.world.uids if uid in view.members]
    ended = [report for report in told if report.incarnation == attempt.incarnation and report.ranks is Ranks.EXITED]
    return len(ended) == len(attempt.world.members)


def _first_step(view: View, attempt: Attempt, now: float) -> View:
    if not attempt.stepped or all(item.closed for item in view.incidents):
        return view
    return note_first_step(view, now)


def _want_save(view: View, attempt: Attempt, now: float) -> Save | None:
    """The save that has to begin now, None if there is none to begin."""
    grant = view.grant
    if view.save is not None or grant is None:
        return None
    if _to_be_recreated(view):
        return Save(SaveFor.RECREATE, grant.why, now, view.grant_at + (grant.save_within or 0.0))
    if view.controller_open and view.recreate is not None:
        return Save(SaveFor.RECREATE, view.recreate, now, now + SAVE_LIMIT)
    if view.controller_open and view.leaving:
        return Save(SaveFor.LEAVING, _why_leaving(view), now, now + SAVE_LIMIT)
    if _other_world(attempt, grant) and _worth_changing(view, attempt, grant, now):
        return Save(SaveFor.WORLD, grant.why, now, now + SAVE_LIMIT)
    return None


def _to_be_recreated(view: View) -> bool:
    return view.grant is not None and view.grant.save_within is not None and not view.held_out


def _other_world(attempt: Attempt, grant: Grant) -> bool:
    if grant.world is None or grant.world_number == attempt.world_number:
        return False
    return uids(grant.world.members) != uids(attempt.world.members)


def _worth_changing(view: View, attempt: Attempt, grant: Grant, now: float) -> bool:
    """Training goes on until all of the new world is there; not when a member in it has been taken out of the world."""
    granted = grant.world.uids if grant.world else frozenset()
    return not attempt.world.uids <= granted or all(view.fresh(uid, now) for uid in granted)


def _why_leaving(view: View) -> str:
    return "; ".join(f"{item.code}: {item.detail}" for item in view.leaving.values())


def _saved(view: View, save: Save, now: float) -> View:
    """All is saved that can be: stop, unless only the controller could give a new world and it is not there."""
    if save.reason is not SaveFor.WORLD and not view.controller_open and _patient(view):
        return replace(view, save=None)
    attempt = view.attempt
    rung = Rung.RECREATE if save.reason is SaveFor.RECREATE else Rung.REPLACE
    detail = _detail(view, save)
    fault = Fault(_code(view, save), detail, save.started_at)
    if attempt is not None:
        saved = f"saved {view.newest}" if view.newest is not None else "nothing could be saved"
        view = note_incident(view, fault, rung, f"{fault.code}: {saved} before the stop", now)
    return halt(view, now, detail, GRACE_PLANNED)


def _patient(view: View) -> bool:
    return view.grant is not None and view.grant.save_within is None


def _code(view: View, save: Save) -> str:
    codes = [item.code for item in view.leaving.values()]
    return codes[0] if codes else save.reason.value


def _detail(view: View, save: Save) -> str:
    return _why_leaving(view) or save.detail


# ---------------------------------------------------------------- notices


def notice(view: View, now: float) -> View:
    """A fatal or dated notice on a member of the attempt's world: it leaves, or the group is recreated."""
    attempt = view.attempt
    if attempt is None:
        return view
    for uid in uids(attempt.world.members):
        for item in _news(view, uid):
            view = _take(view, uid, item, now)
    return view


def _news(view: View, uid: str) -> list[Notice]:
    heard = view.members.get(uid)
    known = uid in view.leaving or (uid == view.own_uid and view.recreate is not None)
    if heard is None or known:
        return []
    notices = list(heard.report.notices)
    if heard.report.terminating:
        notices.append(
            Notice("terminating", "pod-terminating", Severity.FATAL, Scope.NODE, Repair.NONE, "its pod is ending")
        )
    return [item for item in notices if _goes(item) and (uid, item.id) not in view.handled][:1]


def _goes(item: Notice) -> bool:
    return (item.severity is Severity.FATAL and item.scope in LOSES) or item.seconds_left is not None


def _take(view: View, uid: str, item: Notice, now: float) -> View:
    deadline = now + SAVE_LIMIT
    if item.seconds_left is not None:
        deadline = view.members[uid].at + item.seconds_left - LEAVE_MARGIN
    if uid == view.own_uid:
        reason, view = SaveFor.RECREATE, replace(view, recreate=f"{item.code} on the leader's node: {item.detail}")
        view = replace(view, handled=view.handled | {(uid, item.id)})
    else:
        leaving = {**view.leaving, uid: Leaving(item.code, item.detail, item.id)}
        reason, view = SaveFor.LEAVING, replace(view, leaving=leaving)
    if view.mode is not Mode.RUNNING:
        number = view.attempt.world_number if view.attempt else None
        return replace(view, need_number=number if view.leaving else None)
    if view.save is not None:
        return replace(view, save=replace(view.save, deadline=min(view.save.deadline, deadline)))
    save = Save(reason, f"{item.code}: {item.detail}", now, deadline)
    return replace(view, save=save, stage_due=now)


# ---------------------------------------------------------------- stopping and stopped


def stop(view: View, now: float) -> View:
    """Wait until every member in reach is down; who is out of reach is waited for while gathering."""
    told = schedule(notice(view, now), now)
    if told is not view:
        return told
    waited = now - view.since
    limit = view.grace + STOP_LIMIT
    for uid, heard in view.members.items():
        stuck = heard.report.ranks is Ranks.STUCK or waited > limit
        if view.fresh(uid, now) and not view.down(uid) and not stuck:
            return view
    after = {
        After.RESTART: Mode.GATHERING,
        After.HOLD: Mode.HELD,
        After.GIVE_UP: Mode.GAVE_UP,
        After.IDLE: Mode.IDLE,
    }
    return view.go(after[view.after], now, view.why)


def gathering(view: View, now: float) -> View:
    """Stopped, or not yet started: rescue what is only in memory, then gather."""
    settled = open_or_adopt(view, now)
    if settled is not None:
        return settled
    grant, attempt = view.grant, view.attempt
    if grant is not None and _to_be_recreated(view):
        return view.go(Mode.HELD, now, grant.why)
    if view.recreate is not None and view.controller_open and attempt is not None:
        return view.go(Mode.HELD, now, view.recreate)
    if attempt is not None and grant is not None and grant.world_number == attempt.world_number:
        noticed = notice(view, now)
        if noticed is not view:
            return noticed
    scheduled = schedule(view, now)
    return scheduled if scheduled is not view else gather(view, now)


def held(view: View, now: float) -> View:
    """Held for the recreation of the group, but not for ever."""
    scheduled = schedule(view, now)
    if scheduled is not view:
        return scheduled
    cancelled = view.recreate is None and not _to_be_recreated(view)
    if cancelled or (now - view.since > HELD_LIMIT and not rescue_pending(view, now)):
        return replace(view, recreate=None, held_out=True).go(Mode.GATHERING, now, "not recreated: going on as it is")
    return view


def idle(view: View, now: float) -> View:
    """Until the controller wants the group to run again."""
    if view.grant is not None and view.grant.want is Want.RUN:
        return view.go(Mode.GATHERING, now, "the controller wants it to run")
    return schedule(view, now)


def _stay(view: View, _now: float) -> View:
    return view


RULES: Final[Mapping[Mode, Callable[[View, float], View]]] = {
    Mode.GATHERING: gathering,
    Mode.CLAIMING: _stay,
    Mode.CHOOSING: choose,
    Mode.RECORDING: start,
    Mode.RUNNING: run,
    Mode.STOPPING: stop,
    Mode.HELD: held,
    Mode.COMPLETING: _stay,
    Mode.IDLE: idle,
}
