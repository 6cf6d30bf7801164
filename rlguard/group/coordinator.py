"""The coordinator: what the leader pod's sidecar decides about the whole group. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

from rlguard.checkpoint.lineage import on_chain
from rlguard.decision import Decision
from rlguard.group import coordinator_facts, facts
from rlguard.group.attempts import (
    ADOPT_WAIT,
    GRANT_WAIT,
    MISSES_MEMBERS,
    VISIBLE_WAIT,
    claimed,
    fenced_by,
    look_again_at,
    newest_committed,
    progress,
    record_of,
    take_scan,
    to_verify,
)
from rlguard.group.coordinator_facts import CoordinatorAction, CoordinatorFact, Operation
from rlguard.group.faults import START_WAIT
from rlguard.group.orders import order_for, report_of
from rlguard.group.rules import HELD_LIMIT, STOP_LIMIT, advance
from rlguard.group.saving import FLUSH_LIMIT, RESCUE_LIMIT, STAGE_LIMIT, flush_states, flushed, world_of
from rlguard.group.view import Attempt, FlushPlan, Heard, Mode, View, failed, succeeded
from rlguard.messages import Grant
from rlguard.model import CheckpointId
from rlguard.policy import HEARTBEAT, SUSPECT

AWAKE_EVERY: Final = 1.0
"""Often enough, in seconds, to note that this process is awake."""
FORGOTTEN_AFTER: Final = 60.0
"""Seconds after which a notice that stands no more is forgotten; a restarted agent has looked at everything by then."""
COMMIT_TRIES: Final = 5
"""A commit is tried so often in its own folder; then the flush is given up and begun anew."""


def begin(own_uid: str, size: int, has_root: bool, now: float) -> View:
    """The view of a coordinator whose process has just begun. `size`: pods of the group by its LWS."""
    return View(own_uid=own_uid, size=size, has_root=has_root, born=now, since=now, awake_at=now)


def fold(view: View, fact: CoordinatorFact) -> View:
    """Take in a fact, then follow the rules at its time."""
    absorb: Callable[[View, Any], View] = ABSORB[type(fact)]
    return advance(absorb(_awake(view, fact.at), fact), fact.at)


def _awake(view: View, at: float) -> View:
    """A4: silence counts while this process could hear. After a gap of its own everybody is given time again."""
    if at - view.awake_at > SUSPECT:
        members = {uid: replace(heard, at=max(heard.at, at)) for uid, heard in view.members.items()}
        return replace(view, awake_at=at, members=members)
    return replace(view, awake_at=at) if at - view.awake_at > AWAKE_EVERY else view


def decide(view: View, now: float) -> Decision:
    """What to do now. If time alone has changed something, only `Advance`."""
    if now - view.awake_at > SUSPECT or advance(view, now) is not view:
        return Decision((facts.Advance(),), view.mode, now)
    orders = ((uid, order_for(view, uid, now)) for uid in sorted(view.members))
    actions: list[CoordinatorAction] = [
        coordinator_facts.SendOrder(uid, order) for uid, order in orders if order is not None
    ]
    actions += _start_actions(view, now)
    actions += _flush_actions(view, now)
    actions += _end_actions(view, now)
    return Decision((*actions, coordinator_facts.Publish(report_of(view, now))), view.mode, _wake_at(view, now))


# ---------------------------------------------------------------- actions


def _start_actions(view: View, now: float) -> Iterable[CoordinatorAction]:
    attempt, again = view.attempt, look_again_at(view)
    if view.ready(Operation.LOOK, now) and (view.scan is None or (again is not None and now >= again)):
        yield coordinator_facts.LookAtDisk()
    if attempt is None:
        return
    if view.mode is Mode.CLAIMING and view.ready(Operation.CLAIM, now):
        yield coordinator_facts.ClaimAttempt(attempt.incarnation, view.own_uid)
    target = to_verify(view) if view.mode is Mode.CHOOSING else None
    if target is not None and view.ready(Operation.VERIFY, now):
        yield coordinator_facts.VerifyCheckpoint(target)
    if view.mode is Mode.RECORDING:
        yield from _record_actions(view, attempt, now)


def _record_actions(view: View, attempt: Attempt, now: float) -> Iterable[CoordinatorAction]:
    record = record_of(view)
    if not attempt.recorded and record is not None and view.ready(Operation.RECORD, now):
        yield coordinator_facts.WriteRecord(record)
    if attempt.port is None and view.ready(Operation.PORT, now):
        yield coordinator_facts.ReservePort(attempt.incarnation)


def _flush_actions(view: View, now: float) -> Iterable[CoordinatorAction]:
    plan, attempt, grant = view.flush, view.attempt, view.grant
    if attempt is not None and not attempt.recorded:
        attempt = view.before  # C2: the own claim that is being started makes an older attempt's commit void too
    if plan is None or attempt is None or grant is None or view.mode is Mode.FENCED:
        return
    if not plan.nonce and view.ready(Operation.BEGIN_FLUSH, now):
        yield coordinator_facts.BeginFlush(plan.checkpoint)
    world = world_of(view, plan.checkpoint)
    if world is not None and flushed(view, plan) and view.ready(Operation.COMMIT, now):
        files = tuple(entry for state in flush_states(view, plan).values() for entry in state.files)
        yield coordinator_facts.Commit(
            plan.checkpoint, attempt.incarnation, plan.nonce, plan.directory, grant.job_uid, len(world.members),
            tuple(sorted(files, key=lambda entry: entry.name)),
        )  # fmt: skip


def _end_actions(view: View, now: float) -> Iterable[CoordinatorAction]:
    if view.mode is Mode.COMPLETING and view.grant is not None and view.ready(Operation.COMPLETE, now):
        yield coordinator_facts.MarkComplete(view.newest, view.grant.job_uid)
    pending = [item for item in view.incidents if not item.written]
    if pending and view.has_root and view.ready(Operation.INCIDENT, now):
        yield coordinator_facts.WriteIncident(pending[0].incident, pending[0].tails)


def _wake_at(view: View, now: float) -> float:
    """The next moment at which time alone may change something; never later than a heartbeat."""
    times = [now + HEARTBEAT, view.born + ADOPT_WAIT, view.born + MISSES_MEMBERS, view.looked_since + VISIBLE_WAIT]
    times += [view.since + limit for limit in (GRANT_WAIT, HELD_LIMIT, RESCUE_LIMIT, view.grace + STOP_LIMIT)]
    times += [pause.until for pause in view.backoff.values()]
    times += [heard.at + SUSPECT for heard in view.members.values()]
    times += [view.stage_due, view.flush_due]
    again = look_again_at(view)
    times += [again] if again is not None else []
    times += [view.stage.asked_at + STAGE_LIMIT] if view.stage else []
    times += [view.flush.asked_at + FLUSH_LIMIT] if view.flush else []
    times += [view.save.deadline] if view.save else []
    times += [view.attempt.started_at + START_WAIT] if view.attempt else []
    return min(time for time in times if time > now)


# ---------------------------------------------------------------- facts


def _ticked(view: View, _fact: facts.Ticked) -> View:
    return view


def _controller_link(view: View, fact: facts.ControllerLink) -> View:
    return replace(view, controller_open=fact.open, controller_ever=view.controller_ever or fact.open)


def _wall_clock(view: View, fact: coordinator_facts.WallClock) -> View:
    return replace(view, wall_offset=fact.wall - fact.at)


def _member_heard(view: View, fact: coordinator_facts.MemberHeard) -> View:
    report = fact.report
    uid = report.member.uid
    members = {**view.members, uid: Heard(report, fact.at)}
    view = _notice(view, uid, {(uid, notice.id) for notice in report.notices}, fact.at)
    order = report.stage.order if report.stage else 0
    view = replace(
        view,
        members=members,
        stage_order=max(view.stage_order, order),
        hook_seen=view.hook_seen or report.heartbeat_age is not None,
        reshardable=view.reshardable or report.reshardable,
    )
    attempt = view.attempt
    if attempt is None or report.incarnation != attempt.incarnation or uid not in attempt.world.uids:
        return view
    return replace(view, attempt=progress(view, attempt, report, fact.at))


def _notice(view: View, uid: str, standing: set[tuple[str, str]], at: float) -> View:
    """A notice that stands no more is forgotten after a while: its fault may come again, and is news then.

    Not at once: an agent that was restarted tells some faults only when it has looked again.
    """
    known = {pair for pair in view.noticed if pair[0] == uid}
    if standing == known and not view.missed:
        return view
    missed = {pair: since for pair, since in view.missed.items() if pair[0] != uid}
    missed |= {pair: view.missed.get(pair, at) for pair in known - standing}
    over = {pair for pair, since in missed.items() if at - since >= FORGOTTEN_AFTER}
    noticed = {**view.noticed, **dict.fromkeys(standing - known, at)}
    return replace(
        view,
        noticed={pair: since for pair, since in noticed.items() if pair not in over},
        missed={pair: since for pair, since in missed.items() if pair not in over},
        handled=view.handled - over,
    )


def _grant_heard(view: View, fact: coordinator_facts.GrantHeard) -> View:
    grant, old = fact.grant, view.grant
    if old is not None and (grant.generation, grant.world_number) < (old.generation, old.world_number):
        return view
    if old is None and grant.leader.uid != view.own_uid:
        return view  # said of an earlier leader pod, before this one was known
    same = old is not None and _gist(old) == _gist(grant)
    held_out = view.held_out and grant.save_within is not None
    return replace(view, grant=grant, grant_at=view.grant_at if same else fact.at, held_out=held_out)


def _gist(grant: Grant) -> tuple[int, int, bool]:
    """What makes a grant a new word: not its countdown."""
    return grant.generation, grant.world_number, grant.save_within is None


def _disk_seen(view: View, fact: coordinator_facts.DiskSeen) -> View:
    fenced = fenced_by(view, fact.scan) if view.grant is not None else None
    view = succeeded(take_scan(view, fact.scan, fact.at), Operation.LOOK)
    if fenced is not None and view.mode not in (Mode.COMPLETED, Mode.UNGUARDED):
        return view.go(Mode.FENCED, fact.at, fenced)
    return replace(view, verified={}) if view.blocked else view


def _claimed(view: View, fact: coordinator_facts.Claimed) -> View:
    view = succeeded(view, Operation.CLAIM)
    if view.mode is Mode.CLAIMING and view.attempt and view.attempt.incarnation == fact.incarnation:
        return claimed(view, fact.nonce, fact.scan, fact.at)
    return take_scan(view, fact.scan, fact.at)


def _claim_refused(view: View, fact: coordinator_facts.ClaimRefused) -> View:
    view = take_scan(view, fact.scan, fact.at)
    if view.mode is not Mode.CLAIMING or view.attempt is None or view.attempt.incarnation != fact.incarnation:
        return view
    fenced = fenced_by(view, fact.scan)
    if fenced is not None:
        return view.go(Mode.FENCED, fact.at, fenced)
    return replace(view, attempt=view.before).go(Mode.GATHERING, fact.at, f"{fact.incarnation} is taken")


def _verified(view: View, fact: coordinator_facts.Verified) -> View:
    return replace(succeeded(view, Operation.VERIFY), verified={**view.verified, fact.checkpoint: fact})


def _recorded(view: View, fact: coordinator_facts.Recorded) -> View:
    attempt, record = view.attempt, record_of(view)
    if view.mode is not Mode.RECORDING or attempt is None or record is None or attempt.incarnation != fact.incarnation:
        return view
    records = {**view.records, fact.incarnation: record}
    view = replace(view, records=records, attempt=replace(attempt, recorded=True))
    view = replace(view, newest=newest_committed(view, fact.incarnation), uncertain=())
    if view.flush is not None and not on_chain(records, view.flush.checkpoint, fact.incarnation):
        view = replace(view, flush=None)
    return succeeded(view, Operation.RECORD)


def _port(view: View, fact: coordinator_facts.PortReserved) -> View:
    attempt = view.attempt
    if attempt is None or attempt.incarnation != fact.incarnation:
        return view
    return succeeded(replace(view, attempt=replace(attempt, port=fact.port)), Operation.PORT)


def _flush_begun(view: View, fact: coordinator_facts.FlushBegun) -> View:
    plan = view.flush
    if plan is None or plan.checkpoint != fact.checkpoint or plan.nonce:
        return view
    return replace(view, flush=FlushPlan(plan.checkpoint, plan.asked_at, fact.nonce, fact.directory))


def _committed(view: View, fact: coordinator_facts.Committed) -> View:
    flush = view.flush if view.flush and view.flush.checkpoint != fact.checkpoint else None
    newest = max(fact.checkpoint, view.newest) if view.newest else fact.checkpoint
    directories = {**view.directories, fact.checkpoint: fact.directory}
    view = replace(view, flush=flush, newest=newest, directories=directories)
    return succeeded(succeeded(view, Operation.COMMIT), Operation.BEGIN_FLUSH)


def _voided(view: View, fact: coordinator_facts.Voided) -> View:
    flush = view.flush if view.flush and view.flush.checkpoint != fact.checkpoint else None
    view = succeeded(replace(view, flush=flush), Operation.COMMIT)
    if fact.newer_leader != view.own_uid:
        return view.go(Mode.FENCED, fact.at, f"{fact.newer} has been claimed by another leader pod")
    return _own_claim_voided(view, fact.checkpoint)


def _own_claim_voided(view: View, checkpoint: CheckpointId) -> View:
    attempt = view.attempt
    if attempt is not None and attempt.recorded and on_chain(view.records, checkpoint, attempt.incarnation):
        newest = max(checkpoint, view.newest) if view.newest else checkpoint
        return replace(view, newest=newest)
    return replace(view, uncertain=(*view.uncertain, checkpoint))


def _marked(view: View, fact: coordinator_facts.MarkedComplete) -> View:
    return view.go(Mode.COMPLETED, fact.at, "the job is complete") if view.mode is Mode.COMPLETING else view


def _incident_written(view: View, fact: coordinator_facts.IncidentWritten) -> View:
    incidents = tuple(
        replace(item, written=True) if item.incident == fact.incident else item for item in view.incidents
    )
    return succeeded(replace(view, incidents=incidents), Operation.INCIDENT)


def _store_failed(view: View, fact: coordinator_facts.StoreFailed) -> View:
    view = failed(view, fact.operation, fact.at, fact.detail)
    if fact.operation is Operation.COMMIT and view.backoff[Operation.COMMIT].tries > COMMIT_TRIES:
        view = failed(view, Operation.BEGIN_FLUSH, fact.at, f"commit: {fact.detail}")
        return succeeded(replace(view, flush=None), Operation.COMMIT)
    return view


ABSORB: Final[dict[type, Callable[[View, Any], View]]] = {
    facts.Ticked: _ticked,
    facts.ControllerLink: _controller_link,
    coordinator_facts.WallClock: _wall_clock,
    coordinator_facts.MemberHeard: _member_heard,
    coordinator_facts.GrantHeard: _grant_heard,
    coordinator_facts.DiskSeen: _disk_seen,
    coordinator_facts.Claimed: _claimed,
    coordinator_facts.ClaimRefused: _claim_refused,
    coordinator_facts.Verified: _verified,
    coordinator_facts.Recorded: _recorded,
    coordinator_facts.PortReserved: _port,
    coordinator_facts.FlushBegun: _flush_begun,
    coordinator_facts.Committed: _committed,
    coordinator_facts.Voided: _voided,
    coordinator_facts.MarkedComplete: _marked,
    coordinator_facts.IncidentWritten: _incident_written,
    coordinator_facts.StoreFailed: _store_failed,
}
