"""The sidecar's end of `sidecar.sock`: one launcher, JSON lines, whole snapshots in both directions."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from rlguard.errors import BadWireError
from rlguard.group.member_facts import LauncherState
from rlguard.messages import Ranks
from rlguard.model import Incarnation
from rlguard.policy import HEARTBEAT, SUSPECT

SOCKET: Final = "sidecar.sock"
LINE_BYTES: Final = 1 << 20
TAIL: Final = 8192
"""Characters of output that are kept of what a launcher sends."""
GARBAGE_LIMIT: Final = 100
"""So many bad lines on one connection, and it is closed: that is no launcher."""
MOST_STUCK: Final = 4096
MOST_CONNECTIONS: Final = 8
"""Each may hold two lines of the limit; anybody in the trainer container may open them."""


class LauncherServer:
    """Serves the pod's launcher. `on_state` is told each state, `on_lost` when the connection has ended.

    The first connection that says a valid state is the launcher; others are closed until it has gone or has been
    silent for `SUSPECT` seconds. Anybody in the trainer container may connect: what is said here is about this pod's
    own ranks, and nothing secret is answered.
    """

    def __init__(self, run: Path, on_state: Callable[[LauncherState], None], on_lost: Callable[[], None]) -> None:
        self.garbage = 0
        self._path = run / SOCKET
        self._on_state = on_state
        self._on_lost = on_lost
        self._launcher: asyncio.StreamWriter | None = None
        self._order: bytes | None = None
        self._connections = 0

    async def run(self) -> None:
        """Serve for ever; repeat the newest order once a heartbeat."""
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        server = await asyncio.start_unix_server(self._serve, self._path, limit=LINE_BYTES)
        # The trainer may run as any user; the folder is shared with nobody else.
        os.chmod(self._path, 0o666)  # noqa: PTH101, S103 - as above
        try:
            while True:
                self._send()
                await asyncio.sleep(HEARTBEAT)
        finally:
            server.close()

    def order(self, order: dict[str, Any]) -> None:
        """Replace the order; it is sent now, and again until there is another one."""
        line = json.dumps(order, separators=(",", ":")).encode() + b"\n"
        if line != self._order:
            self._order = line
            self._send()

    def _send(self) -> None:
        launcher = self._launcher
        if launcher is None or self._order is None:
            return
        # One that does not read gets nothing more: the newest order follows once it does.
        if not launcher.is_closing() and launcher.transport.get_write_buffer_size() == 0:
            launcher.write(self._order)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._connections >= MOST_CONNECTIONS:  # an idle one makes room when its patience is over
            writer.close()
            return
        self._connections += 1
        try:
            await self._listen(reader, writer)
        except (TimeoutError, OSError, ValueError):
            # Silent, gone, or a line beyond the limit.
            return
        finally:
            if self._launcher is writer:
                self._launcher = None
                self._on_lost()
            self._connections -= 1
            writer.close()

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        garbage = 0
        while garbage < GARBAGE_LIMIT:
            async with asyncio.timeout(SUSPECT):
                line = await reader.readline()
            if not line or (self._launcher is not None and self._launcher is not writer):
                return
            try:
                state = parse_state(line)
            except BadWireError:
                garbage, self.garbage = garbage + 1, self.garbage + 1
                continue
            self._heard(writer, state)

    def _heard(self, writer: asyncio.StreamWriter, state: LauncherState) -> None:
        is_new = self._launcher is None
        self._launcher = writer
        self._on_state(state)
        if is_new:
            self._send()


def parse_state(line: bytes) -> LauncherState:
    """The launcher's state in one line. Raises BadWireError naming what does not fit."""
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadWireError(f"not JSON: {error}") from error
    if not isinstance(raw, dict) or raw.get("type") != "state":
        raise BadWireError(f"not a state: {line[:80]!r}")
    return LauncherState(
        incarnation=_incarnation(raw.get("incarnation")),
        ranks=_ranks(raw.get("ranks")),
        code=_whole(raw, "code"),
        signal=_whole(raw, "signal"),
        tail=_text(raw, "tail")[-TAIL:].encode(errors="replace").decode(),
        hooked=None if raw.get("hooked") is None else _flag(raw, "hooked"),
        terminating=_flag(raw, "terminating"),
        stuck=_pids(raw.get("stuck")),
        idle=_flag(raw, "idle"),
    )


def _incarnation(value: Any) -> Incarnation | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise BadWireError(f"incarnation: expected a string, got {value!r:.60}")
    try:
        return Incarnation.parse(value)
    except ValueError as error:
        raise BadWireError(f"incarnation: {error}") from error


def _ranks(value: Any) -> Ranks:
    try:
        ranks = Ranks(value)
    except ValueError as error:
        raise BadWireError(f"ranks: {error}") from error
    if ranks is Ranks.UNKNOWN:
        raise BadWireError("ranks: a launcher knows its ranks")
    return ranks


def _whole(raw: dict[str, Any], name: str) -> int | None:
    value = raw.get(name)
    if value is not None and not _is_small(value):
        raise BadWireError(f"{name}: expected a whole number, got {value!r:.60}")
    return value


def _is_small(value: Any) -> bool:
    return type(value) is int and abs(value) < 1 << 31


def _text(raw: dict[str, Any], name: str) -> str:
    value = raw.get(name)
    if not isinstance(value, str):
        raise BadWireError(f"{name}: expected a string, got {value!r:.60}")
    return value


def _flag(raw: dict[str, Any], name: str) -> bool:
    value = raw.get(name)
    if not isinstance(value, bool):
        raise BadWireError(f"{name}: expected true or false, got {value!r:.60}")
    return value


def _pids(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > MOST_STUCK or not all(map(_is_small, value)):
        raise BadWireError(f"stuck: expected a list of pids, got {value!r:.60}")
    return tuple(value)
