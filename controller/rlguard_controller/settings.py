"""What the controller's process is told by its environment (see the chart's `controller.yaml`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rlguard.cluster.taints import TaintPolicy
from rlguard.errors import BadConfigError

PORT: Final = 8443
"""The one port: injector, certificates, links of sidecars and agents, health."""
SERVICE: Final = "rlguard-controller"
"""The Service that selects the controller that leads; sidecars and agents call it by its address."""


@dataclass(frozen=True, slots=True)
class Settings:
    """`image` and `pull_policy` are what the injector puts into pods; `agent_account` is namespace/name.

    `kubeconfig` is for a controller outside of a cluster, None inside. `address` (host:port) is told to guarded pods;
    empty: that of the Service. `taints` None: no Node is tainted.
    """

    namespace: str
    pod: str
    image: str
    pull_policy: str
    agent_account: str
    port: int
    kubeconfig: str | None
    address: str
    taints: TaintPolicy | None = None


def read_settings(environ: Mapping[str, str]) -> Settings:
    """The settings in the environment. Raises BadConfigError naming the variable."""
    return Settings(
        namespace=_required(environ, "POD_NAMESPACE"),
        pod=_required(environ, "POD_NAME"),
        image=_required(environ, "RLGUARD_IMAGE"),
        pull_policy=environ.get("RLGUARD_IMAGE_PULL_POLICY", "IfNotPresent"),
        agent_account=_required(environ, "RLGUARD_AGENT_ACCOUNT"),
        port=_port(environ.get("RLGUARD_PORT", str(PORT))),
        kubeconfig=environ.get("RLGUARD_KUBECONFIG") or None,
        address=environ.get("RLGUARD_ADDRESS", ""),
        taints=_taints(environ),
    )


def _taints(environ: Mapping[str, str]) -> TaintPolicy | None:
    switch = environ.get("RLGUARD_TAINTS", "off")
    if switch not in ("on", "off"):
        raise BadConfigError(f"RLGUARD_TAINTS: {switch!r:.20} is neither on nor off")
    if switch == "off":
        return None
    share, floor = environ.get("RLGUARD_TAINTS_MAX_SHARE", "0.2"), environ.get("RLGUARD_TAINTS_FLOOR", "1")
    if not re.fullmatch(r"0(\.[0-9]{1,9})?|1(\.0{1,9})?", share):
        raise BadConfigError(f"RLGUARD_TAINTS_MAX_SHARE: {share!r:.20} is not a share between 0 and 1")
    if not re.fullmatch(r"[0-9]{1,6}", floor):
        raise BadConfigError(f"RLGUARD_TAINTS_FLOOR: {floor!r:.20} is not a number of nodes")
    return TaintPolicy(float(share), int(floor), environ.get("RLGUARD_TAINTS_POOL_LABEL", ""))


def _required(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name, "")
    if not value:
        raise BadConfigError(f"{name} is not set; the chart's Deployment rlguard-controller sets it")
    return value


def _port(text: str) -> int:
    if not text.isdigit() or not 0 < int(text) < 1 << 16:
        raise BadConfigError(f"RLGUARD_PORT: {text!r:.20} is not a port number")
    return int(text)
