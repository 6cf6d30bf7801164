"""What the agent is told by its environment. Every path and URL can be set, so that a test needs no real node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rlguard.errors import BadConfigError
from rlguard.health.catalogue import Catalogue, builtin
from rlguard.health.clouds.providers import PROVIDERS
from rlguard.health.gpu.watch import MOST_DEVICES
from rlguard.health.rdma.learned import Expectation
from rlguard.health.rdma.snapshot import PORT_LIMIT
from rlguard.io import dmi, mounts
from rlguard.model import PORT_OF_AGENT

HEALTH_PORT: Final = 7444
DBUS: Final = "/run/dbus/system_bus_socket"
PODS: Final = "/var/lib/kubelet/pods"
CLOUDS: Final = (*PROVIDERS, "auto", "none")


@dataclass(frozen=True, slots=True)
class Settings:
    """The agent's settings.

    | variable | meaning | default |
    |---|---|---|
    | RLGUARD_NODE, RLGUARD_HOST_IP | the node's name and address | required |
    | RLGUARD_CONTROLLER | the controller, `ip:port` | Kubernetes' variables of Service rlguard-controller |
    | RLGUARD_CA, RLGUARD_CA_FILE | the authority (PEM) or a file that will hold it | |
    | RLGUARD_AGENT_PORT | port for sidecars, mutual TLS, on the node's address | 7443 |
    | RLGUARD_AGENT_HEALTH_PORT | port of /healthz, plain, on 127.0.0.1 alone; for kubelet | 7444 |
    | RLGUARD_AGENT_KMSG | `/dev/kmsg`, or `unix:PATH` of a packet socket that gives such records | /dev/kmsg |
    | RLGUARD_AGENT_KMSG_FACILITY | `kernel`, or `any`: believe what was written to /dev/kmsg, too | kernel |
    | RLGUARD_AGENT_CLOUD | `tencent`, `aws`, `gcp`, `azure`, `alibaba`, `auto` (see firmware) or `none` | tencent |
    | RLGUARD_AGENT_METADATA | URLs of the cloud's metadata server, with commas | its name, its address |
    | RLGUARD_AGENT_DMI | folder with what the firmware says, for `auto` | /sys/class/dmi/id |
    | RLGUARD_AGENT_AZURE_EXPEDITE | `1`: Azure's event may begin once no pod needs the node any more | 0 |
    | RLGUARD_AGENT_STORAGE | `on`, `off`, or `auto`: on where kubelet's folder of pods is mounted | auto |
    | RLGUARD_AGENT_PODS | that folder, as the agent sees it | /var/lib/kubelet/pods |
    | RLGUARD_AGENT_MOUNTS | the mount table | /proc/self/mountinfo |
    | RLGUARD_AGENT_DBUS | D-Bus' socket, if it is there, to hear of a shutdown | /run/dbus/system_bus_socket |
    | RLGUARD_AGENT_RDMA | `auto` (once there are RDMA devices), `on`, `off` | auto |
    | RLGUARD_AGENT_SYSFS | the node's sysfs; its routes are read from `proc/net/route` beside it | /sys |
    | RLGUARD_AGENT_GID_INDEX | where jobs look for the RoCE v2 IPv4 address (3 on TKE), or `auto`: learned | auto |
    | RLGUARD_AGENT_RDMA_PORTS | how many RDMA ports are to be active, or `auto`: those seen active | auto |
    | RLGUARD_AGENT_RDMA_RATE | at how many Gb/s those are to run, or `auto`: at any rate | auto |
    | RLGUARD_AGENT_API | `auto`, `none`, or the API server's URL | auto |
    | RLGUARD_AGENT_API_ACCOUNT | folder with the token and ca.crt for it | the pod's ServiceAccount |
    | RLGUARD_AGENT_GPUS | `auto` (watch once there is a driver), `on`, `off`, or how many there must be | auto |
    | RLGUARD_AGENT_DRIVER_ROOT | under which NVIDIA's driver has its library, as this process sees it | / |
    | RLGUARD_AGENT_TOKEN | the token for the controller (audience rlguard) | /var/run/secrets/rlguard/token |
    | RLGUARD_AGENT_STATE | folder for what must outlive the process | /var/lib/rlguard |
    | RLGUARD_AGENT_CATALOGUE | file with one's own rows of the fault tables (JSON, docs/corpus.md) | none |
    | RLGUARD_AGENT_BOOT_ID | file with the boot id | /proc/sys/kernel/random/boot_id |
    """

    node: str
    host: str
    port: int
    health_port: int
    controller: str
    authority: str
    authority_file: Path | None
    token_file: Path
    kmsg: str
    kernel_only: bool
    cloud: str
    metadata: tuple[str, ...]
    dmi: Path
    expedite: bool
    storage: bool
    pods: Path
    mounts: Path
    dbus: Path | None
    rdma: str
    sysfs: Path
    expected: Expectation
    api: str
    api_account: Path
    gpus: str
    expected_gpus: int | None
    driver_root: Path
    state: Path
    boot_id: str
    catalogue: Catalogue


def read_settings(env: Mapping[str, str]) -> Settings:
    """The settings in an environment. Raises BadConfigError naming the variable that is wrong."""
    authority_file = env.get("RLGUARD_CA_FILE")
    gpus, expected_gpus = _gpus(env)
    settings = Settings(
        node=_required(env, "RLGUARD_NODE"),
        host=_required(env, "RLGUARD_HOST_IP"),
        port=_port(env, "RLGUARD_AGENT_PORT", PORT_OF_AGENT),
        health_port=_port(env, "RLGUARD_AGENT_HEALTH_PORT", HEALTH_PORT),
        controller=env.get("RLGUARD_CONTROLLER") or _service(env),
        authority=env.get("RLGUARD_CA", ""),
        authority_file=Path(authority_file) if authority_file else None,
        token_file=Path(env.get("RLGUARD_AGENT_TOKEN") or "/var/run/secrets/rlguard/token"),
        kmsg=env.get("RLGUARD_AGENT_KMSG") or "/dev/kmsg",
        kernel_only=_choice(env, "RLGUARD_AGENT_KMSG_FACILITY", ("kernel", "any")) == "kernel",
        cloud=_choice(env, "RLGUARD_AGENT_CLOUD", CLOUDS),
        metadata=_urls(env.get("RLGUARD_AGENT_METADATA") or ""),
        dmi=Path(env.get("RLGUARD_AGENT_DMI") or dmi.ROOT),
        expedite=_choice(env, "RLGUARD_AGENT_AZURE_EXPEDITE", ("0", "1")) == "1",
        storage=_storage(env),
        pods=Path(env.get("RLGUARD_AGENT_PODS") or PODS),
        mounts=Path(env.get("RLGUARD_AGENT_MOUNTS") or mounts.TABLE),
        dbus=_socket(env.get("RLGUARD_AGENT_DBUS") or DBUS),
        rdma=_choice(env, "RLGUARD_AGENT_RDMA", ("auto", "on", "off")),
        sysfs=Path(env.get("RLGUARD_AGENT_SYSFS") or "/sys"),
        expected=_expectation(env),
        api=_api(env),
        api_account=Path(env.get("RLGUARD_AGENT_API_ACCOUNT") or "/var/run/secrets/kubernetes.io/serviceaccount"),
        gpus=gpus,
        expected_gpus=expected_gpus,
        driver_root=Path(env.get("RLGUARD_AGENT_DRIVER_ROOT") or "/"),
        state=Path(env.get("RLGUARD_AGENT_STATE") or "/var/lib/rlguard"),
        boot_id=_boot_id(env.get("RLGUARD_AGENT_BOOT_ID") or "/proc/sys/kernel/random/boot_id"),
        catalogue=_catalogue(env.get("RLGUARD_AGENT_CATALOGUE", "")),
    )
    if not settings.authority and settings.authority_file is None:
        raise BadConfigError("neither RLGUARD_CA nor RLGUARD_CA_FILE is set: the agent would not know whom to trust")
    return settings


def _required(env: Mapping[str, str], name: str) -> str:
    value = env.get(name, "")
    if not value:
        raise BadConfigError(f"{name} is not set; the chart sets it from the pod's own fields")
    return value


def _port(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name) or str(default)
    if not text.isascii() or not text.isdigit() or not 0 <= int(text) <= 65535:  # noqa: PLR2004 - TCP's own limit
        raise BadConfigError(f"{name}: {text!r} is not a port")
    return int(text)


def _choice(env: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    value = env.get(name) or choices[0]
    if value not in choices:
        raise BadConfigError(f"{name}: {value!r} is none of {', '.join(choices)}")
    return value


def _expectation(env: Mapping[str, str]) -> Expectation:
    return Expectation(
        gid_index=_whole(env, "RLGUARD_AGENT_GID_INDEX", 255),
        ports=_whole(env, "RLGUARD_AGENT_RDMA_PORTS", PORT_LIMIT),
        rate=_whole(env, "RLGUARD_AGENT_RDMA_RATE", 100_000),
    )


def _whole(env: Mapping[str, str], name: str, most: int) -> int | None:
    text = env.get(name) or "auto"
    if text == "auto":
        return None
    if not text.isascii() or not text.isdigit() or len(text) > len(str(most)) or int(text) > most:
        raise BadConfigError(f"{name}: {text!r} is neither auto nor a number from 0 to {most}")
    return int(text)


def _gpus(env: Mapping[str, str]) -> tuple[str, int | None]:
    value = env.get("RLGUARD_AGENT_GPUS") or "auto"
    if value.isascii() and value.isdigit() and 0 < int(value) <= MOST_DEVICES:
        return "on", int(value)
    if value not in ("auto", "on", "off"):
        raise BadConfigError(
            f"RLGUARD_AGENT_GPUS: {value!r} is none of auto, on, off, nor a number up to {MOST_DEVICES}"
        )
    return value, None


def _storage(env: Mapping[str, str]) -> bool:
    choice = _choice(env, "RLGUARD_AGENT_STORAGE", ("auto", "on", "off"))
    return choice == "on" or (choice == "auto" and Path(env.get("RLGUARD_AGENT_PODS") or PODS).is_dir())


def _socket(path: str) -> Path | None:
    return Path(path) if Path(path).is_socket() else None


def _urls(text: str) -> tuple[str, ...]:
    """The URLs in a list with commas; none if it is empty, which leaves the choice to the cloud's own."""
    urls = tuple(url.strip().rstrip("/") for url in text.split(",") if url.strip())
    if not all(url.startswith("http://") for url in urls):
        raise BadConfigError(f"RLGUARD_AGENT_METADATA: {text!r} is no list of http:// URLs")
    return urls


