"""From gathered members to running ranks: adopt, or claim, choose, record (A2, C2, C3, C8)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from rlguard.checkpoint.lineage import Choice, Parent, choose_parent, next_incarnation, on_chain
from rlguard.checkpoint.records import Record
from rlguard.errors import FencedError
from rlguard.group.coordinator_facts import LineageScan
from rlguard.group.faults import note_resumed
from rlguard.group.saving import rescue_pending, survey
from rlguard.group.view import Attempt, Mode, View, floor, in_memory, reports, uids
from rlguard.messages import MemberReport, Ranks
from rlguard.model import CheckpointId, Incarnation, Member, Notice, World
from rlguard.policy import FAIL_OPEN

ADOPT_WAIT: Final = 15.0
"""A restarted coordinator waits so long, in seconds, for members of the world that it has not heard yet."""
GRANT_WAIT: Final = 120.0
"""A stopped group waits so long, in seconds, for a changed world; then it goes on in the one it has (A7)."""
LOOK_EVERY: Final = 2.0
LOOK_EVERY_BLOCKED: Final = 10.0
VISIBLE_WAIT: Final = 60.0
"""C8: how long to look again for a checkpoint that is known to be committed, in seconds."""
RATE_OVER: Final = 2.0
"""The rate of steps is measured over so many seconds at least."""
MISSES_MEMBERS: Final = FAIL_OPEN + 30.0
"""A9: without a controller and without all members for so long, nothing to resume: run untouched."""


def gather(view: View, now: float) -> View:
    """Wait until the granted world is there and without ranks, then claim."""
    grant = view.grant
    if (
        grant is None
        or view.scan is None
        or grant.world is None
        or _awaits_grant(view, now)
        or not _all_down(view, grant.world, now)
    ):
        return view
    changed = view.attempt is not None and uids(view.attempt.world.members) != uids(grant.world.members)
    if changed and rescue_pending(view, now):
        return view
    return _begin(view, grant.world, now)


def open_or_adopt(view: View, now: float) -> View | None:
    """What has to be settled before anything else can be: fail open, wait, or adopt what runs already; None: none."""
    opened = _fail_open(view, now)
    if opened is not None:
        return opened
    if view.grant is None or view.scan is None or undecided(view, now):
        return view
    return _adopt(view, now) if view.attempt is None else None


def undecided(view: View, now: float) -> bool:
    """Right after its start a coordinator cannot know yet whether there is something to adopt: it orders nothing."""
    if view.attempt is not None or view.mode is not Mode.GATHERING:
        return False
    if view.grant is None or view.scan is None:
        return True
    world = view.grant.world.members if view.grant.world else ()
    told = [view.members[member.uid].report for member in world if member.uid in view.members]
    unclear = len(told) < len(world) or any(report.ranks is Ranks.UNKNOWN for report in told)
    return unclear and now - view.born < ADOPT_WAIT


def _awaits_grant(view: View, now: float) -> bool:
    if view.need_number is None or view.grant is None or view.grant.world_number > view.need_number:
        return False
    return now - view.since <= GRANT_WAIT


def _all_down(view: View, world: World, now: float) -> bool:
    return bool(world.members) and all(view.fresh(uid, now) and view.down(uid) for uid in world.uids)


def _fail_open(view: View, now: float) -> View | None:
    if any(heard.report.untouched for heard in view.members.values()):
        return view.go(Mode.UNGUARDED, now, "a member runs the user's command untouched, so all do")
    alone = view.attempt is None and not view.controller_open and now - view.born >= MISSES_MEMBERS
    if not alone or view.scan is None or view.scan.completed or view.scan.claims or view.scan.records:
        return None
    expected = len(view.grant.world.members) if view.grant and view.grant.world else view.size
    told = [heard for heard in view.members.values() if now - heard.at <= MISSES_MEMBERS]
    if len(told) >= expected and view.grant is not None:
        return None
    return view.go(Mode.UNGUARDED, now, f"no controller for {MISSES_MEMBERS:.0f} s, members missing, nothing to resume")


# ---------------------------------------------------------------- adopting


def _adopt(view: View, now: float) -> View | None:
    """A2: only the newest claim's incarnation, whole and recorded by this leader, is adopted as running."""
    tip = floor(view)
    record = _record(view, tip)
    if record is None or record.leader_uid != view.own_uid:
        return None
    told = reports(view, record.world)
    if not told or not all(_runs(report, tip) for report in told.values()):
        return None
    if any(heard.report.ranks is Ranks.RUNNING for uid, heard in view.members.items() if uid not in told):
        return None
    number = view.grant.world_number if view.grant and _granted(view, record.world) else 0
    attempt = Attempt(
        tip, record.world, number, record.nonce, record.parent, recorded=True, adopted=True, started_at=now,
        ran=frozenset(told), progress_at=now, surveyed=False,
    )  # fmt: skip
    for report in told.values():
        attempt = progress(view, attempt, report, now)
    view = replace(view, attempt=attempt, records={**view.records, tip: record})
    view = replace(view, newest=newest_committed(view, tip))
    return view.go(Mode.RUNNING, now, f"{tip} runs already")


