"""A sysfs tree with RDMA ports as a TKE node has them, and what can break in it. For experiments and tests.

Bonds of two links with RoCE, the IPv4 address at GID index 3 (`mlx5_bond_0` on `bond0`, made of `eth1` and `eth2`), a
GPU beside each, and a management card, `eth0`, that has the default route and no RDMA. Every function takes the folder
that stands for `/sys`; a node without such a tree is a machine without RDMA.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rlguard.errors import BadConfigError
from rlguard_chaos.lab import layout
from rlguard_chaos.lab.host import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ADDRESS_INDEX = 3
RATES = {100: "100 Gb/sec (1X NDR)", 200: "200 Gb/sec (2X NDR)", 400: "400 Gb/sec (4X NDR)"}
EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"
COUNTERS = ("counters/symbol_error", "counters/link_downed", "counters/port_rcv_errors")
HARDWARE = ("hw_counters/out_of_sequence", "hw_counters/local_ack_timeout_err", "hw_counters/rnr_nak_retry_err")
ROUTES = (
    "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
    "eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
)


def sysfs(node: str) -> Path:
    """The folder that stands for a lab node's `/sys`."""
    return layout.node_fakes(node) / "sys"


def lay_out(root: Path, bonds: int = 8) -> None:
    """Make a healthy tree with so many bonds; what is there is made healthy again."""
    for path, text in _files(bonds):
        write_whole(root / path, f"{text}\n")
    for number in range(bonds):
        _link(root / _device(number) / "device", root / f"devices/{_pci(number)}")
        for slave in _slaves(number):
            _link(root / f"class/net/{slave}/master", root / f"class/net/bond{number}")
    write_whole(root.parent / "proc/net/route", ROUTES)


def count(root: Path) -> int:
    """How many ports the tree has; 0: there is none."""
    devices = root / "class/infiniband"
    return len(list(devices.iterdir())) if devices.is_dir() else 0


def boot(root: Path) -> None:
    """What a boot does: all ports come up as they were laid out. A node without ports stays so."""
    if count(root):
        lay_out(root, count(root))


def set_port(root: Path, number: int, *, up: bool) -> None:
    """Take both links of a bond away, or give them back."""
    _must_be_there(root, number)
    for link in _slaves(number):
        set_link(root, link, up=up)
    set_link(root, f"bond{number}", up=up)
    _write(root, number, "state", "4: ACTIVE" if up else "1: DOWN")
    _write(root, number, "phys_state", "5: LinkUp" if up else "3: Disabled")


def set_link(root: Path, name: str, *, up: bool) -> None:
    """Take the carrier of one network device away, or give it back; the kernel counts each change."""
    folder = root / "class/net" / name
    if (folder / "carrier").read_text().strip() != str(int(up)):
        changes = int((folder / "carrier_changes").read_text()) + 1
        write_whole(folder / "carrier_changes", f"{changes}\n")
    write_whole(folder / "operstate", "up\n" if up else "down\n")
    write_whole(folder / "carrier", f"{int(up)}\n")


def flap(root: Path, number: int) -> None:
    """One link of a bond goes down and comes up, faster than anybody looks."""
    _must_be_there(root, number)
    link = _slaves(number)[0]
    set_link(root, link, up=False)
    set_link(root, link, up=True)


def lose_address(root: Path, number: int) -> None:
    """Take the IPv4 address off a bond: its port stays active."""
    _must_be_there(root, number)
    for index in (ADDRESS_INDEX - 1, ADDRESS_INDEX):
        _write(root, number, f"gids/{index}", EMPTY)


def set_rate(root: Path, number: int, gigabits: int) -> None:
    """Train a port at another rate: one of RATES."""
    _must_be_there(root, number)
    _write(root, number, "rate", RATES[gigabits])


def bump(root: Path, number: int, counter: str, count: int) -> None:
    """Let a counter (`hw_counters/out_of_sequence`) rise."""
    _must_be_there(root, number)
    _write(root, number, counter, str(int((root / _port(number) / counter).read_text()) + count))


def _must_be_there(root: Path, number: int) -> None:
    if not (root / _port(number)).exists():
        raise BadConfigError(f"{root} has no RDMA port {number}; lay_out makes some")


def _files(bonds: int) -> Iterator[tuple[str, str]]:
    yield "module/ib_core/parameters/netns_mode", "Y"
    yield from _network_device("eth0")
    for number in range(bonds):
        numa = str(number * 2 // bonds)
        yield f"devices/{_pci(number)}/numa_node", numa
        yield f"bus/pci/devices/{_gpu(number)}/numa_node", numa
        yield f"bus/pci/drivers/nvidia/{_gpu(number)}", ""
        yield from ((f"{_port(number)}/{path}", text) for path, text in _of_port(number))
        yield f"class/net/bond{number}/bonding/slaves", " ".join(_slaves(number))
        for name in (f"bond{number}", *_slaves(number)):
            yield from _network_device(name)


def _of_port(number: int) -> Iterator[tuple[str, str]]:
    yield from (("state", "4: ACTIVE"), ("phys_state", "5: LinkUp"), ("rate", RATES[400]), ("link_layer", "Ethernet"))
    local = f"fe80:0000:0000:0000:0000:00ff:fe00:{number:04x}"
    address = f"0000:0000:0000:0000:0000:ffff:1e0a:{number:02x}05"
    for index, gid in enumerate((local, local, address, address, EMPTY)):
        yield f"gids/{index}", gid
        if gid != EMPTY:
            yield f"gid_attrs/types/{index}", "RoCE v2" if index % 2 else "IB/RoCE v1"
            yield f"gid_attrs/ndevs/{index}", f"bond{number}"
    yield "hw_counters/lifespan", "12"
    yield from ((counter, "0") for counter in (*COUNTERS, *HARDWARE))


def _network_device(name: str) -> Iterator[tuple[str, str]]:
    yield from (
        (f"class/net/{name}/{path}", text)
        for path, text in (("operstate", "up"), ("carrier", "1"), ("carrier_changes", "2"))
    )


def _write(root: Path, number: int, path: str, text: str) -> None:
    write_whole(root / _port(number) / path, f"{text}\n")


def _link(link: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(os.path.relpath(target, link.parent))


def _device(number: int) -> str:
    return f"class/infiniband/mlx5_bond_{number}"


def _port(number: int) -> str:
    return f"{_device(number)}/ports/1"


def _pci(number: int) -> str:
    return f"0000:{0x10 + number:02x}:00.0"


def _gpu(number: int) -> str:
    return f"0000:{0x40 + number:02x}:00.0"


def _slaves(number: int) -> tuple[str, str]:
    return f"eth{2 * number + 1}", f"eth{2 * number + 2}"
