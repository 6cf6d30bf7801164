"""The lab as a whole: up, down, status."""

from __future__ import annotations

import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rlguard.errors import BadConfigError
from rlguard_chaos.lab import api, gpus, layout, processes
from rlguard_chaos.lab.host import (
    LabError,
    attempt,
    call,
    lab_lock,
    mounts_under,
    require_machine,
    require_programs,
    write_whole,
)
from rlguard_chaos.lab.node import Node, private_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

REMOVE_TRIES = 5


@dataclass(frozen=True)
class Record:
    """What `lab.json` says of the lab on this machine. phase: starting (perhaps half made) or up.

    shared_mib: size of the shared folder, which is then a file system of its own in memory; 0: of this machine's disk.
    """

    phase: str
    nodes: int
    production_timers: bool
    binaries: str
    checkout: str
    shared_mib: int = 0


class Lab:
    """A handle on the machine's running lab.

    Raises BadConfigError when none runs.
    """

    def __init__(self) -> None:
        record = read_record()
        if record is None:
            raise BadConfigError("no lab runs on this machine; start one with `rlguard lab up`")
        self._record = record

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return layout.ADMIN_KUBECONFIG

    @property
    def state(self) -> Path:
        """The lab's folder on this machine; logs are in its `logs`."""
        return layout.STATE

    @property
    def shared(self) -> Path:
        """The shared folder (CFS Turbo) as this machine sees it."""
        return layout.SHARED_FOLDER

    @property
    def binaries(self) -> Path:
        """Folder with kubectl, helm and the other programs."""
        return Path(self._record.binaries)

    @property
    def production_timers(self) -> bool:
        """Whether kubelets and controllers keep their default timings."""
        return self._record.production_timers

    def nodes(self) -> Sequence[Node]:
        """All nodes, also those that are down."""
        return [self._node(index) for index in range(self._record.nodes)]

    def node(self, name: str) -> Node:
        """The node of this name.

        Raises BadConfigError when the lab has none.
        """
        index = layout.node_index(name)
        if index >= self._record.nodes:
            raise BadConfigError(f"this lab has no {name}; its nodes are node0 to node{self._record.nodes - 1}")
        return self._node(index)

    def _node(self, index: int) -> Node:
        return Node(layout.node_name(index), self.binaries, self.production_timers)


