"""`rlguard node check`: one look at this machine, for a person in front of it or for a script."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rlguard.errors import BadConfigError
from rlguard.health.assess import Source
from rlguard.health.catalogue import Catalogue, builtin
from rlguard.health.clouds.providers import PROVIDERS
from rlguard.health.described import with_every_code
from rlguard.health.rdma.learned import Expectation
from rlguard.health.rdma.snapshot import PORT_LIMIT
from rlguard.io.mounts import TABLE
from rlguard.model import Notice, Repair, Verdict
from rlguard_chaos.check import WITHIN, Checked, Looked, State, Wanted, check
from rlguard_chaos.words import MENDS, coloured, split

EPILOG: Final = """examples:
  sudo rlguard node check                          everything that can be seen here; root may read the kernel log
  sudo rlguard node check --gpus 8 --rdma-ports 8  and so many of them must be there
  sudo rlguard node check --json | jq .verdict     for a script
  sudo rlguard node check --cloud auto             ask the cloud, too, whether it takes the machine back
  sudo rlguard node check --driver-root /run/nvidia/driver     the GPU operator's driver

Looked at: the kernel log since boot, GPUs (NVML), RDMA ports, shared file systems, and the cloud if it is asked for.
One look: what an agent would believe only after a while, or by comparing with earlier looks, is told as a warning.

Exit status: 0 healthy or degraded, 1 lost or leaving, 2 bad usage, 3 unknown: something could not be looked at."""

STATUS: Final = {
    Verdict.HEALTHY: 0,
    Verdict.DEGRADED: 0,
    Verdict.LOST: 1,
    Verdict.LEAVING: 1,
    Verdict.UNKNOWN: 3,
}
MEANS: Final = {
    Verdict.HEALTHY: "nothing is known to be wrong with this machine",
    Verdict.DEGRADED: "jobs can run here; what is said above should be seen to",
    Verdict.LOST: "no job should run here before it is repaired",
    Verdict.LEAVING: "the machine goes away soon; jobs should save and leave",
    Verdict.UNKNOWN: "not everything could be looked at; nobody knows whether it is healthy",
}
NAMES: Final = {
    Source.KERNEL: "kernel log",
    Source.GPU: "GPUs",
    Source.RDMA: "RDMA ports",
    Source.STORAGE: "shared file systems",
    Source.METADATA: "cloud",
}
COLOUR_OF: Final = {State.OK: "green", State.NOT_HERE: "dim", State.NOT_ASKED: "dim", State.CANNOT_LOOK: "red"}
TO_DO: Final = {**MENDS, Repair.NONE: "nothing has to be repaired on this machine; see what it says"}
FORMAT: Final = 1
"""The number of the JSON's form: fields may be added to it, none goes or changes its meaning."""
MOST_GPUS: Final = 64
LONGEST: Final = 600.0


