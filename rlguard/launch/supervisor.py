"""The launcher's loop: one thread, one selector, no decision of its own.

It must not block and must not end: an ended container costs the whole group.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from rlguard.launch import processes
from rlguard.launch.link import Link
from rlguard.launch.ranks import Ranks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rlguard.launch.output import Stream

STATE_EVERY_S: Final = 1.0
_SINK_RETRY_S: Final = 0.05
_AFTER_ERROR_S: Final = 0.5
_INCARNATION: Final = re.compile(r"[0-9]{1,18}\.[0-9]{1,18}")
_HIDDEN: Final = ("RLGUARD_",)


class Supervisor:
    """Runs the user's command as its sidecar says, in `run` beside the sidecar's socket. `lib` holds the hook."""

    def __init__(self, command: Sequence[str], run: Path, lib: Path, environment: Mapping[str, str]) -> None:
        self.ranks = Ranks(command, run)
        self._link = Link(run / "sidecar.sock")
        self._lib = lib
        self._environment = environment
        self._selector = selectors.DefaultSelector()
        self._terminating = False
        self._idle = False
        self._untouched = False
        self._may_exit = False
        self._told: dict[str, Any] = {}
        self._told_at = 0.0
        self._streams: list[Stream] = []

    def run(self) -> int:
        """Serve until the pod ends. Returns the launcher's exit code."""
        self._catch_signals()
        processes.adopt_orphans()
        while not self._over():
            try:
                self._turn()
            except Exception as error:  # noqa: BLE001 # ending would end the container and cost the whole group
                _say(f"the launcher goes on after {error!r}")
                time.sleep(_AFTER_ERROR_S)
        self._pump()
        return self._exit_code()

    def _turn(self) -> None:
        now = _now()
        # In this order a report of dead ranks holds their last words: whoever is dead has written all of it.
        pause = min(self.ranks.tick(now), self._pump(), self._tell(now))
        self._register()
        for key, _ in self._selector.select(max(0.0, pause)):
            key.data()
        self._reap()

    def _over(self) -> bool:
        if self._untouched and not self.ranks.active:
            return True
        nothing_ran = self._idle or self.ranks.phase == "none"
        return self._terminating and not self.ranks.active and (self._may_exit or nothing_ran)

    def _exit_code(self) -> int:
        if not self._untouched:
            return 0
        return 128 + self.ranks.signal if self.ranks.signal else self.ranks.code or 0

    def _catch_signals(self) -> None:
        waker, woken = socket.socketpair()
        waker.settimeout(0)
        woken.settimeout(0)
        signal.set_wakeup_fd(waker.detach(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._on_terminate)
        signal.signal(signal.SIGINT, self._on_terminate)
        self._selector.register(woken, selectors.EVENT_READ, lambda: _drain(woken))

    def _on_terminate(self, number: int, _frame: object) -> None:
        self._terminating = True
        if self._untouched:
            processes.send(processes.children(os.getpid()), signal.Signals(number))

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                self.ranks.child_ended(pid, status, _now())

    def _register(self) -> None:
        """Watch what is open now; few descriptors, so the set is made anew each time."""
        for descriptor in [
            fd for fd, key in self._selector.get_map().items() if not isinstance(key.fileobj, socket.socket)
        ]:
            self._selector.unregister(descriptor)
        for stream in self._streams:
            if not stream.waits:
                self._selector.register(stream.source, selectors.EVENT_READ, _nothing)
        for descriptor in self.ranks.rank_pidfds:
            self._selector.register(descriptor, selectors.EVENT_READ, lambda fd=descriptor: self._rank_ended(fd))
        if self._link.descriptor is not None:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._link.backlog else 0)
            self._selector.register(self._link.descriptor, events, self._serve_link)

    def _rank_ended(self, descriptor: int) -> None:
        if descriptor in self.ranks.rank_pidfds:
            self.ranks.rank_ended(descriptor, _now())

    def _pump(self) -> float:
        """Pass the output on; returns the seconds until the next try."""
        self._streams += self.ranks.streams
        self.ranks.streams = []
        for stream in list(self._streams):
            if not stream.pump():
                stream.close()
                self._streams.remove(stream)
        return _SINK_RETRY_S if any(stream.waits for stream in self._streams) else STATE_EVERY_S

    def _tell(self, now: float) -> float:
        """Send the state when it changed, on connecting, and once a second; returns the seconds until the next."""
        connected = self._link.connect(now)
        state = self._state()
        if connected or state != self._told or now >= self._told_at + STATE_EVERY_S:
            self._link.send({**state, "tail": self.ranks.tail.text()}, now)
            self._told, self._told_at = state, now
        due = self._told_at + STATE_EVERY_S
        return (due if self._link.descriptor is not None else min(due, self._link.retry_at)) - now

    def _state(self) -> dict[str, Any]:
        ranks = self.ranks
        return {
            "type": "state",
            "pid": os.getpid(),
            "command": ranks.command,
            "incarnation": ranks.incarnation,
            "ranks": ranks.phase,
            "code": ranks.code,
            "signal": ranks.signal,
            "hooked": ranks.hooked,
            "terminating": self._terminating,
            "stuck": ranks.stuck,
            "idle": self._idle,
        }

    def _serve_link(self) -> None:
        now = _now()
        self._link.flush(now)
        for order in self._link.receive(now):
            self._obey(order, now)

    def _obey(self, order: dict[str, Any], now: float) -> None:
        obey = {"start": self._start, "stop": self._stop, "idle": self._rest, "untouched": self._fail_open}
        try:
            obey[order["type"]](order, now)
        except (KeyError, TypeError, ValueError) as error:
            _say(f"ignored an order of the sidecar: {error!r} in {str(order)[:200]}")

    def _start(self, order: dict[str, Any], now: float) -> None:
        incarnation, extra = str(order["incarnation"]), dict(order["env"])
        if _INCARNATION.fullmatch(incarnation) is None:  # it becomes a file's name
            raise ValueError(f"no incarnation: {incarnation[:60]!r}")
        if self.ranks.active or incarnation == self.ranks.incarnation or self._untouched or self._may_exit:
            return
        self._idle = False
        own = self._environment.get("PYTHONPATH")
        environment = {
            **self._environment,
            "PYTHONPATH": os.pathsep.join([str(self._lib), own] if own else [str(self._lib)]),
            "RLGUARD_INCARNATION": incarnation,
            **{str(name): str(value) for name, value in extra.items()},
        }
        self.ranks.start(incarnation, environment, now)

    def _stop(self, order: dict[str, Any], now: float) -> None:
        if self._untouched:
            return
        if not self.ranks.active:
            self._may_exit = self._terminating
        elif order["incarnation"] == self.ranks.incarnation:
            self.ranks.stop(float(order["grace_s"]), now)
            self._may_exit = self._terminating

    def _rest(self, _order: dict[str, Any], _now: float) -> None:
        self._idle = not self.ranks.active

    def _fail_open(self, _order: dict[str, Any], now: float) -> None:
        if self.ranks.phase != "none" or self._terminating:
            return
        self._untouched = True
        own = {name: value for name, value in self._environment.items() if not name.startswith(_HIDDEN)}
        self.ranks.start(None, own, now)


def _drain(woken: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        while woken.recv(256):
            pass


def _say(line: str) -> None:
    with contextlib.suppress(OSError):
        print(f"rlguard: {line}", file=sys.stderr, flush=True)  # noqa: T201 # the launcher's log is the container's


def _nothing() -> None:
    """Readable output is moved by the loop itself."""


def _now() -> float:
    """Seconds by CLOCK_BOOTTIME: a grace goes on while the machine sleeps, and no clock step touches it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
