"""The launcher's end of `sidecar.sock`: JSON lines, reconnecting for ever, never blocking."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

RETRY_FIRST_S: Final = 0.1
RETRY_LAST_S: Final = 2.0
LINE_BYTES: Final = 1 << 20
_CHUNK: Final = 65536


class Link:
    """A connection to the sidecar that comes and goes. Times are seconds of the caller's monotonic clock."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket: socket.socket | None = None
        self._in = b""
        self._out = b""
        self._pause = RETRY_FIRST_S
        self.retry_at = 0.0

    @property
    def descriptor(self) -> int | None:
        """The open connection's descriptor, None while there is none."""
        return self._socket.fileno() if self._socket else None

    @property
    def backlog(self) -> bool:
        """Whether something is still to be sent."""
        return bool(self._out)

    def connect(self, now: float) -> bool:
        """Try to connect if it is time to. True when a connection was just made."""
        if self._socket or now < self.retry_at:
            return False
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            connection.connect(str(self._path))
        except OSError:
            connection.close()
            self.retry_at = now + self._pause
            self._pause = min(self._pause * 2, RETRY_LAST_S)
            return False
        self._socket, self._in, self._out, self._pause = connection, b"", b"", RETRY_FIRST_S
        return True

    def send(self, message: dict[str, Any], now: float) -> None:
        """Send a whole message. One that is still under way is finished first and this one dropped: a newer follows."""
        if self._socket and not self._out:
            self._out = json.dumps(message).encode() + b"\n"
            self.flush(now)

    def flush(self, now: float) -> None:
        """Send what is left to send, as far as it goes."""
        try:
            while self._socket and self._out:
                self._out = self._out[self._socket.send(self._out) :]
        except BlockingIOError:
            return
        except OSError:
            self._drop(now)

    def receive(self, now: float) -> list[dict[str, Any]]:
        """Return the whole messages that came; lines that are no JSON object are skipped."""
        try:
            data = self._socket.recv(_CHUNK) if self._socket else b""
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data or len(self._in) > LINE_BYTES:
            self._drop(now)
            return []
        *lines, self._in = (self._in + data).split(b"\n")
        return [message for line in lines if (message := _parsed(line)) is not None]

    def _drop(self, now: float) -> None:
        if self._socket:
            self._socket.close()
        self._socket, self._in, self._out = None, b"", b""
        self.retry_at = now + self._pause


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None
