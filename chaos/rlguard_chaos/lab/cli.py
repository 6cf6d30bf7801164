"""`rlguard lab`: the commands."""

from __future__ import annotations

import argparse
import os
import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from rlguard.errors import BadConfigError
from rlguard_chaos.lab import lab, layout
from rlguard_chaos.lab.host import require_machine

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_SHARED_MIB = 1 << 20
NODE_ACTIONS = {
    "kill": "pull the plug: silent at once, everything on it dead",
    "start": "boot a killed node (new boot id) and wait until it is Ready",
    "cut": "pull its network cable; everything on it goes on",
    "heal": "plug the cable in again",
    "freeze": "stop every process on it; its kernel still answers",
    "thaw": "let them go on",
}
EPILOG = f"""examples:
  rlguard lab up --nodes 3            start, or mend the running lab
  rlguard lab kubectl get pods -A     kubectl with the lab's kubeconfig
  rlguard lab node kill node1         see what your job does about it
  rlguard lab down                    leave nothing behind

Programs are built once from pinned Go modules (about 10 minutes on 2 cores) or taken from
--binaries / RLGUARD_LAB_BINARIES. Everything of the lab is in
{layout.STATE}, its logs in {layout.LOGS}."""


def register(parser: argparse.ArgumentParser) -> None:
    """Add the lab's commands to the parser of `rlguard lab`."""
    parser.description = "A real multi-node Kubernetes with LWS on this machine (Linux, root)."
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    start = verbs.add_parser("up", help="start the lab, or mend the running one; does nothing if all is well")
    start.add_argument("--nodes", type=int, default=3, metavar="N", help="how many nodes (default 3)")
    start.add_argument("--binaries", metavar="DIR", help="folder with ready programs; nothing is built")
    start.add_argument(
        "--production-timers", action="store_true", help="Kubernetes' default timings, not the fast ones"
    )
    start.add_argument(
        "--shared-mib", type=int, default=0, metavar="MIB", help="the shared folder is in memory and can be filled up"
    )
    start.set_defaults(run=_up)
    verbs.add_parser("down", help="remove the lab and everything it made").set_defaults(run=_down)
    verbs.add_parser("status", help="what runs").set_defaults(run=_status)
    kubectl = verbs.add_parser("kubectl", help="kubectl with the lab's kubeconfig", add_help=False, prefix_chars="\0")
    kubectl.add_argument("words", nargs=argparse.REMAINDER)
    kubectl.set_defaults(run=_kubectl)
    node = verbs.add_parser("node", help="break a node and bring it back")
    actions = node.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, text in NODE_ACTIONS.items():
        action = actions.add_parser(name, help=text, description=text)
        action.add_argument("node", metavar="NODE", help="node0, node1, ...")
    node.set_defaults(run=_node)


def _speaker(console: Console) -> Callable[[str], None]:
    began = time.monotonic()
    return lambda text: console.print(f"[dim]{time.monotonic() - began:6.1f}s[/dim]  {text}", highlight=False)


def _up(arguments: argparse.Namespace) -> int:
    console = Console()
    say = _speaker(console)
    if not 0 <= arguments.shared_mib <= MOST_SHARED_MIB:
        raise BadConfigError(f"--shared-mib must be 0 to {MOST_SHARED_MIB}, not {arguments.shared_mib}")
    lab.up(
        arguments.nodes,
        binaries=arguments.binaries,
        production_timers=arguments.production_timers,
        shared_mib=arguments.shared_mib,
        say=say,
    )
    console.print(f"export KUBECONFIG={layout.ADMIN_KUBECONFIG}", highlight=False)
    return 0


def _down(_: argparse.Namespace) -> int:
    lab.down(_speaker(Console()))
    return 0


def _status(_: argparse.Namespace) -> int:
    require_machine()
    console = Console()
    running = lab.Lab()
    table = Table("node", "machine", "Kubernetes", "address")
    for row in lab.node_rows(running):
        table.add_row(*row)
    console.print(table)
    console.print(f"export KUBECONFIG={running.kubeconfig}", highlight=False)
    return 0


def _kubectl(arguments: argparse.Namespace) -> int:
    require_machine()
    running = lab.Lab()
    program = str(running.binaries / "kubectl")
    environment = {**os.environ, "KUBECONFIG": str(running.kubeconfig)}
    os.execve(program, [program, *arguments.words], environment)  # noqa: S606  # a list, no shell


def _node(arguments: argparse.Namespace) -> int:
    require_machine()
    node = lab.Lab().node(arguments.node)
    {
        "kill": node.kill,
        "start": node.start,
        "cut": node.cut,
        "heal": node.heal,
        "freeze": node.freeze,
        "thaw": node.thaw,
    }[arguments.action]()
    return 0
