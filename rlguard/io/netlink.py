"""Word from the kernel that something about a network link or an IPv4 address has changed. Standard library alone.

The messages are not parsed: an event is a reason to look, and what is seen then is the truth.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from typing import Final

LINKS: Final = 0x1
"""RTMGRP_LINK of rtnetlink(7): a device came, went, or changed its state or carrier."""
IPV4_ADDRESSES: Final = 0x10
"""RTMGRP_IPV4_IFADDR: an address came or went, and a GID with it."""
MESSAGE: Final = 1 << 16
BATCH: Final = 256


def open_link_events() -> socket.socket:
    """A socket that becomes readable at each change in this network namespace. Raises OSError."""
    opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE)
    try:
        opened.bind((0, LINKS | IPV4_ADDRESSES))
    except OSError:
        opened.close()
        raise
    return opened


def drain(events: socket.socket) -> bool:
    """Take what waits, at most BATCH messages; true if there was any. Raises OSError when the socket is broken.

    Messages that did not fit into the socket's buffer (ENOBUFS) are a change, too.
    """
    some = False
    with contextlib.suppress(BlockingIOError):
        for _ in range(BATCH):
            try:
                if not events.recv(MESSAGE):
                    break
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
            some = True
    return some