def register(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.description = "Look once at this machine, without Kubernetes, and say what is wrong and what to do."
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--json", action="store_true", help="one object, for programs")
    add("--kmsg", metavar="PLACE", default="/dev/kmsg", help="the kernel log: a device, or unix:PATH (/dev/kmsg)")
    add("--driver-root", metavar="DIR", type=Path, help="under which NVIDIA's driver has its library (/)")
    add("--gpus", metavar="N", type=_number(MOST_GPUS), help="how many GPUs must be there")
    add("--sysfs", metavar="DIR", type=Path, default=Path("/sys"), help="the machine's sysfs (/sys)")
    add("--rdma-ports", metavar="N", type=_number(PORT_LIMIT), help="how many RDMA ports must carry traffic")
    add("--rdma-rate", metavar="GBITS", type=_number(100_000), help="at which rate those must run, in Gb/s")
    add("--mounts", metavar="FILE", type=Path, default=TABLE, help="the mount table (/proc/self/mountinfo)")
    add("--cloud", choices=(*PROVIDERS, "auto", "none"), default="none", help="whose metadata to ask (none)")
    add("--metadata", metavar="URL", help="where that is, if not at the cloud's usual address")
    add("--within", metavar="SECONDS", type=_seconds, default=WITHIN, help="how long one look may take (10)")
    add("--catalogue", metavar="FILE", type=Path, help="your own rows over those of the tables (JSON)")
    parser.set_defaults(run=_run)


def _number(most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= most:
            raise argparse.ArgumentTypeError(f"{text!r:.40} is no number from 1 to {most}")
        return int(text)

    return number


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= LONGEST:
        raise argparse.ArgumentTypeError(f"{text!r:.40} is no number of seconds up to {LONGEST:g}")
    return seconds


def _wanted(arguments: argparse.Namespace) -> Wanted:
    if arguments.metadata is not None and arguments.cloud == "none":
        raise BadConfigError("--metadata says where to ask, but not whom: name the cloud with --cloud")
    return Wanted(
        kmsg=arguments.kmsg,
        driver_root=arguments.driver_root,
        gpus=arguments.gpus,
        sysfs=arguments.sysfs,
        expected=Expectation(ports=arguments.rdma_ports, rate=arguments.rdma_rate),
        mounts=arguments.mounts,
        cloud=arguments.cloud,
        metadata=(arguments.metadata.rstrip("/"),) if arguments.metadata else (),
        within=arguments.within,
    )


def _run(arguments: argparse.Namespace) -> int:
    catalogue = builtin(arguments.catalogue.read_text("utf-8") if arguments.catalogue else None)
    wanted, described = _wanted(arguments), with_every_code(catalogue)
    if arguments.json:
        checked = asyncio.run(check(wanted, catalogue, lambda _: None))
        sys.stdout.write(json.dumps(told(checked, described)) + "\n")
    else:
        checked = _watched(wanted, catalogue)
        show(checked, described, Console())
    return STATUS[checked.assessment.report.verdict]


def _watched(wanted: Wanted, catalogue: Catalogue) -> Checked:
    with Console(stderr=True).status("looking") as status:

        def waiting(left: Collection[Source]) -> None:
            status.update(f"looking at {', '.join(NAMES[source] for source in left)}")

        return asyncio.run(check(wanted, catalogue, waiting))


def told(checked: Checked, described: Catalogue) -> dict[str, Any]:
    """The whole check for programs."""
    verdict = checked.assessment.report.verdict
    return {
        "format": FORMAT,
        "verdict": verdict.value,
        "means": MEANS[verdict],
        "sources": [
            {"source": one.source.value, "state": one.state.value.replace(" ", "-"), "detail": one.detail}
            for one in checked.looked
        ],
        "faults": [_fault(notice, described) for notice in checked.assessment.report.notices],
    }


def _fault(notice: Notice, described: Catalogue) -> dict[str, Any]:
    code, device = split(notice.id)
    return {
        "code": code,
        "device": device,
        "severity": notice.severity.value,
        "scope": notice.scope.value,
        "repair": notice.repair.value,
        "detail": notice.detail,
        "meaning": described.rows[code].meaning if code in described.rows else "",
        "to_do": TO_DO[notice.repair],
        "seconds_left": notice.seconds_left,
    }


def show(checked: Checked, described: Catalogue, console: Console) -> None:
    """The whole check for people."""
    table = Table(box=SIMPLE_HEAD)
    table.add_column("looked at", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("seen", overflow="fold")
    for one in checked.looked:
        table.add_row(NAMES[one.source], _state(one), escape(one.detail))
    console.print(table)
    report = checked.assessment.report
    if report.notices:
        console.print(_faults(report.notices, described))
    blind = [NAMES[one.source] for one in checked.looked if one.state is State.CANNOT_LOOK]
    unseen = f"; not looked at: {', '.join(blind)}" if blind else ""
    console.print(f"{coloured(report.verdict.value)}: {MEANS[report.verdict]}{unseen}", highlight=False)


def _state(looked: Looked) -> str:
    colour = COLOUR_OF[looked.state]
    return f"[{colour}]{looked.state}[/{colour}]"


def _faults(notices: tuple[Notice, ...], described: Catalogue) -> Table:
    table = Table(box=SIMPLE_HEAD)
    table.add_column("fault", overflow="fold")
    table.add_column("what it is, and what to do")
    for notice in notices:
        code, device = split(notice.id)
        name = f"{coloured(notice.severity.value)} {escape(code)}\n{escape(device)}"
        table.add_row(name, _words(notice, code, described), end_section=True)
    return table


def _words(notice: Notice, code: str, described: Catalogue) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    grid.add_row("what", escape(notice.detail))
    meaning = described.rows[code].meaning if code in described.rows else ""
    if meaning not in notice.detail:
        grid.add_row("means", escape(meaning))
    if notice.seconds_left is not None:
        grid.add_row("left", f"{notice.seconds_left:g} s")
    grid.add_row("to do", TO_DO[notice.repair])
    grid.add_row("more", f"rlguard node explain {escape(code)}")
    return grid
