"""NVML read in its child process, through nvidia-ml-py, from the lab's stand-in library."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pynvml
import pytest
from gpukit import COUNT, Machine, machine  # noqa: F401 - a fixture
from waiting import until

from rlguard.health.gpu.snapshot import Hung, Look, Refused, Snapshot, Unreadable, XidEvent
from rlguard.io.nvml import Events, Nvml, Patience
from rlguard.io.nvmlchild import MOST_EVENTS
from rlguard_chaos.lab import gpus

QUICK = Patience(answer=5.0, first=20.0, reap=5.0, pause=0.05, longest_pause=0.1)
SHORT = Patience(answer=0.3, first=20.0, reap=5.0, pause=0.05, longest_pause=0.1)
CODES = sorted(value for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_"))
WHOLE_DRIVER = {1, 9, 18}
GONE = {15, 16}
DEVICE_CALLS = (
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetTotalEccErrors",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetRowRemapperHistogram",
    "nvmlDeviceGetRetiredPagesPendingStatus",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetTemperatureThreshold",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetGpuFabricInfoV",
)


@pytest.fixture
async def nvml(machine: Machine) -> AsyncIterator[Nvml]:  # noqa: F811 - the fixture
    reader = Nvml(machine.root, QUICK)
    yield reader
    await reader.close()


def seen(look: Look) -> Snapshot:
    assert isinstance(look, Snapshot), look
    return look


def why(look: Look | Events) -> str:
    assert isinstance(look, Unreadable), look
    return look.reason


async def test_healthy_gpus_are_seen_with_everything_they_tell(nvml: Nvml) -> None:
    snapshot = seen(await nvml.look())
    assert (len(snapshot.gpus), snapshot.driver) == (COUNT, "550.54.15")
    gpu = snapshot.gpus[1]
    assert (gpu.index, gpu.pci, gpu.minor, gpu.action) == (1, "0000:2b:00", 1, 0)
    assert (gpu.uuid, gpu.serial, gpu.name) == (
        "GPU-00000000-0000-4000-8000-000000000001",
        "1650000000001",
        "NVIDIA H800",
    )
    assert (gpu.links, gpu.link_errors) == ((True,) * gpus.LINKS, 0)
    assert (gpu.heat.temperature, gpu.heat.slowdown_at, gpu.heat.watts, gpu.heat.reasons) == (41, 87, 70.0, 0)


async def test_what_changes_in_the_machine_shows_at_the_next_look(nvml: Nvml, machine: Machine) -> None:  # noqa: F811
    seen(await nvml.look())
    gpus.change(
        machine.state,
        {
            "device.0.ecc.volatile.corrected": 1,
            "device.0.ecc.volatile.uncorrected": 2,
            "device.0.ecc.aggregate.corrected": 3,
            "device.0.ecc.aggregate.uncorrected": 4,
            "device.0.remap.corrected": 5,
            "device.0.remap.uncorrected": 6,
            "device.0.remap.pending": 1,
            "device.0.remap.failure": 1,
            "device.0.banks.low": 7,
            "device.0.banks.none": 8,
            "device.0.pages.pending": 1,
            "device.0.throttle": "0x88",
            "device.0.fabric.status": 23,
            "device.0.fabric.health": "0x10",
            "device.0.link.3": 0,
            "device.0.field.52": 9,
            "device.0.field.59": 1,
            "device.0.field.230": 4,
        },
    )
    gpu = seen(await nvml.look()).gpus[0]
    ecc, rows, fabric = gpu.ecc, gpu.rows, gpu.fabric
    assert (ecc.corrected, ecc.uncorrected, ecc.lifetime_corrected, ecc.lifetime_uncorrected) == (1, 2, 3, 4)
    assert (rows.corrected, rows.uncorrected, rows.pending, rows.failed) == (5, 6, True, True)
    assert (rows.banks_low, rows.banks_exhausted, rows.pages_pending) == (7, 8, True)
    assert (fabric.state, fabric.status, fabric.health) == (3, 23, 0x10)
    assert (gpu.heat.reasons, gpu.links[3], gpu.link_errors, gpu.action) == (0x88, False, 10, 4)


async def test_what_a_driver_does_not_tell_is_none(nvml: Nvml, machine: Machine) -> None:  # noqa: F811
    gpus.write_state(machine.state, {"count": "1", "device.0.pci": "00000018:01:00.0"})
    (gpu,) = seen(await nvml.look()).gpus
    assert gpu.pci == "0018:01:00"
    assert (gpu.uuid, gpu.ecc.corrected, gpu.rows.pending, gpu.heat.watts, gpu.fabric.state) == (None,) * 5
    assert (gpu.links, gpu.link_errors, gpu.action) == ((), None, None)
    assert {refused.code for refused in gpu.refused} <= {2, 3}


async def test_a_figure_no_one_can_mean_is_none(nvml: Nvml, machine: Machine) -> None:  # noqa: F811
    machine.set(gpu0__ecc__volatile__corrected=2**64 - 1)
    assert seen(await nvml.look()).gpus[0].ecc.corrected is None


async def test_a_lost_gpu_is_asked_once_and_the_others_go_on(nvml: Nvml, machine: Machine) -> None:  # noqa: F811
    machine.set(gpu2__lost=1)
    snapshot = seen(await nvml.look())
    assert snapshot.gpus[2].refused == (Refused("nvmlDeviceGetHandleByIndex", 15),)
    assert [gpu.pci for gpu in snapshot.gpus] == ["0000:1b:00", "0000:2b:00", None, "0000:4b:00"]


@pytest.mark.parametrize("call", DEVICE_CALLS)
async def test_every_code_of_every_call_is_noted_and_none_blinds_the_rest(
    call: str,
    nvml: Nvml,
    machine: Machine,  # noqa: F811
) -> None:
    for code in CODES:
        gpus.write_state(machine.state, gpus.healthy(2) | {f"device.1.error.{call}": str(code)})
        look = await nvml.look()
        if code in WHOLE_DRIVER:
            assert f"(code {code})" in why(look)
            continue
        snapshot = seen(look)
        assert code in {refused.code for refused in snapshot.gpus[1].refused}
        assert snapshot.gpus[0].action == 0
        if code in GONE:
            assert snapshot.gpus[1].refused[-1].code == code, "asked on"


@pytest.mark.parametrize("call", ["nvmlInitWithFlags", "nvmlDeviceGetCount_v2"])
async def test_every_code_of_the_driver_as_a_whole_is_said_in_words(
    call: str,
    nvml: Nvml,
    machine: Machine,  # noqa: F811
) -> None:
    for code in CODES:
        machine.set(**{f"error.{call}": code})
        assert f"(code {code})" in why(await nvml.look(fresh=True))
        machine.set(**{f"error.{call}": None})
        assert len(seen(await nvml.look()).gpus) == COUNT


async def test_absent_library_absent_driver_and_a_mismatch_are_told_apart(nvml: Nvml, machine: Machine) -> None:  # noqa: F811
    absent = Nvml(machine.root / "nowhere", QUICK)
    library = why(await absent.look())
    await absent.close()
    assert "no libnvidia-ml.so.1 under" in library
    assert "RLGUARD_AGENT_DRIVER_ROOT" in library
    assert "agent.runtimeClassName" in library
    machine.state.unlink()
    assert "driver is not loaded" in why(await nvml.look())
    gpus.write_state(machine.state, {"error.nvmlInitWithFlags": "18"})
    assert "different versions" in why(await nvml.look())
    gpus.write_state(machine.state, {"error.nvmlInitWithFlags": "4"})
    assert "privileged" in why(await nvml.look())


async def test_a_library_that_is_none_is_said(tmp_path: Path) -> None:
    (tmp_path / gpus.LIBRARY).write_text("no library")
    nvml = Nvml(tmp_path, QUICK)
    assert "cannot be loaded" in why(await nvml.look())
    (tmp_path / gpus.LIBRARY).unlink()
    assert "no libnvidia-ml.so.1 under" in why(await nvml.look())
    await nvml.close()


async def test_no_gpus_are_seen_as_none(nvml: Nvml, machine: Machine) -> None:  # noqa: F811
    gpus.write_state(machine.state, {"count": "0"})
    assert seen(await nvml.look()).gpus == ()


async def test_the_number_of_gpus_may_change_both_ways(nvml: Nvml, machine: Machine) -> None:  # noqa: F811
    for count in (COUNT, 3, 8, 1):
        gpus.write_state(machine.state, gpus.healthy(count))
        assert len(seen(await nvml.look(fresh=True)).gpus) == count


async def test_a_call_that_hangs_costs_its_child_and_nothing_else(machine: Machine) -> None:  # noqa: F811
    nvml = Nvml(machine.root, SHORT)
    seen(await nvml.look())
    first = nvml.pid
    machine.set(hang__nvmlDeviceGetUUID=1)
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.01)
            turns += 1

    turning = asyncio.create_task(turn())
    assert await nvml.look() == Hung(0.3)
    assert turns > 10, "the event loop stood still"
    turning.cancel()
    assert first is not None
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    machine.set(hang__nvmlDeviceGetUUID=None)
    assert len(seen(await nvml.look()).gpus) == COUNT
    assert nvml.pid not in (None, first)
    await nvml.close()


async def test_a_driver_that_hangs_from_the_start_is_given_longer(machine: Machine) -> None:  # noqa: F811
    machine.set(hang__nvmlInitWithFlags=1)
    nvml = Nvml(machine.root, Patience(answer=0.05, first=1.0, reap=0.2, pause=0.05))
    assert await nvml.look() == Hung(1.0)
    await nvml.close()


async def test_of_children_that_cannot_be_killed_there_are_two_at_most(
    machine: Machine,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when the kernel holds them inside the driver, in state D."""
    started: list[int] = []
    real = asyncio.create_subprocess_exec

    async def start(*command: str, **options: Any) -> Process:
        child = await real(*command, **options)
        started.append(child.pid)
        return child

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    monkeypatch.setattr(Process, "kill", lambda _: None)
    machine.set(hang__nvmlInitWithFlags=1)
    nvml = Nvml(machine.root, Patience(answer=0.1, first=0.5, reap=0.05, pause=0.01, longest_pause=0.02))
    for _ in range(4):
        assert isinstance(await nvml.look(), Hung)
    assert (len(started), nvml.stuck) == (2, 2)
    for pid in started:
        os.kill(pid, signal.SIGKILL)
    await until(lambda: not nvml.stuck)
    machine.set(hang__nvmlInitWithFlags=None)
    monkeypatch.undo()
    monkeypatch.setenv("RLGUARD_NVML_STATE", str(machine.state))
    nvml._patience = QUICK
    assert len(seen(await nvml.look()).gpus) == COUNT
    await nvml.close()


