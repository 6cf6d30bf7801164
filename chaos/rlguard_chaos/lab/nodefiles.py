"""The files and scripts that make a node: pure text, written by `write`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rlguard_chaos.lab import images, layout
from rlguard_chaos.lab.host import write_whole

KERNEL_SETTINGS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""What a kubelet sets on its machine; a node sees them as set, so that the real machine's stay as they are."""

COVERED = ("/run", "/var/lib")
RUNTIME = "[plugins.'io.containerd.cri.v1.runtime'"


def write(node: str, binaries: Path, *, production_timers: bool) -> None:
    """Write every file of the node's own folder."""
    home = layout.node_home(node)
    for folder in ("log", "var-lib"):
        (home / folder).mkdir(parents=True, exist_ok=True)
    write_whole(home / "containerd.toml", containerd(node, binaries))
    write_whole(home / "cni" / "10-lab.conflist", json.dumps(network_plugin(node)))
    write_whole(home / "kubelet.json", json.dumps(kubelet(node, production_timers=production_timers)))
    write_whole(home / "proxy.json", json.dumps(proxy(node)))
    write_whole(home / "resolv.conf", f"nameserver {layout.NODE_DNS}\n")
    write_whole(home / "hosts", f"127.0.0.1 localhost\n{layout.node_address(node)} {node}\n")
    for path, value in KERNEL_SETTINGS.items():
        write_whole(home / "sysctl" / path, f"{value}\n")


def boot_script(node: str) -> str:
    """What runs first in the node's new namespaces. Paths are those of the machine until the covers are in place.

    `mount -n`: without it libmount leaves a folder of its own in the machine's /run.
    """
    home = layout.node_home(node)
    cover = home / "cover"
    lines = [
        f"umount --no-mtab --recursive --lazy {layout.NAMESPACES}",  # else this node would keep the others' alive
        f"hostname {node}",
        f"mkdir -p {cover}/run {home}/var-lib/rlguard-lab",
        f"mount -n -t tmpfs -o mode=755 tmpfs {cover}/run",
        f"mkdir -p {cover}/run/lock {cover}{layout.FAKES} {cover}{layout.SHARED}",
        f"mount -n --bind {home}/fakes {cover}{layout.FAKES}",
        f"mount -n --bind {layout.SHARED_FOLDER} {cover}{layout.SHARED}",
        f"mount -n --bind {layout.STATE} {home}/var-lib/rlguard-lab",
    ]
    homes = {"/run": f"{cover}/run", "/var/lib": f"{home}/var-lib"}
    for folder in map(str, images.binds()):
        hidden = next((top for top in COVERED if folder.startswith(f"{top}/")), None)
        if hidden:
            shown = homes[hidden] + folder.removeprefix(hidden)
            lines += [f"mkdir -p {shown}", f"mount -n --rbind {folder} {shown}"]
    settings = [f"mount -n --bind {home}/sysctl/{path} /proc/sys/{path}" for path in KERNEL_SETTINGS]
    lines += [
        f"mount -n --bind {home}/log /var/log",
        f"mount -n --bind {home}/hosts /etc/hosts",
        f"mount -n --bind {home}/fakes/boot_id /proc/sys/kernel/random/boot_id",
        *settings,
        "mount -n -t tmpfs -o mode=1777 tmpfs /dev/shm",
        *(f"mount -n --rbind {source} {target}" for target, source in homes.items()),
        "mount -n --make-rshared /",  # pods see mounts made later, as on any node
        "echo 1 > /proc/sys/net/ipv4/ip_forward",
    ]
    return "\n".join(lines)


def network(node: str) -> str:
    """Commands for `ip -batch` inside the node: the bridge its pods hang on, with the node's address."""
    index = layout.node_index(node)
    metadata = [f"address add {address}/32 dev lo" for address in layout.METADATA_ADDRESSES]
    lines = [
        "link set lo up",
        *metadata,
        f"link add cni0 address 02:77:{index + 1:02x}:00:00:01 type bridge",
        "link set eth0 master cni0 up",
        f"address add {layout.node_address(node)}/16 dev cni0",
        "link set cni0 up",
        f"route add default via {layout.API_ADDRESS}",
    ]
    return "\n".join(lines) + "\n"


