"""The demo: a guarded PPO job on the lab, five acts, and the same job without rlguard beside it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml
from rich.console import Console

from rlguard.errors import BadConfigError, RlguardError, TransientError
from rlguard_chaos import baseline, lab, report, steplog
from rlguard_chaos.baseline import Bare
from rlguard_chaos.experiment import Experiment, parse
from rlguard_chaos.faults import Hands, Job
from rlguard_chaos.install import clear, install_chart
from rlguard_chaos.judge import GroupSeen
from rlguard_chaos.kubectl import Kubectl
from rlguard_chaos.lab import Lab
from rlguard_chaos.narrate import Narrator
from rlguard_chaos.run import HOOK_HINT, LOOK_EVERY, Act, GuardWatch, run_experiment, steady

MOST_BYTES: Final = 1 << 20
MOST_DEEP: Final = 20
EXPERIMENTS: Final = Path(__file__).parent / "experiments"
JOB: Final = "ppo"
RANK_KILLED: Final = "rank-killed"
LEADER_LOST: Final = "leader-lost"
BARE: Final = "ppo-bare"
BARE_LEADER: Final = "ppo-bare-leader"
COMMITTED_WITHIN: Final = 45.0
"""Seconds from the first step to the first committed checkpoint; the example flushes every 10."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the demo plays. `only`: names of acts, empty for all; `manifests`: folder of job.yaml and guard.yaml.

    `within`: the longest that any act may take, in seconds; None: as long as it says itself.
    """

    root: Path
    build: Path
    manifests: Path
    only: tuple[str, ...] = ()
    baseline: bool = True
    within: float | None = None
    keep: bool = False

    def experiments(self) -> list[Experiment]:
        """The acts to play, in order. Raises BadConfigError for a name that no act has."""
        known = experiments()
        unknown = set(self.only) - {experiment.name for experiment in known}
        if unknown:
            names = ", ".join(experiment.name for experiment in known)
            raise BadConfigError(f"--only {min(unknown)}: no such act (there are: {names})")
        chosen = [experiment for experiment in known if not self.only or experiment.name in self.only]
        return [experiment if self.within is None else experiment.limited(self.within) for experiment in chosen]


@dataclass(slots=True)
class Stage:
    """What the acts are played on."""

    options: Options
    lab: Lab
    kubectl: Kubectl
    narrator: Narrator
    job: dict[str, Any]

    def twin(self, name: str, nodes: tuple[str, str] | None = None) -> Bare:
        """A bare twin of the demo's job."""
        return baseline.bare_twin(self.job, name, self.lab.shared, nodes)


def experiments() -> list[Experiment]:
    """The five acts, in order."""
    return [load(path) for path in sorted(EXPERIMENTS.glob("[0-9]-*.yaml"))]


def load(path: Path) -> Experiment:
    """Read an experiment file. Raises BadConfigError with the place of the mistake."""
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1).decode()
        if len(text) > MOST_BYTES or not _is_simple(text):
            raise BadConfigError(
                f"{path}: an experiment is YAML of at most {MOST_BYTES} bytes and {MOST_DEEP} levels, without aliases"
            )
        document = yaml.safe_load(text)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise BadConfigError(f"{path}: cannot be read as YAML: {' '.join(str(error).split())[:300]}") from error
    return parse(document, str(path))


def _is_simple(text: str) -> bool:
    """Told before it is built: aliases and deep nesting make a small text a huge document."""
    depth = 0
    for event in yaml.parse(text):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MOST_DEEP or isinstance(event, yaml.AliasEvent):
            return False
    return True


def run_demo(console: Console, options: Options) -> int:
    """Play the acts on a lab of three nodes; exit status 0 only if each recovered within its limits."""
    options.experiments()
    keep = options.keep or lab.is_up()  # a lab that was there before is somebody's
    with Narrator(console) as narrator:
        try:
            running = lab.up(3, say=lambda text: narrator.say("lab", text))
            result = asyncio.run(_play(options, running, narrator))
        finally:
            if keep:
                narrator.say("lab", "the lab is left as it is; `rlguard lab down` removes it")
            else:
                lab.down(lambda text: narrator.say("lab", text))
    figures, page = report.write(result, options.build)
    console.print(report.table(result))
    console.print(f"Figures: {figures}\nReport:  {page}")
    for row in result.rows:
        if not row.act.recovered:
            console.print(f"[bold red]Act failed:[/] {row.act.name}: {row.act.reason}")
    return 0 if result.passed else 1