def _granted(view: View, world: World) -> bool:
    granted = view.grant.world if view.grant else None
    return granted is not None and uids(granted.members) == uids(world.members)


def _runs(report: MemberReport, tip: Incarnation) -> bool:
    return report.incarnation == tip and report.ranks in (Ranks.RUNNING, Ranks.EXITED)


def _record(view: View, tip: Incarnation) -> Record | None:
    """The record of `tip`. Without a root there is none to read: what all granted members run is as good."""
    record = view.records.get(tip)
    grant = view.grant
    if record is not None or view.has_root or grant is None or grant.world is None:
        return record
    return Record(tip, grant.job_uid, view.own_uid, "", grant.world, None)


def progress(view: View, attempt: Attempt, report: MemberReport, at: float) -> Attempt:
    """How far the attempt is, now that `report` (which `view` knows already) has come."""
    if report.ranks is Ranks.RUNNING and report.member.uid not in attempt.ran:
        attempt = replace(attempt, ran=attempt.ran | {report.member.uid})
    told = [item for item in reports(view, attempt.world).values() if item.incarnation == attempt.incarnation]
    steps = [item.step for item in told if item.step is not None]
    if not steps:
        return attempt
    ahead = [item.stage.furthest for item in told if item.stage is not None]
    attempt = replace(attempt, furthest=max(*steps, *ahead, attempt.furthest or 0))
    slowest = min(steps)
    if len(steps) < len(attempt.world.members) or (attempt.slowest is not None and slowest <= attempt.slowest):
        return attempt
    return _measured(replace(attempt, slowest=slowest, progress_at=at), slowest, at)


def _measured(attempt: Attempt, slowest: int, at: float) -> Attempt:
    """Reports come in bursts: only a stretch of some seconds tells a rate."""
    if attempt.rate_from is None:
        return replace(attempt, rate_from=(slowest, at))
    step, since = attempt.rate_from
    if at - since < RATE_OVER:
        return attempt
    return replace(attempt, rate=(slowest - step) / (at - since), rate_from=(slowest, at))


# ---------------------------------------------------------------- claiming


def _begin(view: View, world: World, now: float) -> View:
    grant, scan = view.grant, view.scan
    if grant is None or scan is None:
        return view
    told = [heard.report.incarnation for heard in view.members.values() if heard.report.incarnation is not None]
    taken = [*(claim for claim, _ in scan.claims), *(record.incarnation for record in scan.records), floor(view)]
    try:
        incarnation = next_incarnation([*taken, *told, *view.records], grant.generation)
    except FencedError as error:
        return view.go(Mode.FENCED, now, str(error))
    staying = {uid: leaving for uid, leaving in view.leaving.items() if uid in world.uids}
    view = replace(
        view,
        attempt=Attempt(incarnation, world, grant.world_number),
        before=view.attempt if view.attempt and view.attempt.recorded else view.before,
        need_number=None,
        leaving={},
        handled=view.handled | _standing(view, world.members) | {(uid, item.notice) for uid, item in staying.items()},
        recreate=None,
        looked_since=now,
    )
    return view.go(Mode.CLAIMING, now, f"claiming {incarnation}")


def _standing(view: View, members: tuple[Member, ...]) -> frozenset[tuple[str, str]]:
    """The notices that the controller had before it granted this world: it has judged them."""
    granted_at = view.grant_at
    pairs = ((uid, notice.id) for uid in (member.uid for member in members) for notice in _notices(view, uid))
    return frozenset(pair for pair in pairs if view.noticed.get(pair, granted_at) < granted_at)


def _notices(view: View, uid: str) -> tuple[Notice, ...]:
    heard = view.members.get(uid)
    return heard.report.notices if heard else ()


def claimed(view: View, nonce: str, scan: LineageScan, now: float) -> View:
    """C2: the claim is written and the root was listed after it. A claim that is newer than ours fences us."""
    attempt = view.attempt
    if attempt is None:
        return view
    fenced = fenced_by(view, scan)
    if fenced is not None:
        return view.go(Mode.FENCED, now, fenced)
    newer = [claim for claim, _ in scan.claims if claim > attempt.incarnation]
    view = take_scan(view, scan, now)
    if newer:
        return replace(view, attempt=view.before).go(Mode.GATHERING, now, f"{max(newer)} was claimed before")
    view = replace(view, attempt=replace(attempt, nonce=nonce), looked_since=now)
    return view.go(Mode.CHOOSING, now, "choosing what to resume")


