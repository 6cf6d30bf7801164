"""What the controller's process is told by its environment (see the chart's `controller.yaml`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rlguard.errors import BadConfigError

PORT: Final = 8443
"""The one port: injector, certificates, links of sidecars and agents, health."""
SERVICE: Final = "rlguard-controller"
"""The Service that selects the controller that leads; sidecars and agents call it by its address."""


@dataclass(frozen=True, slots=True)
class Settings:
    """`image` and `pull_policy` are what the injector puts into pods; `agent_account` is namespace/name.

    `kubeconfig` is for a controller outside of a cluster, None inside. `address` (host:port) is told to guarded pods;
    empty: that of the Service.
    """

    namespace: str
    pod: str
    image: str
    pull_policy: str
    agent_account: str
    port: int
    kubeconfig: str | None
    address: str


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
    )


def _required(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name, "")
    if not value:
        raise BadConfigError(f"{name} is not set; the chart's Deployment rlguard-controller sets it")
    return value


def _port(text: str) -> int:
    if not text.isdigit() or not 0 < int(text) < 1 << 16:
        raise BadConfigError(f"RLGUARD_PORT: {text!r:.20} is not a port number")
    return int(text)
