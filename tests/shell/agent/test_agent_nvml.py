"""The agent's GPU source: what it tells, when, and that a driver in whatever trouble holds up nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from gpukit import COUNT, Machine, machine  # noqa: F401 - a fixture
from test_agent import XID, linked
from waiting import until

from rlguard.errors import BadConfigError
from rlguard.health.assess import CannotLook, Fact, Happened, Observed, Source
from rlguard.health.catalogue import builtin
from rlguard.io.nvml import Patience
from rlguard.model import Verdict
from rlguard_agent import nvml
from rlguard_agent.nvml import GpuPlace, GpuSource
from rlguard_agent.settings import read_settings
from rlguard_chaos.lab import gpus

QUICK = Patience(answer=1.0, first=20.0, reap=0.2, pause=0.05, longest_pause=0.1)
ENVIRONMENT = {"RLGUARD_NODE": "n", "RLGUARD_HOST_IP": "127.0.0.1", "RLGUARD_CA": "pem", "RLGUARD_AGENT_API": "none"}


class Told:
    """What a source told."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []

    def codes(self) -> list[tuple[str, str]] | None:
        """Code and device of what was observed last, None before."""
        seen = [fact for fact in self.facts if isinstance(fact, Observed)]
        return [(fault.code, fault.device) for fault in seen[-1].faults] if seen else None

    def happened(self) -> list[tuple[str, str]]:
        """Code and device of every event."""
        return [(f.code, f.device) for fact in self.facts if isinstance(fact, Happened) for f in fact.faults]

    def reason(self) -> str:
        """Why it cannot look, if that is what it told last."""
        return self.facts[-1].reason if self.facts and isinstance(self.facts[-1], CannotLook) else ""


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "EVERY", 0.3)
    monkeypatch.setattr(nvml, "AT_LEAST", 0.05)
    monkeypatch.setattr(nvml, "EVENTS_FOR", 0.1)
    monkeypatch.setattr(nvml, "LOOK_FOR_DRIVER", 0.05)


def place(machine: Machine, tmp_path: Path, **changes: Any) -> GpuPlace:  # noqa: F811
    return GpuPlace(**{"root": machine.root, "state": tmp_path / "state", "boot_id": "boot-1", "signs": (), **changes})


@asynccontextmanager
async def running(at: GpuPlace) -> AsyncIterator[tuple[Told, GpuSource]]:
    told = Told()
    source = GpuSource(at, builtin(), told.facts.append, QUICK)
    task = asyncio.create_task(source.run())
    try:
        yield told, source
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def told_so(told: Told, codes: list[tuple[str, str]]) -> None:
    await until(lambda: told.codes() == codes)


async def test_healthy_gpus_are_told_as_nothing_wrong(machine: Machine, tmp_path: Path) -> None:  # noqa: F811
    async with running(place(machine, tmp_path)) as (told, _):
        await told_so(told, [])
        assert all(isinstance(fact, Observed) and fact.source is Source.GPU for fact in told.facts)


async def test_faults_are_told_and_are_over_when_they_are(machine: Machine, tmp_path: Path) -> None:  # noqa: F811
    async with running(place(machine, tmp_path)) as (told, _):
        await told_so(told, [])
        machine.set(gpu1__remap__pending=1, gpu2__lost=1)
        await told_so(told, [("gpu-remap-pending", "0000:2b:00"), ("gpu-lost", "0000:3b:00")])
        machine.set(gpu1__remap__pending=0, gpu2__lost=0)
        await told_so(told, [])


async def test_a_kick_makes_it_look_at_once(
    machine: Machine,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nvml, "EVERY", 3600.0)
    async with running(place(machine, tmp_path)) as (told, source):
        await told_so(told, [])
        machine.set(gpu0__field__230=2)
        await asyncio.sleep(0.3)
        assert told.codes() == []
        source.kick()
        await told_so(told, [("gpu-wants-reboot", "0000:1b:00")])


async def test_an_xid_is_told_promptly_as_the_kernel_log_would_and_followed_by_a_look(
    machine: Machine,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nvml, "EVERY", 3600.0)
    async with running(place(machine, tmp_path)) as (told, _):
        await told_so(told, [])
        gpus.change(machine.state, {"device.3.lost": 1, "xid.1": "3 79"})
        await until(lambda: told.happened() == [("xid-79", "0000:4b:00")])
        await told_so(told, [("gpu-lost", "0000:4b:00")])
        assert told.happened() == [("xid-79", "0000:4b:00")]


async def test_a_hung_driver_is_a_fault_then_blind_and_over_when_it_answers(
    machine: Machine,  # noqa: F811
    tmp_path: Path,
) -> None:
    async with running(place(machine, tmp_path)) as (told, _):
        await told_so(told, [])
        machine.set(hang__nvmlDeviceGetUUID=1, hang__nvmlInitWithFlags=1)
        await told_so(told, [("nvml-hung", "node")])
        assert "did not answer" in told.reason()
        observed = sum(isinstance(fact, Observed) for fact in told.facts)
        machine.set(hang__nvmlDeviceGetUUID=None, hang__nvmlInitWithFlags=None)
        await told_so(told, [])
        assert sum(isinstance(fact, Observed) for fact in told.facts) > observed


async def test_the_driver_is_let_go_between_looks_while_a_gpu_waits_for_a_reset(
    machine: Machine,  # noqa: F811
    tmp_path: Path,
) -> None:
    async with running(place(machine, tmp_path)) as (told, source):
        await told_so(told, [])
        assert source.nvml.pid is not None
        machine.set(gpu0__field__230=1)
        await told_so(told, [("gpu-wants-reset", "0000:1b:00")])
        await until(lambda: source.nvml.pid is None)
        machine.set(gpu0__field__230=0)
        await told_so(told, [])
        await asyncio.sleep(0.1)
        assert source.nvml.pid is not None


