"""What a node has shown of its RDMA ports on this boot: what was once there is what is expected. Pure.

It outlives the agent's process, and no boot.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

from rlguard.health.rdma.snapshot import Gid, Port

SLAVE_LIMIT: Final = 8


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a person has set; None: learned.

    `gid_index`: where jobs look for the RoCE v2 IPv4 address (3 on TKE). `ports`: how many are to be active, at
    `rate` Gb/s or more.
    """

    gid_index: int | None = None
    ports: int | None = None
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class Learned:
    """One port that was active on this boot: network device, best rate (Gb/s), address, the bond's links that worked.

    `standing`: codes of the faults that stood when this was kept.
    """

    key: str
    name: str
    netdev: str = ""
    rate: float = 0.0
    gid: str = ""
    gid_index: int = -1
    slaves: tuple[str, ...] = ()
    standing: tuple[str, ...] = ()

    def seeing(self, port: Port, expected: Expectation) -> Learned:
        """With what an active port shows now. An address once learned is kept until `relearned`."""
        gid = None if self.gid else address_of(port, expected.gid_index)
        lit = {slave.name for slave in port.slaves if slave.carrier}
        return dataclasses.replace(
            self,
            name=port.name,
            netdev=port.netdev.name if port.netdev else self.netdev,
            rate=max(self.rate, port.rate or 0.0),
            gid=gid.gid if gid else self.gid,
            gid_index=gid.index if gid else self.gid_index,
            slaves=tuple(sorted(lit.union(self.slaves)))[:SLAVE_LIMIT],
        )

    def relearned(self, port: Port, expected: Expectation) -> Learned:
        """With the address that the port has now."""
        return dataclasses.replace(self, gid="", gid_index=-1).seeing(port, expected)


@dataclass(frozen=True, slots=True)
class Memory:
    """What must outlive the agent's process. `management`: keys of the ports that carry the machine's own address."""

    boot_id: str
    management: tuple[str, ...]
    ports: tuple[Learned, ...]


def addresses(port: Port) -> tuple[Gid, ...]:
    """The port's own RoCE v2 IPv4 addresses: those of pods' interfaces on top of it come and go in the same table."""
    own = port.netdev.name if port.netdev else ""
    return tuple(gid for gid in port.gids if gid.usable and (not own or gid.netdev in ("", own)))


def address_of(port: Port, index: int | None) -> Gid | None:
    """The address at the index, or without one the first; None if there is none."""
    return next((gid for gid in addresses(port) if index is None or gid.index == index), None)


def dotted(gid: str) -> str:
    """An IPv4 GID as people write the address; anything else as it is."""
    tail = gid.rsplit("ffff:", 1)[-1].replace(":", "")
    try:
        return ".".join(str(byte) for byte in bytes.fromhex(tail)) if len(tail) == 8 else gid  # noqa: PLR2004 - IPv4
    except ValueError:
        return gid
