"""The texts of sysfs that tell how the machine's RDMA ports are, read file by file. Standard library alone.

Reading may block in a driver whose card does not answer, so whoever must not wait reads in a child process
(`rdmaclient`). What cannot be read is left out.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final

from rlguard.io.clock import boottime

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

DEVICES: Final = "class/infiniband"
NETDEVS: Final = "class/net"
GPUS: Final = "bus/pci/drivers/nvidia"
NETNS_MODE: Final = "module/ib_core/parameters/netns_mode"
ROUTES: Final = "proc/net/route"
"""Beside the sysfs root: `/proc` stands beside `/sys`."""
LENGTH: Final = 4096
"""Bytes of a file that are read: no sysfs file is longer than a page."""
ROUTES_LENGTH: Final = 1 << 16
MOST_DEVICES: Final = 256
MOST_PORTS: Final = 8
GID_SLOTS: Final = range(16)
"""Slots of the GID table that are read. A table has up to 256; a host's own addresses come first."""
REFUSED_FOR: Final = 600.0
"""Seconds for which a counter that the driver refuses is not asked for again: each time may log a line
(node_exporter #3434)."""
REFUSALS: Final = 4096


class Reader:
    """Reads one machine's tree below `sysfs`, again and again.

    `gid_index`: a slot of the GID table to read as well. `begin` is called with each device before it is read.
    """

    def __init__(
        self,
        sysfs: Path,
        gid_index: int | None = None,
        begin: Callable[[str], None] = lambda _: None,
        now: Callable[[], float] = boottime,
    ) -> None:
        self._root = str(sysfs)
        self._top = sysfs / "class"
        self._routes = str(sysfs.parent / ROUTES)
        self._slots = sorted({*GID_SLOTS, *([] if gid_index is None else [gid_index])})
        self._begin = begin
        self._now = now
        self._refused: dict[str, float] = {}
        self._counted: dict[str, float] = {}
        self._files: dict[str, str] = {}
        self._seen: set[str] = set()

    def read(self, counters: Sequence[str] = ()) -> dict[str, str]:
        """Path -> text, as `rlguard.health.rdma.snapshot` takes it, with these counters of each port.

        Raises OSError when there is no such tree: a machine without RDMA has one without devices.
        """
        self._top.stat()
        self._files, self._seen = {}, set()
        for device in self._names(DEVICES)[:MOST_DEVICES]:
            self._begin(device)
            self._read_device(f"{DEVICES}/{device}", counters)
        self._begin("the network devices")
        self._read_rest()
        return self._files

    def _read_device(self, device: str, counters: Sequence[str]) -> None:
        self._link(f"{device}/device")
        self._text(f"{device}/device/numa_node")
        virtual = self._link(f"{device}/device/physfn")
        for number in self._names(f"{device}/ports")[:MOST_PORTS]:
            port = f"{device}/ports/{number}"
            for name in ("state", "phys_state", "rate", "link_layer"):
                self._text(f"{port}/{name}")
            if not virtual:
                self._read_addresses(device, port)
                self._read_counters(port, counters)

    def _read_addresses(self, device: str, port: str) -> None:
        names = []
        for slot in self._slots:
            gid = self._text(f"{port}/gids/{slot}")
            if gid.strip("0:\n"):
                self._text(f"{port}/gid_attrs/types/{slot}")
                names.append(self._text(f"{port}/gid_attrs/ndevs/{slot}").strip())
        own = self._names(f"{device}/device/net")
        for name in own:
            self._files[f"{device}/device/net/{name}"] = ""
        for name in {*filter(None, names[:1]), *own}:
            self._read_netdev(name)
            bond = self._link(f"{NETDEVS}/{name}/master").rsplit("/", 1)[-1] or name
            self._read_netdev(bond)
            for slave in self._text(f"{NETDEVS}/{bond}/bonding/slaves").split()[:MOST_PORTS]:
                self._read_netdev(slave)

    def _read_counters(self, port: str, names: Sequence[str]) -> None:
        fresh = self._hardware_is_fresh(port) if names else False
        for name in names:
            path = f"{port}/{name}"
            if (fresh or not name.startswith("hw_counters/")) and self._refused.get(path, 0.0) <= self._now():
                self._text(path, counter=True)

    def _hardware_is_fresh(self, port: str) -> bool:
        """False while the driver would answer what it answered before: for `lifespan` milliseconds."""
        lifespan = self._text(f"{port}/hw_counters/lifespan").strip()
        seconds = int(lifespan) / 1000 if lifespan.isascii() and lifespan.isdigit() and len(lifespan) < LENGTH else 0.0
        if self._now() - self._counted.get(port, float("-inf")) < min(seconds, REFUSED_FOR):
            return False
        if len(self._counted) < REFUSALS:
            self._counted[port] = self._now()
        return True

    def _read_netdev(self, name: str) -> None:
        if "/" not in name and name not in self._seen:
            self._seen.add(name)
            for part in ("operstate", "carrier", "carrier_changes"):
                self._text(f"{NETDEVS}/{name}/{part}")

    def _read_rest(self) -> None:
        self._text(NETNS_MODE)
        for gpu in self._names(GPUS):
            if ":" in gpu:
                self._files[f"{GPUS}/{gpu}"] = ""
                self._text(f"bus/pci/devices/{gpu}/numa_node")
        with contextlib.suppress(OSError):
            self._files[ROUTES] = _content(self._routes, ROUTES_LENGTH)

    def _names(self, folder: str) -> list[str]:
        return _entries(f"{self._root}/{folder}")

    def _link(self, path: str) -> str:
        try:
            target = os.readlink(f"{self._root}/{path}")  # noqa: PTH115 - a Path costs more than the call; there are many
        except OSError:
            return ""
        self._files[path] = target
        return target

    def _text(self, path: str, *, counter: bool = False) -> str:
        try:
            text = _content(f"{self._root}/{path}", LENGTH)
        except FileNotFoundError:
            return ""
        except OSError:
            if counter and len(self._refused) < REFUSALS:
                self._refused[path] = self._now() + REFUSED_FOR
            return ""
        self._files[path] = text
        return text


def has_devices(sysfs: Path) -> bool:
    """True when the machine has RDMA devices of any kind. Asks no driver, so that it does not block."""
    return bool(_entries(f"{sysfs}/{DEVICES}"))


def _entries(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries)
    except OSError:
        return []


def _content(path: str, length: int) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, length).decode("utf-8", "replace")
    finally:
        os.close(descriptor)
