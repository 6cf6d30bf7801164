"""The lab's tree of RDMA ports, and the faults of the vocabulary that change it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlguard.errors import BadConfigError
from rlguard.health.rdma.snapshot import Snapshot, read_snapshot
from rlguard.io.rdma import Reader, has_devices
from rlguard_chaos.experiment import Fault, Injection, parse
from rlguard_chaos.faults import NODE_FAULTS, Hands, Job
from rlguard_chaos.kubectl import Kubectl
from rlguard_chaos.lab import fakes, layout, ports


class FakeLab:
    """A lab whose nodes need no hands."""

    def node(self, name: str) -> str:
        """Nothing is done with it."""
        return name


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "STATE", tmp_path)


def look() -> Snapshot:
    return read_snapshot(Reader(ports.sysfs("node0")).read(ports.COUNTERS))


def inject(fault: Fault, port: int = 0) -> str:
    lab: Any = FakeLab()
    hands = Hands(Kubectl("kubectl", "none"), Job("job"), lab)
    return hands._node_fault(Injection(fault, "leader", port=port), "node0")


def test_a_node_has_no_rdma_until_it_is_laid_out() -> None:
    fakes.prepare("node0")
    assert not has_devices(ports.sysfs("node0"))
    ports.boot(ports.sysfs("node0"))
    assert ports.count(ports.sysfs("node0")) == 0


def test_a_port_that_is_to_be_up_makes_the_tree_and_one_down_needs_it() -> None:
    with pytest.raises(BadConfigError, match="no RDMA port 2"):
        inject(Fault.RDMA_PORT_DOWN, 2)
    assert inject(Fault.RDMA_PORT_UP) == "node0: RDMA port 0 is up"
    assert ports.count(ports.sysfs("node0")) == 8
    assert inject(Fault.RDMA_PORT_DOWN, 2) == "node0: RDMA port 2 is down"
    assert [port.device for port in look().ports if not port.up] == ["mlx5_bond_2"]
    inject(Fault.RDMA_PORT_UP, 2)
    assert all(port.up for port in look().ports)


def test_a_lost_address_leaves_the_port_active_and_a_boot_mends_all() -> None:
    ports.lay_out(ports.sysfs("node0"), 2)
    inject(Fault.RDMA_GID_LOST, 1)
    one = look().ports[1]
    assert one.up
    assert not any(gid.usable for gid in one.gids)
    ports.boot(ports.sysfs("node0"))
    assert [any(gid.usable for gid in port.gids) for port in look().ports] == [True, True]


def test_an_experiment_names_the_port() -> None:
    step = {"inject": [{"fault": "rdma-port-down", "target": "worker", "port": 3}]}
    parsed = parse({"name": "n", "title": "t", "steps": [step]}, "x.yaml")
    (injection,) = parsed.steps[0].inject
    assert (injection.fault, injection.port) == (Fault.RDMA_PORT_DOWN, 3)
    assert injection.fault in NODE_FAULTS
    with pytest.raises(BadConfigError, match="port"):
        parse({"name": "n", "title": "t", "steps": [{"inject": [{**step["inject"][0], "port": -1}]}]}, "x.yaml")