def network_plugin(node: str) -> dict[str, Any]:
    """CNI: pods get addresses of the node's /24; their gateway is the node, so that Services pass its rules."""
    part = f"10.77.{layout.node_index(node) + 1}"
    ranges = {"subnet": "10.77.0.0/16", "rangeStart": f"{part}.10", "rangeEnd": f"{part}.250", "gateway": f"{part}.1"}
    addresses = {
        "type": "host-local",
        "dataDir": "/run/cni",
        "ranges": [[ranges]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": False, "ipMasq": False, "ipam": addresses}
    return {"cniVersion": "1.0.0", "name": "lab", "plugins": [bridge]}


def containerd(node: str, binaries: Path) -> str:
    """Configuration of the node's containerd."""
    home = layout.node_home(node)
    return f"""version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.internal.v1.tracing"]
[grpc]
  address = "{home}/containerd.sock"
[ttrpc]
  address = "/run/containerd/containerd.sock.ttrpc"
[plugins.'io.containerd.internal.v1.opt']
  path = "/var/lib/containerd-opt"
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "{layout.PAUSE_IMAGE}"
{RUNTIME}]
  restrict_oom_score_adj = true
  disable_apparmor = true
  netns_mounts_under_state_dir = true
  {RUNTIME}.containerd]
    default_runtime_name = "runc"
    {RUNTIME}.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      base_runtime_spec = "{layout.BASE_SPEC}"
  {RUNTIME}.cni]
    bin_dirs = ["{binaries}"]
    conf_dir = "{home}/cni"
"""


def kubelet(node: str, *, production_timers: bool) -> dict[str, Any]:
    """Configuration of the node's kubelet."""
    home = layout.node_home(node)
    fast = {"nodeStatusUpdateFrequency": "2s", "nodeLeaseDurationSeconds": 10, "syncFrequency": "5s"}
    webhook = {"enabled": True, "cacheTTL": "10s"}
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "x509": {"clientCAFile": f"{layout.PKI}/ca.crt"},
            "webhook": webhook,
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{layout.CGROUP}/{node}",  # by this the lab finds the containers' processes
        "cgroupsPerQOS": True,
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        "failCgroupV1": False,
        "clusterDNS": [layout.CLUSTER_DNS],
        "clusterDomain": "cluster.local",
        "resolvConf": f"{home}/resolv.conf",
        "containerRuntimeEndpoint": f"unix://{home}/containerd.sock",
        "tlsCertFile": f"{layout.PKI}/{node}.crt",
        "tlsPrivateKeyFile": f"{layout.PKI}/{node}.key",
        "evictionHard": {"nodefs.available": "0%", "imagefs.available": "0%", "memory.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        "localStorageCapacityIsolation": False,
        "volumePluginDir": "/var/lib/kubelet/volumeplugins",
        **({} if production_timers else fast),
    }


def kubelet_command(node: str, binaries: Path) -> list[str]:
    """How the node's kubelet is started."""
    return [
        f"{binaries}/kubelet",
        f"--config={layout.node_home(node)}/kubelet.json",
        f"--kubeconfig={layout.STATE}/{node}.kubeconfig",
        f"--hostname-override={node}",
        f"--node-ip={layout.node_address(node)}",
    ]


def edge_command(node: str) -> list[str]:
    """How the node's edge is started."""
    return [sys.executable, "-m", "rlguard_chaos.lab.edge", str(layout.node_home(node)), node]


def proxy(node: str) -> dict[str, Any]:
    """Configuration of the node's kube-proxy.

    Everything is masqueraded: without it a reply takes the flat network past the rules and is dropped.
    """
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "hostnameOverride": node,
        "clientConnection": {"kubeconfig": f"{layout.STATE}/proxy.kubeconfig"},
        "clusterCIDR": "10.77.0.0/16",
        "iptables": {"masqueradeAll": True},
        "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
    }
