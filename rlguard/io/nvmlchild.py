"""`python -m rlguard.io.nvmlchild ROOT`: NVML behind a pipe, so that a driver that hangs can be left behind.

One JSON request per line on stdin: `{"op": "look", "fresh": false}` (fresh: initialise NVML anew first, else a GPU that
came back stays unseen) or `{"op": "events", "milliseconds": 1000}`. For each one line on stdout: `{"snapshot": ...}`,
`{"events": [...], "waited": true}` (false: this driver has no events to wait for) or `{"unreadable": "why"}`; with
`"over": true` this process is of no more use, as a library that was loaded once is never loaded anew.
Ends when stdin does.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pynvml

from rlguard.health.gpu.snapshot import DRIVER_NOT_LOADED, LIBRARY_MISMATCH, NO_PERMISSION, XidEvent
from rlguard.io.driver import FOLDERS, LIBRARY, find_library
from rlguard.io.nvmlread import address_of, read_all

if TYPE_CHECKING:
    from typing import BinaryIO

PR_SET_PDEATHSIG: Final = 1
MOST_EVENTS: Final = 256
"""Told at once at most; the rest with the next request."""
ADVICE: Final = {
    DRIVER_NOT_LOADED: "the kernel's driver is not loaded, only its library is there: see `lsmod | grep nvidia`; "
    "with the GPU operator, wait for its driver pod",
    LIBRARY_MISMATCH: "library and kernel driver are of different versions: the driver was upgraded without a reboot, "
    "or RLGUARD_AGENT_DRIVER_ROOT names another driver's files; reboot the node, or correct it",
    NO_PERMISSION: "the device files may not be used: look as root; the agent's container must be privileged",
}


class UnreadableError(Exception):
    """NVML cannot be used; the message says why, where, and what to do."""


class Child:
    """Answers requests about the driver under one root."""

    def __init__(self, root: Path, out: BinaryIO) -> None:
        self._root = root
        self._out = out
        self._started = False
        self._events: Any = None
        self._addresses: dict[int | None, str] = {}

    def answer(self, line: bytes) -> bool:
        """Do one request and write its answer; false when this process is of no more use."""
        try:
            request = json.loads(line)
            self._begin(fresh=bool(request.get("fresh")))
            self._say(self._wait(request["milliseconds"]) if request["op"] == "events" else _look())
        except UnreadableError as error:
            self._say({"unreadable": str(error)})
        except pynvml.NVMLError as error:
            return self._refused(error)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._say({"unreadable": f"internal error of the NVML process: {error!r:.200}", "over": True})
            return False
        return True

    def _refused(self, error: Any) -> bool:
        """Tell that the driver as a whole refuses; it is initialised anew for the next request."""
        self._started = False
        over = error.value == LIBRARY_MISMATCH
        advice = ADVICE.get(error.value, "see `nvidia-smi` on the node and the kernel log for lines with NVRM")
        self._say({"unreadable": f"NVML refuses: {error} (code {error.value}); {advice}", "over": over})
        return not over

    def _begin(self, *, fresh: bool) -> None:
        if self._started and not fresh:
            return
        if self._started:
            pynvml.nvmlShutdown()
        self._started = False
        if pynvml.nvmlLib is None:
            _load(self._root)
        pynvml.nvmlInit()
        self._started = True
        self._subscribe()

    def _subscribe(self) -> None:
        """Ask for Xid events. A driver that has none is no trouble: the kernel log tells them as well."""
        self._events, self._addresses = None, {}
        try:
            events = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError:
            return
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
                self._addresses[_pointer(handle)] = address_of(handle)
            except pynvml.NVMLError:
                continue
            self._events = events

    def _wait(self, milliseconds: int) -> dict[str, Any]:
        if self._events is None:
            return {"events": [], "waited": False}
        told: list[XidEvent] = []
        try:
            while len(told) < MOST_EVENTS:
                data = pynvml.nvmlEventSetWait_v2(self._events, 0 if told else milliseconds)
                # A GPU that has just been lost does not tell its address any more: it was asked before.
                told.append(XidEvent(self._addresses.get(_pointer(data.device)), int(data.eventData) & 0xFFFF_FFFF))
        except pynvml.NVMLError as error:
            quiet = error.value == pynvml.NVML_ERROR_TIMEOUT
            return {"events": [dataclasses.asdict(event) for event in told], "waited": quiet}
        return {"events": [dataclasses.asdict(event) for event in told], "waited": True}

    def _say(self, message: dict[str, Any]) -> None:
        self._out.write(json.dumps(message).encode() + b"\n")
        self._out.flush()


def _look() -> dict[str, Any]:
    return {"snapshot": dataclasses.asdict(read_all())}


def _load(root: Path) -> None:
    """Load the driver's own library. Raises UnreadableError."""
    found = find_library(root)
    if found is None:
        raise UnreadableError(_not_found(root))
    try:
        # nvidia-ml-py would ask the loader for the name; once set, it takes this one.
        pynvml.nvmlLib = ctypes.CDLL(str(found))
    except OSError as error:
        raise UnreadableError(f"{found} cannot be loaded: {error}; is it of another kind of machine?") from error


def _not_found(root: Path) -> str:
    places = ", ".join(folder or "." for folder in FOLDERS)
    return (
        f"no {LIBRARY} under {root} (looked in {places}): mount the node's driver with the chart value agent.hostPaths "
        "and set RLGUARD_AGENT_DRIVER_ROOT (agent.env) to it, or set agent.runtimeClassName to the one that brings it "
        "(nvidia); on nodes without GPUs set RLGUARD_AGENT_GPUS to off"
    )


def _pointer(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def main() -> int:
    """Serve until stdin ends, or NVML is of no more use."""
    if len(sys.argv) != 2:  # noqa: PLR2004 # the program and its one argument
        sys.stderr.write("usage: python -m rlguard.io.nvmlchild DRIVER_ROOT\n")
        return 2
    # Inside a call that hangs the end of stdin is not seen; who holds a GPU open is in the way of its reset.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    child = Child(Path(sys.argv[1]), sys.stdout.buffer)
    for line in sys.stdin.buffer:
        try:
            if not child.answer(line):
                return 0
        except BrokenPipeError:  # nobody listens any more
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