async def test_an_xid_is_told_as_it_happens_once_and_with_the_address_of_a_gpu_that_is_lost(
    nvml: Nvml,
    machine: Machine,  # noqa: F811
) -> None:
    gpus.tell_xid(machine.state, 0, 13)
    seen(await nvml.look())
    waiting = asyncio.create_task(nvml.events(10))
    await asyncio.sleep(0.1)
    machine.set(gpu2__lost=1)
    gpus.tell_xid(machine.state, 2, 79)
    assert await waiting == Events((XidEvent("0000:3b:00", 79),), waited=True)
    gpus.change(machine.state, {"xid.3": "1 63", "xid.4": "1 64"})
    assert await nvml.events(10) == Events((XidEvent("0000:2b:00", 63), XidEvent("0000:2b:00", 64)), waited=True)
    assert await nvml.events(0) == Events((), waited=True)


@pytest.mark.parametrize("call", ["nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2"])
async def test_a_driver_without_events_is_not_waited_for(call: str, nvml: Nvml, machine: Machine) -> None:  # noqa: F811
    machine.set(**{f"error.{call}": 3})
    assert await nvml.events(10) == Events((), waited=False)
    assert len(seen(await nvml.look()).gpus) == COUNT


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("import sys; sys.exit(3)", "died (exit status 3)"),
        ("import os; os.kill(os.getpid(), 11)", "died (exit status -11)"),
        ("print('what?')", "no JSON"),
        ("print('[]')", "no JSON"),
        ("print('{}')", "no snapshot"),
        ('print(\'{"snapshot": {"gpus": 3}}\')', "no snapshot"),
        ("print('x' * (1 << 23))", "talked to"),
    ],
)
async def test_a_child_that_answers_nonsense_or_dies_is_said(program: str, words: str, tmp_path: Path) -> None:
    nvml = Nvml(tmp_path, QUICK, (sys.executable, "-c", program))
    assert words in why(await nvml.look())
    await nvml.close()


