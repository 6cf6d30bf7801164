"""One look at the machine's RDMA ports and their network devices, out of the texts of sysfs. Pure.

The texts are a flat mapping: path relative to `/sys` -> content of the file, or target of the link; `proc/net/route`
is kept under that name. What could not be read is not in it, and becomes None here: not known.

The forms are those of mlx5 and irdma drivers: `4: ACTIVE`, `5: LinkUp`, `400 Gb/sec (4X NDR)`, a counter as a decimal
number or `N/A (no PMA)` (node_exporter #966), an empty slot of the GID table as zeros.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

ACTIVE: Final = frozenset({4, 5})
"""Port states that carry traffic: ACTIVE, ACTIVE_DEFER."""
WAITING: Final = frozenset({2, 3})
"""INIT and ARMED: the link is there, and nobody has configured the subnet."""
INFINIBAND: Final = "InfiniBand"
PORT_LIMIT: Final = 256
"""Ports looked at on one machine."""
DEVICES: Final = "class/infiniband/"
NETDEVS: Final = "class/net/"
ROUTES: Final = "proc/net/route"
NETNS_MODE: Final = "module/ib_core/parameters/netns_mode"
GPUS: Final = "bus/pci/drivers/nvidia/"
PCI_DEVICES: Final = "bus/pci/devices/"
LIFESPAN: Final = "hw_counters/lifespan"
"""No counter: for how many milliseconds the driver gives the same answer."""

_LARGEST: Final = 2**64 - 1
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
# 4: ACTIVE        5: LinkUp
_STATE = re.compile(r"([0-9]{1,2})(?::|$)")
# 400 Gb/sec (4X NDR)        2.5 Gb/sec (1X SDR)
_RATE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) Gb/sec")
# fe80:0000:0000:0000:0e42:a1ff:fe5d:1b2c        0000:0000:0000:0000:0000:ffff:1e0a:0001
_GID = re.compile(r"(?:[0-9a-f]{4}:){7}[0-9a-f]{4}")
_GID_SLOT = re.compile(r"gids/([0-9]{1,4})")
_IPV4: Final = "0000:0000:0000:0000:0000:ffff:"
_EMPTY: Final = "0000:0000:0000:0000:0000:0000:0000:0000"


@dataclass(frozen=True, slots=True)
class Gid:
    """One entry of a GID table: `kind` is `RoCE v2` or `IB/RoCE v1`, `netdev` the device whose address it is."""

    index: int
    gid: str
    kind: str
    netdev: str

    @property
    def usable(self) -> bool:
        """True for what RoCE jobs use: version 2, of an IPv4 address."""
        return self.kind == "RoCE v2" and self.gid.startswith(_IPV4)


@dataclass(frozen=True, slots=True)
class Netdev:
    """A network device. `carrier` None: not known, or the device is not brought up."""

    name: str
    operstate: str
    carrier: bool | None
    carrier_changes: int | None

    @property
    def lost(self) -> bool:
        """True when it has no link."""
        return self.carrier is False or self.operstate in ("down", "lowerlayerdown")


@dataclass(frozen=True, slots=True)
class Port:
    """One port. `pci` is empty for a device made of software; `virtual` tells a virtual function.

    `state` and `phys_state` are the kernel's numbers, `rate` Gb/s, `numa` the NUMA node. `netdev` is the bond where
    the port belongs to one, `slaves` the bond's links. `counters` by folder and name (`hw_counters/out_of_sequence`);
    None for one that is no number now; None for all when they were not read at this look.
    """

    device: str
    number: int
    pci: str
    virtual: bool
    numa: int | None
    link_layer: str
    state: int | None
    phys_state: int | None
    rate: float | None
    netdev: Netdev | None
    slaves: tuple[Netdev, ...]
    gids: tuple[Gid, ...]
    counters: Mapping[str, int | None] | None

    @property
    def key(self) -> str:
        """What names the port in faults: names of devices change, PCI addresses do not."""
        place = self.pci or self.device
        return place if self.number == 1 else f"{place}/{self.number}"

    @property
    def name(self) -> str:
        """What people call it."""
        return f"{self.device} port {self.number}" + (f" ({self.netdev.name})" if self.netdev else "")

    @property
    def physical(self) -> bool:
        """True for a function of a card; software and virtual functions break with what carries them."""
        return bool(self.pci) and not self.virtual

    @property
    def up(self) -> bool | None:
        """True when it carries traffic, None when not known.

        Over Ethernet the network device counts too: EFA says ACTIVE whatever happens, and a bond's RDMA device stays
        ACTIVE while a link of it lives. Over InfiniBand it may be unused, and down for that reason.
        """
        if self.state is None:
            return None
        return self.state in ACTIVE and (self.link_layer == INFINIBAND or not self._links_lost())

    def _links_lost(self) -> bool:
        below = bool(self.slaves) and all(slave.lost for slave in self.slaves)
        return below or (self.netdev is not None and self.netdev.lost)


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU's place: PCI address and NUMA node, None if not known."""

    pci: str
    numa: int | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All ports, sorted by key. `default_route`: the network device of the machine's own address, empty if none.

    `shared`: True when every network namespace sees every RDMA device, False when a device can be given to a pod and
    then vanishes from here, None if not known.
    """

    ports: tuple[Port, ...]
    default_route: str = ""
    shared: bool | None = None
    gpus: tuple[Gpu, ...] = ()

    def near(self, port: Port) -> tuple[str, ...]:
        """PCI addresses of the GPUs on the port's NUMA node; empty when that is not known."""
        return tuple(gpu.pci for gpu in self.gpus if port.numa is not None and gpu.numa == port.numa)