async def test_while_it_hangs_nothing_is_told_as_seen(machine: Machine, tmp_path: Path) -> None:  # noqa: F811
    machine.set(hang__nvmlDeviceGetUUID=1)
    at = place(machine, tmp_path)
    told = Told()
    source = GpuSource(at, builtin(), told.facts.append, Patience(0.2, 2.0, 0.2, 0.05, 0.1))
    task = asyncio.create_task(source.run())
    await until(lambda: sum(isinstance(fact, CannotLook) for fact in told.facts) >= 3)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert [type(fact) for fact in told.facts[:4]] == [Observed, CannotLook, CannotLook, CannotLook]


async def test_a_gpu_that_left_while_the_agent_was_down_is_missed(machine: Machine, tmp_path: Path) -> None:  # noqa: F811
    kept = tmp_path / "state" / nvml.FILE
    async with running(place(machine, tmp_path)) as (told, _):
        await until(kept.exists)
    gpus.write_state(machine.state, gpus.healthy(COUNT - 1))
    async with running(place(machine, tmp_path)) as (told, source):
        await told_so(told, [])
        view = source._view
        assert {sign.sign for sign in view.shown} == {"missing"}, "it waits for a second look"
    async with running(place(machine, tmp_path, boot_id="boot-2")) as (told, source):
        await told_so(told, [])
        assert source._view.shown == (), "another boot may have other devices"


async def test_with_auto_nothing_is_told_before_there_is_a_driver(machine: Machine, tmp_path: Path) -> None:  # noqa: F811
    library, away = machine.root / gpus.LIBRARY, machine.root / "away"
    library.rename(away)
    async with running(place(machine, tmp_path, wait_for_driver=True)) as (told, _):
        await asyncio.sleep(0.3)
        assert told.facts == []
        away.rename(library)
        await told_so(told, [])


async def test_a_loaded_driver_whose_library_is_nowhere_is_said_with_the_value_to_set(tmp_path: Path) -> None:
    sign = tmp_path / "nvidiactl"
    sign.touch()
    at = GpuPlace(tmp_path / "root", tmp_path / "state", "boot-1", wait_for_driver=True, signs=(sign,))
    async with running(at) as (told, _):
        await until(lambda: "RLGUARD_AGENT_DRIVER_ROOT" in told.reason())
    assert told.codes() is None


async def test_a_driver_without_gpus_is_blind_and_not_healthy(machine: Machine, tmp_path: Path) -> None:  # noqa: F811
    gpus.write_state(machine.state, {"count": "0"})
    async with running(place(machine, tmp_path)) as (told, _):
        await until(lambda: "shows no GPU" in told.reason())
        assert told.codes() is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [("", ("auto", None)), ("auto", ("auto", None)), ("on", ("on", None)), ("off", ("off", None)), ("8", ("on", 8))],
)
def test_the_setting_says_whether_and_how_many(value: str, expected: tuple[str, int | None]) -> None:
    settings = read_settings({**ENVIRONMENT, "RLGUARD_AGENT_GPUS": value})
    assert (settings.gpus, settings.expected_gpus) == expected
    assert settings.driver_root == Path("/")


@pytest.mark.parametrize("value", ["0", "65", "yes", "-1", "8.0", "\u0663"])
def test_a_setting_that_is_none_is_refused(value: str) -> None:
    with pytest.raises(BadConfigError, match="RLGUARD_AGENT_GPUS"):
        read_settings({**ENVIRONMENT, "RLGUARD_AGENT_GPUS": value})


async def test_in_the_agent_a_hung_driver_delays_no_kernel_line(world: Any, machine: Machine) -> None:  # noqa: F811
    await world.start(
        RLGUARD_AGENT_GPUS=str(COUNT),
        RLGUARD_AGENT_DRIVER_ROOT=str(machine.root),
        RLGUARD_NVML_STATE=str(machine.state),
    )
    async with linked(world) as sidecar:
        await until(lambda: sidecar.verdict() is Verdict.HEALTHY)
        gpus.change(machine.state, {"device.1.remap.pending": 1, "xid.1": "0 13"})
        await until(lambda: sorted(sidecar.codes()) == ["gpu-remap-pending", "xid-13"])
        assert sidecar.verdict() is Verdict.DEGRADED
        machine.set(hang__nvmlEventSetWait_v2=1, hang__nvmlDeviceGetUUID=1)
        await asyncio.sleep(1.0)
        world.kernel.write(XID)
        await until(lambda: "xid-79" in sidecar.codes(), 0.5)
        await until(lambda: "nvml-hung" in sidecar.codes())
        machine.set(hang__nvmlEventSetWait_v2=None, hang__nvmlDeviceGetUUID=None)
        await until(lambda: "nvml-hung" not in sidecar.codes())


async def test_in_the_agent_a_gap_in_the_kernel_log_is_followed_by_a_look(world: Any, machine: Machine) -> None:  # noqa: F811
    await world.start(
        RLGUARD_AGENT_GPUS="on", RLGUARD_AGENT_DRIVER_ROOT=str(machine.root), RLGUARD_NVML_STATE=str(machine.state)
    )
    async with linked(world) as sidecar:
        world.kernel.write("first")
        await until(lambda: sidecar.verdict() is Verdict.HEALTHY)
        machine.set(gpu2__lost=1)
        world.kernel.write("after a gap", sequence=500)
        await until(lambda: "gpu-lost" in sidecar.codes(), 2.0)