async def test_the_exit_status_of_a_child_that_ends_slowly_is_not_lost(tmp_path: Path) -> None:
    """Its pipe closes some time before it is gone."""
    program = "import os, time; os.close(1); time.sleep(0.3); os._exit(3)"
    nvml = Nvml(tmp_path, QUICK, (sys.executable, "-c", program))
    assert "died (exit status 3)" in why(await nvml.look())
    await nvml.close()


async def test_a_child_that_cannot_be_started_is_said(tmp_path: Path) -> None:
    nvml = Nvml(tmp_path, QUICK, (str(tmp_path / "nothing"),))
    assert "cannot be started" in why(await nvml.look())
    await nvml.close()


async def test_the_child_is_small(nvml: Nvml) -> None:
    await nvml.look()
    assert nvml.pid is not None
    assert resident_kilobytes(nvml.pid) < 40_000


def resident_kilobytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


async def test_a_machine_that_stood_still_is_no_driver_that_hangs(machine: Machine) -> None:  # noqa: F811
    nvml = Nvml(machine.root, Patience(answer=2.0, first=20.0))
    seen(await nvml.look())
    waiting = asyncio.create_task(nvml.events(0.5))
    await asyncio.sleep(0.05)
    assert nvml.pid is not None
    os.kill(nvml.pid, signal.SIGSTOP)
    time.sleep(4.0)  # noqa: ASYNC251 - this process stands still as well
    os.kill(nvml.pid, signal.SIGCONT)
    assert await waiting == Events((), waited=True)
    await nvml.close()


async def test_a_library_that_does_not_fit_the_driver_is_loaded_anew_by_another_child(
    nvml: Nvml,
    machine: Machine,  # noqa: F811
) -> None:
    seen(await nvml.look())
    machine.set(error__nvmlInitWithFlags=18)
    assert "different versions" in why(await nvml.look(fresh=True))
    assert nvml.pid is None


async def test_a_look_that_succeeds_ends_the_pauses_between_children(nvml: Nvml, machine: Machine) -> None:  # noqa: F811
    machine.set(error__nvmlInitWithFlags=18)
    for _ in range(3):
        why(await nvml.look())
    assert nvml._failures == 3
    machine.set(error__nvmlInitWithFlags=None)
    seen(await nvml.look())
    assert nvml._failures == 0


async def test_a_storm_of_xids_is_told_in_parts(nvml: Nvml, machine: Machine) -> None:  # noqa: F811
    seen(await nvml.look())
    gpus.change(machine.state, {f"xid.{number}": "1 63" for number in range(1, MOST_EVENTS + 4)})
    parts = [await nvml.events(10), await nvml.events(10)]
    assert [len(part.events) for part in parts if isinstance(part, Events)] == [MOST_EVENTS, 3]
