"""What breaks at a node's lowest edge: kernel lines, cloud notices, boot ids. For experiments and tests."""

from __future__ import annotations

import json
import socket
import uuid
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from rlguard.errors import BadConfigError
from rlguard_chaos.lab import gpus, layout
from rlguard_chaos.lab.host import LabError, write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CHINA = timezone(timedelta(hours=8))
KERNEL_WARNING = 4
ANSWER_LIMIT_S = 5.0
GPUS = 8
"""As many as a node says it has (nvidia.com/gpu)."""


def prepare(node: str) -> None:
    """Make the node's folder of fakes as a healthy machine has them; what is there is kept.

    Where no NVML stand-in can be built the node has no GPUs, and so no driver.
    """
    fakes = layout.node_fakes(node)
    (fakes / "nvml").mkdir(parents=True, exist_ok=True)
    if not gpus.unavailable():
        gpus.install(fakes / "nvml", GPUS)
    (fakes / "name").write_text(f"{node}\n")
    if not (fakes / "boot_id").exists():
        set_boot_id(node)
    if not _metadata(node).exists():
        write_whole(_metadata(node), json.dumps({"instance_id": f"ins-{node}"}))


def write_kernel_line(node: str, text: str, priority: int = KERNEL_WARNING) -> int:
    """Append records, one for each line of text, to the node's kernel log; returns the last one's sequence number.

    Raises BadConfigError for a node that does not run, LabError when its edge does not answer.
    """
    sequence = -1
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        line.settimeout(ANSWER_LIMIT_S)
        try:
            line.connect(str(layout.node_home(node) / "control.sock"))
        except OSError as error:
            raise BadConfigError(f"{node} does not run, so it has no kernel log ({error})") from error
        for record in text.splitlines() or [""]:
            sequence = _append(line, node, record, priority)
    return sequence


def _append(line: socket.socket, node: str, text: str, priority: int) -> int:
    try:
        line.send(json.dumps({"text": text, "priority": priority}).encode())
        return int(json.loads(line.recv(4096))["sequence"])
    except (OSError, ValueError) as error:
        raise LabError(f"the kernel log of {node} did not answer: {error}") from error


def set_spot_notice(node: str, seconds: float | None) -> None:
    """Announce that the cloud takes the node back in so many seconds; None takes the notice away.

    Raises BadConfigError for a node that does not exist.
    """
    state = _state(node)
    if seconds is None:
        state.pop("termination_time", None)
    else:
        end = datetime.now(UTC) + timedelta(seconds=seconds)
        state["termination_time"] = end.astimezone(CHINA).strftime("%Y-%m-%d %H:%M:%S")
    write_whole(_metadata(node), json.dumps(state))


def set_boot_id(node: str, boot_id: str | None = None) -> str:
    """Give the node another boot id, a random one unless named; returns it.

    The file is written in place: inside the node it is bound over /proc/sys/kernel/random/boot_id.
    """
    chosen = boot_id or str(uuid.uuid4())
    (layout.node_fakes(node) / "boot_id").write_text(f"{chosen}\n")
    return chosen


def change_gpus(node: str, changes: Mapping[str, str | int | None]) -> None:
    """Change what NVML says on the node, line by line (see `nvml/stub.c`); None takes a line away.

    Raises BadConfigError where the node has no GPUs.
    """
    gpus.change(_gpu_state(node), changes)


def tell_xid(node: str, gpu: int, code: int) -> None:
    """Let NVML on the node tell that a GPU had an Xid. The kernel's line is apart from it (`write_kernel_line`).

    Raises BadConfigError where the node has no GPUs.
    """
    gpus.tell_xid(_gpu_state(node), gpu, code)


def _gpu_state(node: str) -> Path:
    state = layout.node_fakes(node) / "nvml" / gpus.STATE
    if not state.exists():
        raise BadConfigError(f"{node} has no GPUs: {gpus.unavailable() or 'no node of this name has booted'}")
    return state


def _metadata(node: str) -> Path:
    return layout.node_home(node) / "metadata.json"


def _state(node: str) -> dict[str, Any]:
    try:
        state: dict[str, Any] = json.loads(_metadata(node).read_text())
    except FileNotFoundError:
        raise BadConfigError(f"no node is called {node!r} in this lab") from None
    return state
