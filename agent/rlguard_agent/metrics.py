"""The agent's figures for Prometheus, read from the parts when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rlguard.health.assess import Source
from rlguard.messages import AgentReport
from rlguard.model import Verdict
from rlguard_agent.kmsg import KernelSource

PREFIX: Final = "rlguard_agent_"


class AgentCollector(Collector):
    """Labels are bounded: verdicts, sources, and the codes of the faults that stand."""

    def __init__(
        self,
        report: Callable[[], AgentReport | None],
        ages: Callable[[], dict[Source, float]],
        kernel: KernelSource,
        acknowledged: Callable[[], int],
        stuck: Callable[[], int],
    ) -> None:
        self._report = report
        self._ages = ages
        self._kernel = kernel
        self._acknowledged = acknowledged
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
        yield CounterMetricFamily(PREFIX + "kernel_records_bad", "What was no record.", value=kernel.garbage)
        yield GaugeMetricFamily(
            PREFIX + "acknowledging_pods", "Pods that took over notices.", value=self._acknowledged()
        )
        yield GaugeMetricFamily(
            PREFIX + "nvml_stuck_processes",
            "Killed NVML processes that the driver does not let die.",
            value=self._stuck(),
        )

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
