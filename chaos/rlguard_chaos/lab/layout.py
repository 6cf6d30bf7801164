"""Where everything of the lab lies, and the names by which its leftovers are found again."""

from __future__ import annotations

import re
import sys
from os import environ
from pathlib import Path

from rlguard.errors import BadConfigError

STATE = Path("/var/lib/rlguard-lab")
"""The one state folder; there is one lab per machine. Inside a node the same path shows the same folder."""

BRIDGE = "rlg0"
VETH = "rlgv"
CGROUP = "rlguard-lab"
MARKER = "RLGUARD_LAB_PROGRAM"
"""Environment variable of every process the lab starts, beside its cgroup."""

API_ADDRESS = "10.77.0.1"
API_URL = f"https://{API_ADDRESS}:443"
NODE_DNS = "10.77.0.53"
CLUSTER_DNS = "10.78.0.10"
SERVICE_RANGE = "10.78.0.0/24"
METADATA_ADDRESSES = ("169.254.0.23", "169.254.169.254")
FAKES = "/run/rlguard-lab"
"""Where a node, and a DaemonSet that mounts it, finds the node's fakes."""
SHARED = "/run/cfs-turbo"
"""Where a node has the shared folder mounted."""

ETCD_PORT = 12379
ETCD_PEER_PORT = 12380
CONTROLLERS_PORT = 16257
SCHEDULER_PORT = 16259
LWS_METRICS_PORT = 18443
LWS_HEALTH_PORT = 18081
LWS_WEBHOOK_PORT = 19443

PAUSE_IMAGE = "registry.k8s.io/pause:3.10"
PRODUCT_IMAGE = "rlguard/rlguard:dev"
USER_IMAGES = ("rlguard/trainer:dev", "nvcr.io/nvidia/pytorch:24.04-py3")

MAX_NODES = 50
"""More would do nothing a few cannot, and each takes about 250 MB."""

PKI = STATE / "pki"
LOGS = STATE / "logs"
NAMESPACES = STATE / "ns"
RECORD = STATE / "lab.json"
ADMIN_KUBECONFIG = STATE / "admin.kubeconfig"
SHARED_FOLDER = STATE / "shared"
IMAGE_ARCHIVE = STATE / "images.tar"
BASE_SPEC = STATE / "base-spec.json"

PACKAGE = Path(__file__).resolve().parent
CHECKOUT = PACKAGE.parents[2]
WORKSPACE = PACKAGE / "workspace"


def node_name(index: int) -> str:
    """Name of the node with this index, counted from 0."""
    return f"node{index}"


def node_index(name: str) -> int:
    """Index of a node by its name.

    Raises BadConfigError for a name that no node of a lab can have.
    """
    found = re.fullmatch(r"node(\d{1,2})", name)
    if not found:
        raise BadConfigError(f"no node is called {name!r}; nodes are called node0, node1, ...")
    return int(found[1])


def node_address(name: str) -> str:
    """Address of the node itself; its pods get addresses from the same /24."""
    return f"10.77.{node_index(name) + 1}.1"


def node_home(name: str) -> Path:
    """Folder of everything the node keeps across a restart."""
    return STATE / "nodes" / name


def node_fakes(name: str) -> Path:
    """The folder that the node sees as FAKES."""
    return node_home(name) / "fakes"


def veth(name: str) -> str:
    """The machine's end of the cable to the node."""
    return f"{VETH}{node_index(name)}"


def product_environment() -> Path:
    """The virtual environment whose Python the product image shows: the one that runs this program."""
    return Path(sys.prefix)


def user_environment() -> Path:
    """The virtual environment (torch, no rlguard) whose Python the user's images show.

    Raises BadConfigError when it is not there.
    """
    path = Path(environ.get("RLGUARD_LAB_USER_VENV", CHECKOUT / ".venv-user"))
    if not (path / "bin" / "python3").exists():
        raise BadConfigError(
            f"no Python with torch at {path}: create it with `python3 -m venv {path} && "
            f"{path}/bin/pip install -r {CHECKOUT}/requirements-user.lock`, or name another virtual environment "
            "in RLGUARD_LAB_USER_VENV"
        )
    return path.absolute()
