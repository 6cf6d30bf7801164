"""The agent's figures for Prometheus, read from the parts when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rlguard.health.assess import Source
from rlguard.messages import AgentReport, Figures, Ranks
from rlguard.model import Verdict
from rlguard_agent.kmsg import KernelSource

PREFIX: Final = "rlguard_agent_"
MEMBER: Final = "rlguard_member_"
MEMBER_FIGURES: Final = {
    "generation": "Generation of the incarnation that the member's ranks are of.",
    "attempt": "Attempt within the generation.",
    "ranks_running": "1 while its ranks run.",
    "step": "The step of its slowest rank.",
    "staged_step": "The step of the newest checkpoint in its memory.",
    "heartbeat_age_seconds": "Since its slowest rank was last heard.",
}


def _of_member(member: Figures) -> dict[str, float | None]:
    of, staged = member.incarnation, member.staged
    return {
        "generation": of.generation if of is not None else None,
        "attempt": of.attempt if of is not None else None,
        "ranks_running": float(member.ranks is Ranks.RUNNING),
        "step": member.step,
        "staged_step": staged.step if staged is not None else None,
        "heartbeat_age_seconds": member.heartbeat_age,
    }


class AgentCollector(Collector):
    """Labels are bounded: verdicts, sources, and the codes of the faults that stand."""

    def __init__(
        self,
        report: Callable[[], AgentReport | None],
        ages: Callable[[], dict[Source, float]],
        kernel: KernelSource,
        acknowledged: Callable[[], int],
        members: Callable[[], Iterable[Figures]],
        stuck: Callable[[], int],
    ) -> None:
        self._report = report
        self._ages = ages
        self._kernel = kernel
        self._acknowledged = acknowledged
        self._members = members
        self._stuck = stuck

    def collect(self) -> Iterable[Metric]:
        """All figures as they are now."""
        yield from self._verdict()
        age = GaugeMetricFamily(
            PREFIX + "source_age_seconds", "Since the source's loop last turned.", labels=["source"]
        )
        for source, seconds in self._ages().items():
            age.add_metric([source.value], seconds)
        yield age
        kernel = self._kernel
        yield CounterMetricFamily(PREFIX + "kernel_records", "Kernel log records read.", value=kernel.records)
        yield CounterMetricFamily(PREFIX + "kernel_records_lost", "Records overwritten unread.", value=kernel.lost)
        yield CounterMetricFamily(PREFIX + "kernel_gaps", "Times that records were missing.", value=kernel.gaps)
        yield CounterMetricFamily(PREFIX + "kernel_records_bad", "What was no record.", value=kernel.garbage)
        yield GaugeMetricFamily(
            PREFIX + "acknowledging_pods", "Pods that took over notices.", value=self._acknowledged()
        )
        yield GaugeMetricFamily(
            PREFIX + "nvml_stuck_processes",
            "Killed NVML processes that the driver does not let die.",
            value=self._stuck(),
        )
        yield from self._of_members()

    def _of_members(self) -> Iterable[Metric]:
        """The figures of the sidecars on this node: they have no port for a scraper of their own."""
        shown = {
            name: GaugeMetricFamily(MEMBER + name, text, labels=["namespace", "job", "group", "member"])
            for name, text in MEMBER_FIGURES.items()
        }
        for member in self._members():
            labels = [member.key.namespace, member.key.job, str(member.key.group), str(member.index)]
            for name, value in _of_member(member).items():
                if value is not None:
                    shown[name].add_metric(labels, value)
        return shown.values()

    def _verdict(self) -> Iterable[Metric]:
        report = self._report()
        verdicts = GaugeMetricFamily(PREFIX + "verdict", "1 for the verdict on this node.", labels=["verdict"])
        faults = GaugeMetricFamily(PREFIX + "faults", "Faults that stand.", labels=["code"])
        for verdict in Verdict:
            verdicts.add_metric([verdict.value], float(report is not None and report.verdict is verdict))
        codes = [notice.code for notice in report.notices] if report else []
        for code in sorted(set(codes)):
            faults.add_metric([code], codes.count(code))
        return verdicts, faults
