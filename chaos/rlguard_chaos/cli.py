"""`rlguard chaos` and `rlguard demo`: the commands."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
from pathlib import Path
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from rlguard.errors import BadConfigError
from rlguard_chaos import demo
from rlguard_chaos.experiment import Experiment, Fault
from rlguard_chaos.faults import NODE_FAULTS, Hands, Job
from rlguard_chaos.kubectl import Kubectl
from rlguard_chaos.lab import Lab, layout
from rlguard_chaos.narrate import Narrator
from rlguard_chaos.run import Act, run_experiment

EPILOG: Final = """examples:
  rlguard chaos list                                     the experiments that come with rlguard
  rlguard chaos run rank-killed --job ppo                one of them, on the job that KUBECONFIG reaches
  rlguard chaos run my.yaml --job ppo --namespace team   your own file

Exit status: 0 recovered as the file expects, 1 not, 2 the experiment could not be run."""


def register(parser: argparse.ArgumentParser) -> None:
    """Add the commands to the parser of `rlguard chaos`."""
    parser.description = "Break a guarded job on purpose, watch what rlguard does about it, judge."
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    verbs.add_parser("list", help="the experiments that come with rlguard").set_defaults(run=_list)
    run = verbs.add_parser("run", help="run one experiment: inject, watch, judge")
    run.add_argument("experiment", metavar="FILE|NAME", help="a name that 'rlguard chaos list' shows, or a YAML file")
    run.add_argument("--job", required=True, help="name of the LeaderWorkerSet")
    run.add_argument("--namespace", default="default", help="where the job is (default: default)")
    run.add_argument("--group", type=int, default=0, help="which group of the job (default 0)")
    run.add_argument(
        "--kubeconfig",
        default=os.environ.get("KUBECONFIG", ""),
        help="default: $KUBECONFIG, else the lab's; ~/.kube/config is never taken unasked",
    )
    run.set_defaults(run=_run)


def _list(_: argparse.Namespace) -> int:
    table = Table("name", "what it does", "runs on", "file", box=SIMPLE_HEAD)
    for path in sorted(demo.EXPERIMENTS.glob("*.yaml")):
        experiment = demo.load(path)
        table.add_row(experiment.name, experiment.title, _where(experiment), path.name)
    console = Console()
    console.print(table)
    console.print(f"The files are in {demo.EXPERIMENTS}", highlight=False, soft_wrap=True)
    return 0


def _where(experiment: Experiment) -> str:
    faults = {injection.fault for step in experiment.steps for injection in step.inject}
    if faults & NODE_FAULTS:
        return "the lab"
    return "examples/ppo" if Fault.FINISH_JOB in faults else "any job"


def _run(arguments: argparse.Namespace) -> int:
    experiment = demo.load(_find(arguments.experiment))
    running = _lab(arguments.kubeconfig)
    kubeconfig = arguments.kubeconfig or (str(running.kubeconfig) if running else "")
    if not kubeconfig:
        raise BadConfigError("no cluster: set KUBECONFIG or --kubeconfig, or start the lab with 'rlguard lab up'")
    kubectl = Kubectl(_kubectl(running), kubeconfig, arguments.namespace)
    hands = Hands(kubectl, Job(arguments.job, arguments.group), running)
    with Narrator(Console()) as narrator:
        act = asyncio.run(_on_a_cluster(experiment, hands, narrator))
    return 0 if act.recovered else 1


async def _on_a_cluster(experiment: Experiment, hands: Hands, narrator: Narrator) -> Act:
    """A watch tries again for ever: what will never work is said before it begins."""
    await hands.kubectl.run("get", "guards.rlguard.io", hands.job.name)
    return await run_experiment(experiment, hands, narrator)


def _find(name: str) -> Path:
    given = Path(name)
    if given.is_file():
        return given
    named = [path for path in demo.EXPERIMENTS.glob("*.yaml") if demo.load(path).name == name]
    if not named:
        raise BadConfigError(f"{name}: neither a file nor an experiment's name ('rlguard chaos list' shows them)")
    return named[0]


def _lab(kubeconfig: str) -> Lab | None:
    """The lab, when it is what the kubeconfig reaches."""
    same = not kubeconfig or Path(kubeconfig) == layout.ADMIN_KUBECONFIG
    return Lab() if same and layout.ADMIN_KUBECONFIG.exists() else None


def _kubectl(running: Lab | None) -> str:
    found = str(running.binaries / "kubectl") if running else shutil.which("kubectl")
    if not found:
        raise BadConfigError("kubectl is not on PATH; install it from your cluster's vendor or kubernetes.io")
    return found