async def _play(options: Options, running: Lab, narrator: Narrator) -> report.Report:
    kubectl = Kubectl(str(running.binaries / "kubectl"), str(running.kubeconfig))
    job = yaml.safe_load((options.manifests / "job.yaml").read_text())
    stage = Stage(options, running, kubectl, narrator, job)
    narrator.title("Setting up")
    await clear(running, kubectl, (JOB, BARE, BARE_LEADER))
    installing = asyncio.create_task(install_chart(running, kubectl, options.root, narrator))
    bare = await _bare_rank_killed(stage) if options.baseline else None
    await installing
    problem = await _start_guarded(stage)
    rows = await _acts(stage, bare, problem)
    return report.Report(tuple(rows), tuple(steplog.read(running.shared / "ppo-log" / "steps-rank0.jsonl")))


async def _bare_rank_killed(stage: Stage) -> tuple[float, float | None]:
    """The bare restart's seconds (the quicker of two), and the seconds to recover from a killed rank."""
    twin = stage.twin(BARE)
    started = await baseline.start(stage.kubectl, twin, yaml.safe_dump(twin.manifest))
    stage.narrator.say("bare", f"without rlguard: first step {started:.1f} s after the command started")
    recovered, restarted = await baseline.kill_a_rank(stage.kubectl, twin)
    took = report.seconds(recovered) or "more than the time it was watched"
    stage.narrator.say("bare", f"without rlguard: a rank killed, first new step after {took}")
    await baseline.stop(stage.kubectl, twin)
    return min(started, restarted or started), recovered


async def _start_guarded(stage: Stage) -> str | None:
    """Start the job and wait for its first committed checkpoint. Returns what is wrong if it does not come."""
    for name in ("guard.yaml", "job.yaml"):
        await stage.kubectl.run("apply", "-f", str(stage.options.manifests / name))
    watch = GuardWatch(stage.kubectl, JOB, 0)
    try:
        async with watch.running():
            group = await _committed(watch)
    except TransientError as error:
        stage.narrator.say("failed", str(error))
        return str(error)
    stage.narrator.say("running", f"the guarded job steps on {' and '.join(group.nodes)}")
    return None


async def _committed(watch: GuardWatch) -> GroupSeen:
    """Wait for the first committed checkpoint: before it, there is nothing that a fault could cost."""
    group = await steady(watch)
    deadline = time.monotonic() + COMMITTED_WITHIN
    while (group := watch.seen or group).newest is None:
        if time.monotonic() > deadline:
            raise TransientError(f"no checkpoint was committed within {COMMITTED_WITHIN:.0f} s: {HOOK_HINT}")
        await asyncio.sleep(LOOK_EVERY)
    return group


async def _acts(stage: Stage, bare: tuple[float, float | None] | None, problem: str | None) -> list[report.Row]:
    hands = Hands(stage.kubectl, Job(JOB), stage.lab)
    rows: list[report.Row] = []
    leader_lost: asyncio.Task[float | None] | None = None
    for experiment in stage.options.experiments():
        if problem is not None and not rows:
            rows.append(report.Row(_not_played(experiment, problem)))
            continue
        if rows and not rows[-1].act.recovered:
            rows.append(report.Row(_not_played(experiment, f"not played, because {rows[-1].act.name} failed")))
            continue
        twin = await _bare_beside_leader(stage) if bare and experiment.name == LEADER_LOST else None
        rows.append(report.Row(await _run(experiment, hands, stage.narrator)))
        if twin is not None:
            leader_lost = asyncio.create_task(baseline.watch_leader_lost(twin, rows[-1].act.injected_at))
    return [await _beside(row, bare, leader_lost) for row in rows]


async def _beside(
    row: report.Row, bare: tuple[float, float | None] | None, lost: asyncio.Task[float | None] | None
) -> report.Row:
    """The row with what the bare job did under the same fault."""
    if row.act.name == RANK_KILLED and bare is not None:
        return replace(row, bare_restart_s=bare[0], baseline_s=bare[1], baseline_watched_s=baseline.RECOVER_WITHIN)
    if row.act.name == LEADER_LOST and lost is not None:
        return replace(row, baseline_s=await lost, baseline_watched_s=baseline.LEADER_WATCHED)
    return row


async def _bare_beside_leader(stage: Stage) -> Bare:
    """A bare twin whose leader shares the node of the guarded leader, so that one fault hits both."""
    group = await _now(stage)
    twin = stage.twin(BARE_LEADER, (group.nodes[0], group.nodes[-1]))
    await baseline.start(stage.kubectl, twin, yaml.safe_dump(twin.manifest))
    return twin


async def _now(stage: Stage) -> GroupSeen:
    watch = GuardWatch(stage.kubectl, JOB, 0)
    async with watch.running():
        return await steady(watch)


async def _run(experiment: Experiment, hands: Hands, narrator: Narrator) -> Act:
    try:
        return await run_experiment(experiment, hands, narrator)
    except RlguardError as error:
        narrator.say("failed", str(error))
        return _not_played(experiment, str(error))


def _not_played(experiment: Experiment, reason: str) -> Act:
    return Act(experiment.name, experiment.title, recovered=False, reason=reason, injected_at=time.time())