def fenced_by(view: View, scan: LineageScan) -> str | None:
    """Why another leader's claim ends this coordinator's time, None if none does."""
    generation = view.grant.generation if view.grant else 0
    for claim, leader in scan.claims:
        other = leader not in ("", view.own_uid)
        if claim.generation > generation or (claim.generation == generation and other):
            return f"{claim} has been claimed by another leader pod"
    return None


def take_scan(view: View, scan: LineageScan, now: float) -> View:
    """The root as it was seen."""
    records = {**view.records, **{record.incarnation: record for record in scan.records}}
    return replace(view, scan=scan, scanned_at=now, records=records)


# ---------------------------------------------------------------- choosing


def choose(view: View, now: float) -> View:
    """C3, C8: what the claimed attempt resumes from, once that is certain."""
    attempt = view.attempt
    if attempt is None or view.scan is None:
        return view
    choice = choice_of(view)
    if not isinstance(choice, Parent):
        return _say_blocked(view, choice, now)
    parent = choice.checkpoint
    if parent is None or parent in in_memory(view, attempt.world):
        return _chosen(view, attempt, parent, view.directories.get(parent) if parent else None, now)
    found = view.verified.get(parent)
    if found is None:
        return view
    if _cannot_load(view, found.world_size, len(attempt.world.members)):
        why = f"{parent} was saved by {found.world_size} members and cannot be loaded by {len(attempt.world.members)}"
        return view if view.blocked == why else replace(view, blocked=why)
    return _chosen(view, attempt, parent, found.directory, now)


def _chosen(view: View, attempt: Attempt, parent: CheckpointId | None, directory: str | None, now: float) -> View:
    view = replace(view, attempt=replace(attempt, parent=parent, directory=directory), blocked=None)
    return view.go(Mode.RECORDING, now, f"resuming {parent}" if parent else "starting at step 0")


def choice_of(view: View) -> Choice:
    """The choice as far as it is known now; broken checkpoints are those that failed verification."""
    attempt, scan, grant = view.attempt, view.scan or LineageScan(), view.grant
    memory = in_memory(view, attempt.world) if attempt else set()
    broken = {checkpoint for checkpoint, found in view.verified.items() if not found.whole} - memory
    known = [checkpoint for checkpoint in (view.newest, grant.expected if grant else None) if checkpoint]
    records = {key: record for key, record in view.records.items() if attempt and key < attempt.incarnation}
    return choose_parent(records, {*scan.visible, *memory}, max(known, default=None), broken, scan.unreadable)


def to_verify(view: View) -> CheckpointId | None:
    """The checkpoint that only the disk can give and that nobody has verified yet."""
    choice = choice_of(view)
    parent = choice.checkpoint if isinstance(choice, Parent) else None
    if parent is None or view.attempt is None or parent in in_memory(view, view.attempt.world):
        return None
    return None if parent in view.verified else parent


def look_again_at(view: View) -> float | None:
    """When the root has to be listed again while choosing; None: no need."""
    if view.mode is not Mode.CHOOSING or isinstance(choice_of(view), Parent):
        return None
    return view.scanned_at + (LOOK_EVERY_BLOCKED if view.blocked else LOOK_EVERY)


def _say_blocked(view: View, choice: Choice, now: float) -> View:
    if view.blocked is not None or now - view.looked_since < VISIBLE_WAIT:
        return view
    return replace(view, blocked=str(choice))


def _cannot_load(view: View, saved_by: int | None, members: int) -> bool:
    return saved_by is not None and saved_by != members and view.hook_seen and not view.reshardable


# ---------------------------------------------------------------- starting


def start(view: View, now: float) -> View:
    """Recorded, and a port reserved: the ranks may run."""
    attempt = view.attempt
    if attempt is None or not attempt.recorded or attempt.port is None:
        return view
    view = replace(view, attempt=replace(attempt, started_at=now, progress_at=now), stage=None, save=None)
    view = replace(view, confirmed=survey(view), stage_due=now, flush_due=max(view.flush_due, now))
    view = note_resumed(view, view.before)
    return view.go(Mode.RUNNING, now, f"{attempt.incarnation} starts")


def newest_committed(view: View, tip: Incarnation) -> CheckpointId | None:
    """The newest checkpoint on disk that counts on the chain of `tip`, as far as this coordinator knows."""
    known = {*(view.scan.visible if view.scan else ()), *view.uncertain}
    known |= {view.newest} if view.newest else set()
    whole = (checkpoint for checkpoint in known if not _broken(view, checkpoint))
    return max((checkpoint for checkpoint in whole if on_chain(view.records, checkpoint, tip)), default=None)


def _broken(view: View, checkpoint: CheckpointId) -> bool:
    found = view.verified.get(checkpoint)
    return found is not None and not found.whole


def record_of(view: View) -> Record | None:
    """The record of the attempt that is being started."""
    attempt, grant = view.attempt, view.grant
    if attempt is None or grant is None:
        return None
    return Record(
        attempt.incarnation, grant.job_uid, view.own_uid, attempt.nonce or "none", attempt.world, attempt.parent
    )