def _service(env: Mapping[str, str]) -> str:
    host, port = env.get("RLGUARD_CONTROLLER_SERVICE_HOST"), env.get("RLGUARD_CONTROLLER_SERVICE_PORT")
    return f"{host}:{port}" if host and port else ""


def _api(env: Mapping[str, str]) -> str:
    value = env.get("RLGUARD_AGENT_API") or "auto"
    if value == "none" or value.startswith(("http://", "https://")):
        return value.rstrip("/")
    host, port = env.get("KUBERNETES_SERVICE_HOST"), env.get("KUBERNETES_SERVICE_PORT")
    if value != "auto" or not host or not port:
        raise BadConfigError(f"RLGUARD_AGENT_API: {value!r} is neither none nor a URL, nor is this a pod's environment")
    return f"https://{host}:{port}"


def _boot_id(path: str) -> str:
    try:
        text = Path(path).read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise BadConfigError(f"RLGUARD_AGENT_BOOT_ID: {path} cannot be read: {error}") from error
    if not text:
        raise BadConfigError(f"RLGUARD_AGENT_BOOT_ID: {path} is empty")
    return text


def _catalogue(path: str) -> Catalogue:
    try:
        return builtin(Path(path).read_text(encoding="utf-8") if path else None)
    except (OSError, ValueError, BadConfigError) as error:
        raise BadConfigError(f"RLGUARD_AGENT_CATALOGUE: {path} cannot be used: {error}") from error
