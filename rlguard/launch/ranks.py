"""One run of the user's command: start it, see how it ends, take down every process it left."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING, Final

from rlguard.launch import processes
from rlguard.launch.output import Stream, Tail

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

LAST_WORD_S: Final = 3.0
"""After a rank died, so long torchrun may take to stop the others and say why; its own limit is 30 s."""
STUCK_AFTER_S: Final = 3.0
"""A process that lives so long after SIGKILL is reported: it sits in the kernel, and only time or a reboot helps."""
HOOK_WAIT_S: Final = 120.0
"""A command in which the hook was not seen for so long is taken for one without torchrun (importing torch is slow)."""
_NOT_FOUND: Final = 127
_WATCH_EVERY_S: Final = 0.1
_SWEEP_EVERY_S: Final = 0.02


class Ranks:
    """The state that the launcher reports, and what moves it. Times are seconds of the caller's clock.

    `phase` is none, running, stopping, exited, gone or stuck. `code` and `signal` are those of the first rank that
    died when that was seen, else the command's own.
    """

    def __init__(self, command: Sequence[str], run: Path) -> None:
        self.command = list(command)
        self.incarnation: str | None = None
        self.phase = "none"
        self.code: int | None = None
        self.signal: int | None = None
        self.hooked: bool | None = None
        self.stuck: list[int] = []
        self.streams: list[Stream] = []
        self.tail = Tail()
        self.rank_pidfds: dict[int, int] = {}
        self._run = run
        self._main: int | None = None
        self._session: int | None = None
        self._started_at = 0.0
        self._kill_at = 0.0
        self._ordered = False

    @property
    def active(self) -> bool:
        """Whether any process may still be there."""
        return self.phase in ("running", "stopping", "stuck")

    def start(self, incarnation: str | None, environment: Mapping[str, str], now: float) -> None:
        """Start the command in a session of its own. A command that can't be started has exited with code 127."""
        self.incarnation, self.phase = incarnation, "running"
        self.code = self.signal = self.hooked = None
        self.stuck, self.tail, self._ordered, self._started_at = [], Tail(), False, now
        self._hook_file().unlink(missing_ok=True)
        launcher = os.getpid()
        try:
            process = subprocess.Popen(  # noqa: S603 # running the user's command is what a launcher does
                self.command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=lambda: processes.die_with(launcher),  # noqa: PLW1509 # the launcher has one thread
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self.tail.add(f"cannot start {self.command[0]!r}: {error}\n".encode())
            self.phase, self.code = "exited", _NOT_FOUND
            return
        self._main = self._session = process.pid
        # Every child is waited for in one place, by pid; Popen must not do it again when it is collected.
        process.returncode = 0
        self._take_output(process)

    def _take_output(self, process: subprocess.Popen[bytes]) -> None:
        for pipe, sink in ((process.stdout, 1), (process.stderr, 2)):
            if pipe is not None:
                self.streams.append(Stream(os.dup(pipe.fileno()), sink, self.tail))
                pipe.close()

    def stop(self, grace_s: float, now: float) -> None:
        """Ask every process to end; after `grace_s` they are killed. Repeating it can only shorten the grace."""
        if self.phase == "running":
            self.phase, self._ordered, self._kill_at = "stopping", True, now + grace_s
            processes.send(processes.descendants(os.getpid()), signal.SIGTERM)
        elif self.phase == "stopping":
            self._kill_at = min(self._kill_at, now + grace_s)

    def child_ended(self, pid: int, status: int, now: float) -> None:
        """Take the wait status of a child. Only the command itself matters; the others were adopted."""
        if pid != self._main:
            return
        self._main = None
        if self.phase == "running":
            self._ended(status)
        self._kill_at = now  # whatever it left behind has lost its parent

    def rank_ended(self, descriptor: int, now: float) -> None:
        """A watched rank ended: unless it ended well, the whole command comes down."""
        status = processes.status_of_dead(self.rank_pidfds[descriptor])
        self._forget(descriptor)
        # Unknown when torchrun was quicker to wait for it; torchrun then acts on it.
        if status and self.phase == "running":
            self._ended(status)
            self._kill_at = now + LAST_WORD_S

    def tick(self, now: float) -> float:
        """Do what is due; returns the seconds until the next look."""
        if self.phase == "running":
            self._watch(now)
            return _WATCH_EVERY_S
        if self.active:
            self._sweep(now)
            return _SWEEP_EVERY_S
        return float("inf")

    def _ended(self, status: int) -> None:
        self.phase = "stopping"
        code = os.waitstatus_to_exitcode(status)
        self.code, self.signal = (code, None) if code >= 0 else (None, -code)

    def _watch(self, now: float) -> None:
        if not self.hooked:
            if self._hook_file().exists():
                self.hooked = True
            elif now - self._started_at > HOOK_WAIT_S:
                self.hooked = False
        if self.hooked:
            self._watch_ranks()

    def _watch_ranks(self) -> None:
        known = set(self.rank_pidfds.values())
        for pid in processes.children(self._agent()):
            if pid in known or not processes.is_rank(pid):
                continue
            try:
                self.rank_pidfds[os.pidfd_open(pid)] = pid
            except OSError:  # gone already, or a kernel before 5.3: torchrun sees it end
                continue

    def _agent(self) -> int:
        try:
            return int(self._hook_file().read_text())
        except (OSError, ValueError):
            return 0

    def _sweep(self, now: float) -> None:
        # Every orphan comes to this process: while it has a child something may live that a walk of /proc missed.
        if not processes.has_children():
            self._finish()
            return
        if now < self._kill_at:
            return
        alive = processes.descendants(os.getpid())
        processes.send(alive, signal.SIGKILL)
        if self._session is not None:
            processes.kill_group(self._session)
        if now > self._kill_at + STUCK_AFTER_S:
            self.phase, self.stuck = "stuck", sorted(alive or processes.children(os.getpid()))

    def _finish(self) -> None:
        self.phase, self.stuck = "gone" if self._ordered else "exited", []
        if self.hooked is None:
            self.hooked = False
        for descriptor in list(self.rank_pidfds):
            self._forget(descriptor)

    def _forget(self, descriptor: int) -> None:
        del self.rank_pidfds[descriptor]
        os.close(descriptor)

    def _hook_file(self) -> Path:
        return self._run / f"hooked-{self.incarnation}"
