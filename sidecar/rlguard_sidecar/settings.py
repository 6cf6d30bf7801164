"""What the injector tells the sidecar: its environment, typed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlguard.errors import BadConfigError
from rlguard.model import PORT_OF_AGENT, GroupKey, Member


@dataclass(frozen=True, slots=True)
class Settings:
    """Who this pod is, whom it may call, and where its files are.

    `controller` is `ip:port`, empty: none. `root`: the checkpoint root, None: none is configured. `grace`: seconds
    from the pod's termination to its end. `state`: a folder of this container alone, for what a restarted process
    must remember. `listen_fd`, `keep_fd`: the socket and the memory that the supervisor hands to each process.
    """

    key: GroupKey
    member: Member
    size: int
    host_ip: str
    controller: str
    authority: bytes
    token: Path
    root: str | None
    agent_port: int
    grace: float
    run: Path
    shm: Path
    state: Path
    listen_fd: int
    keep_fd: int

    @property
    def leads(self) -> bool:
        """Whether this is the leader pod: its sidecar is the group's coordinator."""
        return self.member.index == 0


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Read the environment. Raises BadConfigError naming the variable."""
    return Settings(
        key=GroupKey(
            _text(environment, "RLGUARD_NAMESPACE"),
            _text(environment, "RLGUARD_JOB"),
            _whole(environment, "RLGUARD_GROUP"),
        ),
        member=_member(environment),
        size=_whole(environment, "RLGUARD_SIZE"),
        host_ip=_text(environment, "RLGUARD_HOST_IP"),
        controller=environment.get("RLGUARD_CONTROLLER", ""),
        authority=_text(environment, "RLGUARD_CA").encode(),
        token=_path(environment, "RLGUARD_TOKEN", "/var/run/secrets/rlguard/token"),
        root=environment.get("RLGUARD_ROOT") or None,
        agent_port=_whole(environment, "RLGUARD_AGENT_PORT", PORT_OF_AGENT),
        grace=float(_whole(environment, "RLGUARD_GRACE", 30)),
        run=_path(environment, "RLGUARD_RUN", "/rlguard/run"),
        shm=_path(environment, "RLGUARD_SHM", "/rlguard/shm"),
        state=_path(environment, "RLGUARD_STATE", "/run/rlguard"),
        listen_fd=_whole(environment, "RLGUARD_LISTEN_FD"),
        keep_fd=_whole(environment, "RLGUARD_KEEP_FD"),
    )


def _member(environment: Mapping[str, str]) -> Member:
    return Member(
        index=_whole(environment, "RLGUARD_INDEX"),
        uid=_text(environment, "RLGUARD_POD_UID"),
        pod=_text(environment, "RLGUARD_POD"),
        node=_text(environment, "RLGUARD_NODE"),
        address=_text(environment, "RLGUARD_POD_IP"),
    )


def _text(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise BadConfigError(f"{name} is not set; the injector sets it, so this pod was not made by it or was edited")
    return value


def _whole(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    if default is not None and not environment.get(name):
        return default
    value = _text(environment, name)
    if not (value.isascii() and value.isdecimal()):
        raise BadConfigError(f"{name}: {value!r} is not a whole number")
    return int(value)


def _path(environment: Mapping[str, str], name: str, default: str) -> Path:
    value = environment.get(name) or default
    if not value.startswith("/"):
        raise BadConfigError(f"{name}: {value!r} is not an absolute path")
    return Path(value)
