"""One node: its own network, mount, host-name and IPC namespaces, containerd, kubelet, kube-proxy and edge.

The node's /run, /var/lib, /var/log and /dev/shm are its own, so nothing of it shows on the machine and all of it is
gone with its namespaces. A start is a boot: new namespaces, a new boot id; containerd's and kubelet's folders stay.
"""

from __future__ import annotations

import shutil
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from rlguard.errors import BadConfigError
from rlguard_chaos.lab import api, fakes, layout, nodefiles, ports, processes
from rlguard_chaos.lab.host import LabError, attempt, call, link_exists
from rlguard_chaos.lab.processes import Program

NAMESPACE_KINDS = ("net", "mnt", "uts", "ipc")
EXTENDED_RESOURCES = {"nvidia.com/gpu": "8", "rdma/rdma_shared_device_a": "1"}
CONTAINERD_LIMIT_S = 20.0
READY_LIMIT_S = 60.0
PROGRAMS = ("edge", "containerd", "kubelet", "kube-proxy")


@dataclass(frozen=True)
class Node:
    """A node of the lab, running or not."""

    name: str
    binaries: Path
    production_timers: bool = False

    @property
    def home(self) -> Path:
        """Folder of what the node keeps across boots."""
        return layout.node_home(self.name)

    @property
    def state(self) -> str:
        """One of running, frozen, cut, damaged (some program died), stopped."""
        alive = processes.running()
        up = [part for part in PROGRAMS if f"{self.name}-{part}" in alive]
        if not up:
            return "stopped"
        if len(up) < len(PROGRAMS):
            return "damaged"
        if processes.frozen(self.name):
            return "frozen"
        return "running" if self._connected() else "cut"

    def boot(self) -> None:
        """Power it on, up to where its programs start; does not wait for Ready.

        Raises LabError when a part of it cannot be started.
        """
        self.kill()
        fakes.prepare(self.name)
        fakes.set_boot_id(self.name)
        ports.boot(ports.sysfs(self.name))
        nodefiles.write(self.name, self.binaries, production_timers=self.production_timers)
        processes.create_groups(self.name)
        self._create_namespaces()
        self._connect()
        self._start("edge", nodefiles.edge_command(self.name))
        self._start("containerd", [f"{self.binaries}/containerd", f"--config={self.home}/containerd.toml"])
        self._import_images()

    def join(self) -> None:
        """Start what talks to the API server."""
        self._start("kubelet", nodefiles.kubelet_command(self.name, self.binaries))
        self._start("kube-proxy", [f"{self.binaries}/kube-proxy", f"--config={self.home}/proxy.json"])

    def wait_ready(self) -> None:
        """Wait until this boot is Ready, and advertise its devices: a kubelet that registers sets them to zero.

        Raises LabError when it does not get there in time.
        """
        api.wait_for(f"{self.name} was not Ready", f"{self.name}-kubelet", READY_LIMIT_S, self._ready)
        api.patch_node_status(self.name, {"capacity": EXTENDED_RESOURCES, "allocatable": EXTENDED_RESOURCES})

    def start(self, *, wait: bool = True) -> None:
        """Boot a node that is down; a running one is left as it is.

        Raises LabError when it does not become Ready.
        """
        if self.state in {"stopped", "damaged"}:
            self.boot()
            self.join()
        if wait:
            self.wait_ready()

    def kill(self) -> None:
        """Pull the plug: the network falls silent, then everything on the node dies at one moment.

        Silence first: a dead machine sends no FIN for the connections it had.
        """
        if link_exists(layout.veth(self.name)):
            self.cut()
        processes.kill(self.name)
        self._remove_namespaces()
        processes.remove_groups(self.name)

    def cut(self) -> None:
        """Pull the network cable; everything on the node goes on."""
        self._cable("down")

    def heal(self) -> None:
        """Plug the network cable in again."""
        self._cable("up")

    def freeze(self) -> None:
        """Stop every process of the node at one moment; its kernel still answers on the network.

        Raises BadConfigError when it does not run.
        """
        if self.state == "stopped":
            raise BadConfigError(f"{self.name} does not run")
        processes.freeze(self.name)

    def thaw(self) -> None:
        """Let everything on the node go on."""
        processes.thaw(self.name)

    def recover(self) -> None:
        """Bring the node back to running from whatever an experiment left."""
        if self.state == "frozen":
            self.thaw()
        if self.state == "cut":
            self.heal()
        self.start()

    def _start(self, part: str, command: list[str]) -> None:
        processes.start(Program(f"{self.name}-{part}", self.name, command))

    def _ready(self) -> bool:
        node = api.nodes().get(self.name)
        if not node:
            return False
        booted = node["status"].get("nodeInfo", {}).get("bootID") == self._boot_id()
        return booted and api.is_ready(node)

    def _boot_id(self) -> str:
        return (layout.node_fakes(self.name) / "boot_id").read_text().strip()

    def _connected(self) -> bool:
        flags = Path("/sys/class/net", layout.veth(self.name), "flags")
        return flags.exists() and bool(int(flags.read_text(), 16) & 1)

    def _cable(self, state: str) -> None:
        if not link_exists(layout.veth(self.name)):
            raise BadConfigError(f"{self.name} does not run")
        call("ip", "link", "set", layout.veth(self.name), state)

    def _create_namespaces(self) -> None:
        private_folder(layout.NAMESPACES)
        files = {kind: layout.NAMESPACES / f"{self.name}.{kind}" for kind in NAMESPACE_KINDS}
        for file in files.values():
            file.touch()
        flags = [f"--{'mount' if kind == 'mnt' else kind}={file}" for kind, file in files.items()]
        script = nodefiles.boot_script(self.name)
        call("unshare", *flags, "--propagation", "private", "/bin/sh", "-e", "-c", script)

    def _connect(self) -> None:
        veth = layout.veth(self.name)
        namespace = f"{layout.NAMESPACES}/{self.name}.net"
        call("ip", "link", "add", veth, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        processes.inside(self.name, "ip", "-batch", "-", stdin=nodefiles.network(self.name))
        call("ip", "link", "set", veth, "master", layout.BRIDGE, "up")

    def _import_images(self) -> None:
        address = self.home / "containerd.sock"
        deadline = time.monotonic() + CONTAINERD_LIMIT_S
        while not _answers(address):
            if time.monotonic() > deadline:
                raise LabError(f"containerd of {self.name} did not start; see {layout.LOGS}/{self.name}-containerd.log")
            time.sleep(0.05)
        call(self.binaries / "ctr", "-a", address, "-n", "k8s.io", "images", "import", layout.IMAGE_ARCHIVE)

    def _remove_namespaces(self) -> None:
        attempt("ip", "link", "delete", layout.veth(self.name))
        for kind in NAMESPACE_KINDS:
            file = layout.NAMESPACES / f"{self.name}.{kind}"
            if file.exists():
                attempt("umount", "--no-mtab", "--lazy", file)
                file.unlink()
        (self.home / "containerd.sock").unlink(missing_ok=True)
        shutil.rmtree(self.home / "cover", ignore_errors=True)


def private_folder(folder: Path) -> None:
    """Make the folder a private mount, as it must be to hold mount namespaces."""
    folder.mkdir(parents=True, exist_ok=True)
    if not attempt("mountpoint", "-q", folder):
        call("mount", "--no-mtab", "--bind", folder, folder)
        call("mount", "--no-mtab", "--make-private", folder)


def _answers(address: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as line:
        return line.connect_ex(str(address)) == 0