def read_record() -> Record | None:
    """What lab there is, finished or half made; None when there is none."""
    try:
        return Record(**json.loads(layout.RECORD.read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        return Record("starting", 0, production_timers=False, binaries="", checkout="")


def is_up() -> bool:
    """Whether a whole lab runs on this machine."""
    record = read_record()
    return record is not None and record.phase == "up"


def up(
    nodes: int = 3,
    *,
    binaries: str | None = None,
    production_timers: bool = False,
    shared_mib: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> Lab:
    """Start the lab, or mend the running one so that all its nodes are Ready. `say` is told each step.

    `shared_mib` makes the shared folder a file system of this size that can be filled up; a running lab keeps its own.

    Raises BadConfigError where no lab can run or another one does, LabError when a part does not start.
    """
    require_machine()
    if not 1 <= nodes <= layout.MAX_NODES:
        raise BadConfigError(f"--nodes must be 1 to {layout.MAX_NODES}, not {nodes}")
    with lab_lock():
        record = read_record()
        if record and record.phase == "up":
            wanted = Record("up", nodes, production_timers, record.binaries, str(layout.CHECKOUT))
            _refuse_another(record, wanted)
            _mend(say)
            return Lab()
        from rlguard_chaos.lab.binaries import provide  # noqa: PLC0415  # the edge imports this package; it stays small

        layout.user_environment()
        require_programs("runc", "iptables", "ip", "nsenter")
        folder = provide(binaries)
        if record or layout.STATE.exists():
            say("removing what an interrupted start left")
        _remove_everything()
        _build(Record("starting", nodes, production_timers, str(folder), str(layout.CHECKOUT), shared_mib), say)
    return Lab()


def down(say: Callable[[str], None] = lambda _: None) -> None:
    """Remove the lab with everything it made, from whatever state it is in.

    Raises LabError when something cannot be removed.
    """
    require_machine()
    with lab_lock():
        _remove_everything()
    say("nothing of the lab is left")


def _refuse_another(running: Record, wanted: Record) -> None:
    have, want = asdict(running), asdict(wanted)
    names = {"nodes": "nodes", "production_timers": "production timers", "checkout": "checkout"}
    differences = [
        f"{text}: {have[key]} there, {want[key]} wanted" for key, text in names.items() if have[key] != want[key]
    ]
    if differences:
        raise BadConfigError(
            f"another lab runs on this machine and there can be one only ({'; '.join(differences)}); "
            "remove it first with `rlguard lab down`"
        )


def _build(record: Record, say: Callable[[str], None]) -> None:
    from rlguard_chaos.lab import control, images  # noqa: PLC0415  # see up()

    folder = Path(record.binaries)
    names = [layout.node_name(index) for index in range(record.nodes)]
    layout.SHARED_FOLDER.mkdir(parents=True)
    if record.shared_mib:
        size = f"size={record.shared_mib}m"
        call("mount", "--no-mtab", "-t", "tmpfs", "-o", size, "rlguard-lab-shared", layout.SHARED_FOLDER)
    private_folder(layout.NAMESPACES)
    write_whole(layout.RECORD, json.dumps(asdict(record)))
    control.create_bridge()
    control.create_identities(names)
    control.start_store(folder)
    images.compile_checkout()
    images.write_base_spec(folder / "ctr")
    images.write_archive(folder / "pause")
    if reason := gpus.unavailable():
        say(reason)
    lab = Lab()
    with ThreadPoolExecutor(max_workers=4) as pool:
        coming = [pool.submit(_bring, node, say) for node in lab.nodes()]
        control.wait_for_api()
        say("API server ready")
        control.start_rest(folder, production_timers=record.production_timers)
        say("controllers, scheduler, LWS and DNS started")
        for node in coming:
            node.result()
    say(f"{record.nodes} nodes Ready")
    control.wait_for_lws()
    say("LWS takes jobs")
    write_whole(layout.RECORD, json.dumps(asdict(record) | {"phase": "up"}))


def _bring(node: Node, say: Callable[[str], None]) -> None:
    from rlguard_chaos.lab import control  # noqa: PLC0415  # see up()

    node.boot()
    control.wait_for_api()
    node.join()
    node.wait_ready()
    say(f"{node.name} Ready")


def _mend(say: Callable[[str], None]) -> None:
    from rlguard_chaos.lab import control  # noqa: PLC0415  # see up()

    lab = Lab()
    control.create_bridge()
    control.start_store(lab.binaries)
    control.wait_for_api()
    control.start_rest(lab.binaries, production_timers=lab.production_timers)
    for node in lab.nodes():
        state = node.state
        if state != "running":
            say(f"{node.name} is {state}: bringing it back")
        node.recover()
    control.wait_for_lws()
    say("the lab runs")


def _remove_everything() -> None:
    """Found by fixed names alone, so that it does not matter how far a start or an earlier removal got."""
    killed = processes.kill()
    for _ in range(REMOVE_TRIES):
        for point in mounts_under(layout.STATE):
            attempt("umount", "--no-mtab", "--lazy", point)
    for link in Path("/sys/class/net").iterdir():
        if link.name.startswith(layout.VETH) or link.name == layout.BRIDGE:
            attempt("ip", "link", "delete", link.name)
    processes.remove_groups()
    _remove_folder()
    processes.wait_buried(killed)


def _remove_folder() -> None:
    for _ in range(REMOVE_TRIES):
        left = mounts_under(layout.STATE)
        if left:
            raise LabError(f"{left[0]} cannot be unmounted")
        shutil.rmtree(layout.STATE, ignore_errors=True)
        if not layout.STATE.exists():
            return
        time.sleep(0.2)
    raise LabError(f"{layout.STATE} cannot be removed")


def node_rows(lab: Lab) -> Sequence[tuple[str, str, str, str]]:
    """For each node: name, its machine's state, what Kubernetes says, its address."""
    try:
        known = api.nodes()
    except LabError:
        known = {}
    rows = []
    for node in lab.nodes():
        ready = "unknown" if node.name not in known else "Ready" if api.is_ready(known[node.name]) else "NotReady"
        rows.append((node.name, node.state, ready, layout.node_address(node.name)))
    return rows