def read_snapshot(files: Mapping[str, str]) -> Snapshot:
    """The snapshot in the texts of sysfs. Never raises: what has no known form is not known."""
    devices: dict[str, dict[str, str]] = defaultdict(dict)
    for path, text in files.items():
        if path.startswith(DEVICES):
            name, _, rest = path[len(DEVICES) :].partition("/")
            devices[name][rest] = text
    ports = [port for name, own in devices.items() for port in _device(name, own, files)]
    ports.sort(key=lambda port: (port.key, port.device))
    mode = files.get(NETNS_MODE, "").strip()
    return Snapshot(
        tuple({port.key: port for port in ports[:PORT_LIMIT]}.values()),
        _default_route(files.get(ROUTES, "")),
        {"Y": True, "N": False}.get(mode),
        _gpus(files),
    )


def _device(name: str, own: Mapping[str, str], files: Mapping[str, str]) -> list[Port]:
    pci = own.get("device", "").rsplit("/", 1)[-1].strip()
    texts: dict[int, dict[str, str]] = defaultdict(dict)
    for path, text in own.items():
        if path.startswith("ports/"):
            number, _, rest = path[len("ports/") :].partition("/")
            if number.isascii() and number.isdigit() and len(number) <= 3:  # noqa: PLR2004 - a port is one byte
                texts[int(number)][rest] = text
    nets = [path[len("device/net/") :] for path in own if path.startswith("device/net/")]
    place = (name, pci if _PCI.fullmatch(pci) else "", "device/physfn" in own, _numa(own.get("device/numa_node", "")))
    return [_port(place, number, of_port, nets, files) for number, of_port in texts.items()]


def _port(
    place: tuple[str, str, bool, int | None],
    number: int,
    own: Mapping[str, str],
    nets: list[str],
    files: Mapping[str, str],
) -> Port:
    name, pci, virtual, numa = place
    gids = _gids(own)
    netdev = next((gid.netdev for gid in gids if gid.netdev), nets[0] if len(nets) == 1 else "")
    netdev = _bond_of(netdev, files)
    return Port(
        name,
        number,
        pci,
        virtual,
        numa,
        own.get("link_layer", "").strip(),
        _leading(own.get("state", "")),
        _leading(own.get("phys_state", "")),
        _rate(own.get("rate", "")),
        _netdev(netdev, files) if netdev else None,
        tuple(_netdev(slave, files) for slave in _slaves(netdev, files)),
        gids,
        _counters(own),
    )


def _gids(own: Mapping[str, str]) -> tuple[Gid, ...]:
    found = []
    for path, text in own.items():
        slot, gid = _GID_SLOT.fullmatch(path), text.strip().lower()
        if slot and _GID.fullmatch(gid) and gid != _EMPTY:
            kind, netdev = (own.get(f"gid_attrs/{part}/{slot[1]}", "").strip() for part in ("types", "ndevs"))
            found.append(Gid(int(slot[1]), gid, kind, netdev))
    return tuple(sorted(found, key=lambda gid: gid.index))


def _counters(own: Mapping[str, str]) -> Mapping[str, int | None] | None:
    found = {path: _count(text) for path, text in own.items() if path.startswith(("counters/", "hw_counters/"))}
    found.pop(LIFESPAN, None)
    return found or None


def _bond_of(netdev: str, files: Mapping[str, str]) -> str:
    master = files.get(f"{NETDEVS}{netdev}/master", "").rsplit("/", 1)[-1].strip()
    return master if master and f"{NETDEVS}{master}/bonding/slaves" in files else netdev


def _slaves(netdev: str, files: Mapping[str, str]) -> Iterable[str]:
    return sorted(set(files.get(f"{NETDEVS}{netdev}/bonding/slaves", "").split()))[:8]


def _netdev(name: str, files: Mapping[str, str]) -> Netdev:
    own = f"{NETDEVS}{name}/"
    carrier = {"1": True, "0": False}.get(files.get(own + "carrier", "").strip())
    return Netdev(
        name, files.get(own + "operstate", "").strip(), carrier, _count(files.get(own + "carrier_changes", ""))
    )


def _gpus(files: Mapping[str, str]) -> tuple[Gpu, ...]:
    places = sorted(path[len(GPUS) :] for path in files if path.startswith(GPUS))
    known = [place for place in places if _PCI.fullmatch(place)]
    return tuple(Gpu(place, _numa(files.get(f"{PCI_DEVICES}{place}/numa_node", ""))) for place in known)


def _default_route(table: str) -> str:
    """The device of the default route with the lowest metric: columns Iface, Destination, ..., Metric, Mask."""
    routes = []
    for line in table.splitlines()[1:]:
        columns = line.split()
        if len(columns) >= 8 and columns[1] == columns[7] == "00000000":  # noqa: PLR2004 - Mask is the eighth
            routes.append((_count(columns[6]) or 0, columns[0]))
    return min(routes, default=(0, ""))[1]


def _leading(text: str) -> int | None:
    found = _STATE.match(text.strip())
    return int(found.group(1)) if found else None


def _rate(text: str) -> float | None:
    found = _RATE.match(text.strip())
    return float(found.group(1)) if found else None


def _count(text: str) -> int | None:
    """A number from 0 to 64 bits; what a driver says instead (`N/A (no PMA)`, a negative number) is not known."""
    text = text.strip()
    known = text.isascii() and text.isdigit() and len(text) <= 20  # noqa: PLR2004 - digits of 64 bits
    return int(text) if known and int(text) <= _LARGEST else None


def _numa(text: str) -> int | None:
    node = _count(text)  # -1: the machine has no NUMA nodes, or the firmware does not say
    return node if node is not None and node < 1024 else None  # noqa: PLR2004 - the kernel's own limit
