"""PID 1 of the sidecar container: starts the real process again when it dies. Tiny, on purpose.

A restarted *container* would cost the group its pods, a restarted *process* costs nothing: so this one does next to
nothing. It binds the listening socket once and hands it to each new process; between two of them the kernel still
completes TCP handshakes, by which the others know that this pod is there (A5). With it goes a piece of anonymous
memory, in which a process leaves its certificate to the next one: the controller that gives them may be away.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import Final

from rlguard.io.clock import boottime

PAUSE_FIRST: Final = 0.2
PAUSE_MOST: Final = 5.0
HEALTHY_AFTER: Final = 30.0
"""A process that lived so many seconds failed by accident: the next pause starts small again."""
BACKLOG: Final = 512
COMMAND: Final = ("-m", "rlguard_sidecar")
_SIGNALS: Final = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}


def listen(address: str) -> socket.socket:
    """The one listening socket of this pod's life, on a port that the kernel chooses."""
    bound = socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    bound.listen(BACKLOG)
    bound.set_inheritable(True)
    return bound


def start(command: tuple[str, ...], listening: int, memory: int) -> int:
    """Start the real process with both descriptors in its environment; returns its pid."""
    environment = {**os.environ, "RLGUARD_LISTEN_FD": str(listening), "RLGUARD_KEEP_FD": str(memory)}
    return os.posix_spawn(sys.executable, [sys.executable, *command], environment, setsigmask=[])


class Supervisor:
    """Keeps one process running until it is told to end."""

    def __init__(self, command: tuple[str, ...], listening: int, memory: int) -> None:
        self._command = command
        self._listening = listening
        self._memory = memory
        self._child: int | None = None
        self._ending = False
        self._pause = PAUSE_FIRST
        self._started_at = 0.0
        self._start_at = 0.0

    def run(self) -> None:
        """Return when told to end and the process has ended; never otherwise."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        while True:
            self._reap()
            if self._child is None:
                if self._ending:
                    return
                self._start_when_due()
            self._sleep()

    def _start_when_due(self) -> None:
        now = boottime()
        if now < self._start_at:
            return
        try:
            self._child = start(self._command, self._listening, self._memory)
        except OSError as error:
            _say(f"cannot start {self._command}: {error}; trying again")
            self._start_at = now + PAUSE_MOST
        self._started_at = now

    def _sleep(self) -> None:
        # Blocked signals are taken here and nowhere else, so none can slip in between a look and the sleep.
        patience = 1.0 if self._child is not None else max(0.0, self._start_at - boottime())
        caught = signal.sigtimedwait(_SIGNALS, patience)
        if caught is not None and caught.si_signo != signal.SIGCHLD:
            self._ending = True
            if self._child is not None:
                os.kill(self._child, signal.SIGTERM)

    def _reap(self) -> None:
        """Collect every ended child: the process, and what its children left behind (PID 1 inherits them)."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._child:
                self._ended(os.waitstatus_to_exitcode(status))

    def _ended(self, code: int) -> None:
        now = boottime()
        pause = PAUSE_FIRST if now - self._started_at > HEALTHY_AFTER else self._pause
        self._child, self._start_at = None, now + pause
        self._pause = min(pause * 2, PAUSE_MOST)
        if not self._ending:
            _say(f"the sidecar process ended with {code}; starting it again in {pause:.1f} s")


def _say(text: str) -> None:
    print(f"rlguard: {text}", file=sys.stderr, flush=True)  # noqa: T201 - PID 1 has no logging, by design


def main() -> None:
    """Supervise. The address is the pod's own; without it any."""
    memory = os.memfd_create("rlguard", 0)
    with listen(os.environ.get("RLGUARD_POD_IP", "")) as bound:
        Supervisor(COMMAND, bound.fileno(), memory).run()


if __name__ == "__main__":
    main()
