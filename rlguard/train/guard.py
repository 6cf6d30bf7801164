"""The training loop's three calls: resume, step, close. Without a sidecar each is next to nothing."""

from __future__ import annotations

import json
import operator
import os
import sys
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from rlguard.train import pages, slot
from rlguard.train.state import State

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_LAST_STEP: Final = 10**18 - 1
"""A checkpoint's name holds no larger one."""
_LINES: Final = 20
"""A fault that comes with every step must not fill the log."""


class Guard:
    """Keeps `parts` (name -> module, optimizer, dict, or object with state_dict and load_state_dict) safe.

    Build it after the process group and the wrapped model, the same on every rank; then `step = guard.resume()`,
    `guard.step(step)` after each finished step, `guard.close()` at the end. Steps count finished ones: 0 before the
    first. Raises TypeError for a part that cannot be kept. One Guard per process keeps all parts: a second one takes
    the place of the first and says so. A forked child's copy does nothing.
    """

    _newest: ClassVar[weakref.WeakMethod[Callable[[slot.Seat | None], None]] | None] = None

    def __init__(self, parts: dict[str, Any], environment: Mapping[str, str] | None = None) -> None:
        self._environment = os.environ if environment is None else environment
        self._finished = False
        self._answered = 0
        self._lines = _LINES
        self._seat = _seat(self._environment)
        self._writer: pages.RankWriter | None = None
        if self._seat is None:
            return
        self._state = State(parts)
        self._slots: dict[int, slot.SlotWriter] = {}
        self._peek = pages.ControlPeek(self._seat.shm)
        try:
            self._writer = pages.RankWriter(self._seat.shm, self._seat.local_rank, _first_page(self._seat))
        except OSError as error:
            self._say(f"no page in {self._seat.shm}, so no heartbeat and no staging: {error}")
            return
        self._replace_older()

    @property
    def finished(self) -> bool:
        """Whether the loop has said that it is done."""
        return self._finished

    def resume(self) -> int:
        """Load what this start was told to resume from, in place; returns its step, 0 when there is nothing.

        Ends the process with status 1 and a line on stderr when that very checkpoint can't be read: another step
        would be another history than the other ranks'.
        """
        text = self._environment.get("RLGUARD_RESUME", "null")
        if text == "null":
            return 0
        if self._seat is None:
            sys.exit(f"rlguard: told to resume {text[:200]}, but RLGUARD_SHM or RLGUARD_INCARNATION names nothing here")
        try:
            order = json.loads(text)
            step_text, _, incarnation = order["checkpoint"].partition("@")
            step, places = int(step_text), _places(order)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            sys.exit(f"rlguard: RLGUARD_RESUME names no checkpoint: {error!r} in {text[:200]}")
        failures = []
        for place in places:
            try:
                fresh = self._state.load(*self._read(place, (incarnation, step)))
            except Exception as error:  # noqa: BLE001 # whatever the parts raise, the next place may be whole
                failures.append(str(error) if isinstance(error, slot.NotThereError) else f"{place}: {error!r}")
            else:
                self._tell_resumed(step, incarnation, place, fresh)
                return step
        sys.exit(f"rlguard: cannot resume from {order['checkpoint']}: {'; '.join(failures) or 'no place was named'}")

    def step(self, step: int, *, nan: bool = False) -> None:
        """Say that `step` is finished, and stage it if it is the one asked for. `nan`: its loss was no number.

        Raises TypeError or ValueError for a step that is no whole number from 0.
        """
        step = operator.index(step)
        if not 0 <= step <= _LAST_STEP:
            raise ValueError(f"Guard.step: {step} is no count of finished steps")
        writer = self._own_writer()
        if writer is None:
            return
        now = pages.boottime_ns()
        writer.beat(step, now)
        if nan:
            writer.update(nan=True)
        try:
            asked = self._peek.order(now)
        except OSError as error:
            self._say(f"cannot look at the sidecar's page: {error}")
            return
        if asked != self._answered:
            self._answer(writer, step)

    def close(self) -> None:
        """Say that training is finished."""
        self._finished = True
        writer = self._own_writer()
        if writer is not None:
            writer.update(finished=True)
            self._let_go()

    def _own_writer(self) -> pages.RankWriter | None:
        """The page has one writer: not also a child that was forked with a copy of this object."""
        return self._writer if self._writer is not None and self._writer.page.pid == os.getpid() else None

    def _replace_older(self) -> None:
        give_way = Guard._newest() if Guard._newest is not None else None
        Guard._newest = weakref.WeakMethod(self._give_way)
        if give_way is not None:
            give_way(self._seat)

    def _give_way(self, seat: slot.Seat | None) -> None:
        if self._seat == seat and self._own_writer() is not None:
            self._say("a second Guard in this process: the first keeps nothing any more; give all parts to one Guard")
            self._let_go()

    def _let_go(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _answer(self, writer: pages.RankWriter, step: int) -> None:
        seat = self._seat
        try:
            order = pages.read_control(seat.shm) if seat else None
        except (OSError, pages.PageError) as error:
            self._say(f"cannot read the sidecar's page: {error}")
            return
        if seat is None or order is None or order.incarnation != seat.incarnation or order.step > step:
            return
        result = pages.StageResult.PAST if order.step < step else self._stage(order)
        writer.update(order=order.order, stage_step=order.step, slot=order.slot, result=result)
        self._answered = order.order

    def _stage(self, order: pages.ControlPage) -> pages.StageResult:
        try:
            if order.slot not in self._slots:
                self._slots[order.slot] = slot.SlotWriter(self._seat, order.slot)  # type: ignore[arg-type] # staging has a seat
            self._slots[order.slot].write(self._state, order.step)
        except slot.NoRoomError as error:
            self._say(f"step {order.step} is not staged: {error}")
            return pages.StageResult.SKIPPED
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 # training goes on; CheckpointException is no Exception
            self._say(f"staging step {order.step} failed: {error!r}")
            return pages.StageResult.FAILED
        return pages.StageResult.STAGED

    def _read(self, place: int | Path, checkpoint: tuple[str, int]) -> tuple[dict[str, Any], dict[str, Any]]:
        if self._seat is None:
            raise slot.NotThereError("no shared memory")
        if isinstance(place, int):
            return slot.read_slot(self._seat, place, checkpoint, self._state)
        return slot.read_directory(place, self._seat, self._state)

    def _tell_resumed(self, step: int, incarnation: str, place: int | Path, fresh: list[str]) -> None:
        where = f"memory slot {place}" if isinstance(place, int) else place
        started = f"; started fresh, as this rank is new: {', '.join(fresh)}" if fresh else ""
        self._say(f"resumed {step}@{incarnation} from {where}{started}")
        writer = self._own_writer()
        if writer is not None:
            writer.update(step=step)

    def _say(self, line: str) -> None:
        if self._lines > 0:
            self._lines -= 1
            rank = self._seat.rank if self._seat else 0
            print(f"rlguard: rank {rank}: {line[:500]}", file=sys.stderr, flush=True)  # noqa: T201 # the user's log


_PLACE: Final = (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1"))
_DIGITS: Final = 9


def _seat(environment: Mapping[str, str]) -> slot.Seat | None:
    shm, incarnation = environment.get("RLGUARD_SHM"), environment.get("RLGUARD_INCARNATION")
    if not shm or not incarnation or not Path(shm).is_dir():
        return None
    try:
        rank, world, local, local_world = (_number(environment, name, default) for name, default in _PLACE)
        pages.parse_incarnation(incarnation)
    except ValueError as error:
        print(f"rlguard: no heartbeat and no staging: {error}", file=sys.stderr, flush=True)  # noqa: T201 # the user's log
        return None
    return slot.Seat(Path(shm), incarnation, rank, world, local, local_world)


def _number(environment: Mapping[str, str], name: str, default: str) -> int:
    text = environment.get(name, default)
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS):
        raise ValueError(f"{name} is {text[:60]!r}, no number that torchrun sets")
    return int(text)


def _first_page(seat: slot.Seat) -> pages.RankPage:
    return pages.RankPage(
        incarnation=seat.incarnation,
        rank=seat.rank,
        world_size=seat.world_size,
        local_world_size=seat.local_world_size,
        pid=os.getpid(),
        heartbeat_ns=pages.boottime_ns(),
        hook=True,
        reshardable=True,
    )


def _places(order: dict[str, Any]) -> list[int | Path]:
    """List where to look, nearest first: each holds the same checkpoint or nothing that may be used."""
    memory = [] if order.get("slot") is None else [int(order["slot"])]
    disk = [] if order.get("directory") is None else [Path(order["directory"])]
    return [*memory, *disk]
