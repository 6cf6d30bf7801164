"""The lowest edge of one node, where the real one has a kernel and a cloud: its kernel log and its metadata server.

Run inside the node as `python -m rlguard_chaos.lab.edge HOME NODE`.

Kernel log: a SOCK_SEQPACKET unix socket, `/run/rlguard-lab/kmsg.sock` in the node. It behaves as an open /dev/kmsg:

- one packet is one record, `priority,sequence,microseconds,flags;text` and a line feed, as read(2) of /dev/kmsg gives;
- a new reader gets every record still in the ring, oldest first, then follows;
- the ring holds 1,300 records and overwrites; a reader that was too slow gets the single packet `EPIPE` (there,
  read(2) fails with EPIPE) and goes on with the oldest record held, whose sequence number has jumped;
- the stamp is CLOCK_MONOTONIC in microseconds;
- the end of the connection means that the node is down.

The socket's own buffer holds a few records more than the ring, where /dev/kmsg has no buffer.

Control (outside the node): a SOCK_SEQPACKET socket `<home>/control.sock`; the packet `{"text": ..., "priority": ...}`
appends a record and is answered by `{"sequence": ...}`.

Metadata server: port 80 on 169.254.0.23 and 169.254.169.254. `/latest/meta-data/spot/termination-time` answers 404, or
once a notice stands in `<home>/metadata.json` its time in UTC+8, as Tencent Cloud does.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingTCPServer
from threading import Thread
from typing import Any

from rlguard_chaos.lab import layout
from rlguard_chaos.lab.ring import Ring

PACKET_LIMIT = 65536
SMALLEST_BUFFER = 1
HTTP_PORT = 80
TERMINATION = "/latest/meta-data/spot/termination-time"


class KernelLog:
    """Serves one ring to any number of readers and takes records from the control socket; one thread."""

    def __init__(self, ring: Ring, readers: Path, control: Path) -> None:
        self._ring = ring
        self._selector = selectors.DefaultSelector()
        self._position: dict[socket.socket, int] = {}
        for path, accept in ((readers, self._new_reader), (control, self._new_writer)):
            self._selector.register(_listen(path), selectors.EVENT_READ, accept)

    def serve(self, timeout: float | None = None) -> None:
        """Handle what is ready now, waiting for it at most timeout seconds (None: as long as it takes)."""
        for key, events in self._selector.select(timeout):
            key.data(key.fileobj, events)

    def wake(self) -> None:
        """The ring has more than the readers were given."""
        for reader in self._position:
            self._selector.modify(reader, selectors.EVENT_READ | selectors.EVENT_WRITE, self._feed)

    def close(self) -> None:
        """End every connection, as a node that goes down."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                self._drop(key.fileobj)
        self._selector.close()

    def _new_reader(self, listener: socket.socket, _: int) -> None:
        reader = listener.accept()[0]
        reader.settimeout(0)
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALLEST_BUFFER)  # the kernel rounds it up
        self._position[reader] = self._ring.first_sequence
        self._selector.register(reader, selectors.EVENT_READ | selectors.EVENT_WRITE, self._feed)

    def _new_writer(self, listener: socket.socket, _: int) -> None:
        writer = listener.accept()[0]
        self._selector.register(writer, selectors.EVENT_READ, self._take)

    def _take(self, writer: socket.socket, _: int) -> None:
        packet = writer.recv(PACKET_LIMIT)
        if not packet:
            self._drop(writer)
            return
        order = json.loads(packet)
        sequence = self._ring.append(order["text"], order["priority"], time.monotonic_ns() // 1000)
        writer.send(json.dumps({"sequence": sequence}).encode())
        self.wake()

    def _feed(self, reader: socket.socket, events: int) -> None:
        try:
            if events & selectors.EVENT_READ and not reader.recv(PACKET_LIMIT):
                self._drop(reader)
            elif events & selectors.EVENT_WRITE:
                self._send(reader)
        except BlockingIOError:
            return
        except OSError:
            self._drop(reader)

    def _send(self, reader: socket.socket) -> None:
        while True:
            try:
                record = self._ring.read(self._position[reader])
            except IndexError:
                reader.send(b"EPIPE")
                self._position[reader] = self._ring.first_sequence
                continue
            if record is None:
                self._selector.modify(reader, selectors.EVENT_READ, self._feed)
                return
            reader.send(record)
            self._position[reader] += 1

    def _drop(self, peer: socket.socket) -> None:
        self._position.pop(peer, None)
        self._selector.unregister(peer)
        peer.close()


class MetadataServer(ThreadingTCPServer):
    """Not http.server's: that one asks a name server, which a booting node may lack, for its own name."""

    allow_reuse_address = True
    daemon_threads = True


def _listen(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    listener.listen()
    return listener


def answer(path: str, state: dict[str, Any]) -> tuple[HTTPStatus, str]:
    """What the metadata server says: pure."""
    if path == TERMINATION and state.get("termination_time"):
        return HTTPStatus.OK, str(state["termination_time"])
    known = {"/latest/meta-data/instance-id": state.get("instance_id", "")}
    return (HTTPStatus.OK, known[path]) if path in known else (HTTPStatus.NOT_FOUND, "404 page not found\n")


def metadata_server(address: str, file: Path) -> MetadataServer:
    """The cloud's metadata server on this address; it reads its state anew at each request."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, text = answer(self.path, json.loads(file.read_text()))
            self.send_response(status)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

    return MetadataServer((address, HTTP_PORT), Handler)


def main() -> None:
    """Serve until killed."""
    home, node = Path(sys.argv[1]), sys.argv[2]
    ring = Ring()
    ring.append(f"Linux version of the lab, booting {node}", 5, time.monotonic_ns() // 1000)
    log = KernelLog(ring, home / "fakes" / "kmsg.sock", home / "control.sock")
    for address in layout.METADATA_ADDRESSES:
        server = metadata_server(address, home / "metadata.json")
        Thread(target=server.serve_forever, daemon=True).start()
    while True:
        log.serve()


if __name__ == "__main__":
    main()
