"""The lab: a real multi-node Kubernetes on one Linux machine.

    from rlguard_chaos.lab import Lab, up, down, fakes

    lab = up(3)                                  # idempotent; mends a running lab
    lab.kubeconfig, lab.shared, lab.binaries     # admin kubeconfig, CFS Turbo's folder, folder of kubectl and helm
    node = lab.node("node1")
    node.kill(); node.start()                    # also cut, heal, freeze, thaw; node.state
    fakes.write_kernel_line("node1", "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.")
    fakes.set_spot_notice("node1", 120)
    fakes.change_gpus("node1", {"device.3.lost": 1})
    down()

Inside a node, `/run/rlguard-lab` holds its fakes: `kmsg.sock` (protocol: edge.py), `boot_id`, `sys/`, `nvml/`, `name`.
`Lab()` is a handle on the running lab.
"""

from __future__ import annotations

from rlguard_chaos.lab import fakes
from rlguard_chaos.lab.host import LabError
from rlguard_chaos.lab.lab import Lab, down, is_up, up
from rlguard_chaos.lab.node import Node

__all__ = ["Lab", "LabError", "Node", "down", "fakes", "is_up", "up"]
