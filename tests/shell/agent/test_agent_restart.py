"""The real agent process, started again while something is wrong: nothing is taken back that still stands."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from gpukit import Machine, machine  # noqa: F401 - a fixture
from test_agent import linked
from waiting import until

from rlguard.model import Verdict
from rlguard_chaos.lab import gpus, ports

GPU, PORT = "gpu-lost", "rdma-port-down"


def with_gpus(machine: Machine, mode: str) -> dict[str, str]:  # noqa: F811 - the fixture
    """The agent's settings for these GPUs."""
    return {
        "RLGUARD_AGENT_GPUS": mode,
        "RLGUARD_AGENT_DRIVER_ROOT": str(machine.root),
        "RLGUARD_NVML_STATE": str(machine.state),
    }


def kept(world: Any, code: str) -> bool:
    """Whether the state on disk names the fault."""
    path = Path(world.folder / "state/state.json")
    return path.exists() and code in path.read_text()


@pytest.mark.parametrize("mode", ["on", "auto"])
async def test_what_stands_at_gpus_and_ports_stands_through_restarts_without_a_moment_of_health(
    world: Any,
    machine: Machine,  # noqa: F811
    mode: str,
) -> None:
    tree = Path(world.env()["RLGUARD_AGENT_SYSFS"])
    ports.lay_out(tree)
    await world.start(**with_gpus(machine, mode))
    async with linked(world) as sidecar:
        await until(lambda: sidecar.verdict() is Verdict.HEALTHY)
        machine.set(gpu1__lost=1)
        ports.set_port(tree, 2, up=False)
        await until(lambda: {GPU, PORT} <= set(sidecar.codes()))
        await until(lambda: kept(world, GPU) and kept(world, PORT))
        await until(lambda: [c["status"] for c in world.conditions()][-1:] == ["False"])
        seen, written = len(sidecar.reports), len(world.patches)
        for pause in (0.3, 3.0):
            await world.kill()
            machine.set(hang__nvmlInitWithFlags=1)  # the driver takes its time
            await world.start(**with_gpus(machine, mode))
            await asyncio.sleep(pause)
            machine.set(hang__nvmlInitWithFlags=None)
        await until(lambda: len(sidecar.reports) > seen)
        await asyncio.sleep(1.0)
    assert all({GPU, PORT} <= {notice.code for notice in report.notices} for report in sidecar.reports[seen:])
    assert {c["status"] for c in world.conditions()[written:]} <= {"False"}


async def test_a_driver_that_is_unloaded_while_the_agent_is_down_is_no_health(world: Any, machine: Machine) -> None:  # noqa: F811
    await world.start(**with_gpus(machine, "auto"))
    async with linked(world) as sidecar:
        await until(lambda: sidecar.verdict() is Verdict.HEALTHY)
        await until((world.folder / "state/gpus.json").exists)
        await world.kill()
        (machine.root / gpus.LIBRARY).unlink()
        await world.start(**with_gpus(machine, "auto"))
        seen = len(sidecar.reports)
        await until(lambda: len(sidecar.reports) > seen)
        await asyncio.sleep(3.0)
        assert Verdict.HEALTHY not in {report.verdict for report in sidecar.reports[seen:]}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\0" * 100,
        "[" * 100_000,
        '{"boot_id": "11111111-boot"',
        '{"boot_id": "11111111-boot", "position": 1e400, "gaps": NaN, "faults": 7}',
        json.dumps({"boot_id": "11111111-boot", "position": 2**62, "gaps": 0, "faults": [], "later": {"a": [1]}}),
        json.dumps({"boot_id": "11111111-boot", "position": -5, "gaps": 0, "faults": []}),
    ],
    ids=["empty", "zeroes", "deep", "half", "numbers", "ahead of the log", "before the log"],
)
async def test_whatever_the_state_file_holds_a_fault_in_the_kernel_log_is_told(world: Any, text: str) -> None:
    (world.folder / "state").mkdir()
    (world.folder / "state/state.json").write_text(text)
    world.kernel.write("NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
    await world.start()
    async with linked(world) as sidecar:
        await until(lambda: sidecar.codes() == ["xid-79"], 15.0)


async def test_a_gap_is_no_health_until_gpus_and_ports_were_looked_at_and_health_again_then(
    world: Any,
    machine: Machine,  # noqa: F811
) -> None:
    ports.lay_out(Path(world.env()["RLGUARD_AGENT_SYSFS"]))
    await world.start(**with_gpus(machine, "on"))
    async with linked(world) as sidecar:
        world.kernel.write("first")
        await until(lambda: sidecar.verdict() is Verdict.HEALTHY)
        world.kernel.write("after a gap", sequence=500)
        await until(lambda: sidecar.verdict() is Verdict.UNKNOWN, 2.0)
        await until(lambda: sidecar.verdict() is Verdict.HEALTHY, 5.0)


async def test_one_xid_from_the_kernel_log_and_from_nvml_is_one_notice(world: Any, machine: Machine) -> None:  # noqa: F811
    await world.start(**with_gpus(machine, "on"))
    async with linked(world) as sidecar:
        await until(lambda: sidecar.verdict() is Verdict.HEALTHY)
        gpus.tell_xid(machine.state, 0, 79)
        world.kernel.write("NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.")
        await until(lambda: sidecar.verdict() is Verdict.LOST)
        await asyncio.sleep(2.0)
    assert {notice.id for report in sidecar.reports for notice in report.notices} == {"11111111/xid-79/0000:1b:00"}


async def test_a_killed_agent_leaves_no_process_behind_that_a_driver_holds(world: Any, machine: Machine) -> None:  # noqa: F811
    """One that has the GPU open would be in the way of its reset. It hears of no end of its stdin."""
    await world.start(**with_gpus(machine, "on"))
    async with linked(world) as sidecar:
        await until(lambda: sidecar.verdict() is Verdict.HEALTHY)
        machine.set(hang__nvmlEventSetWait_v2=1, hang__nvmlDeviceGetUUID=1)
        await asyncio.sleep(2.0)
        assert children(machine)
        await world.kill()
        await until(lambda: not children(machine), 5.0)


def children(machine: Machine) -> list[str]:  # noqa: F811
    """The processes that read this machine's GPUs."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_text()
        except OSError:
            continue
        if "nvmlchild" in command and str(machine.root) in command:
            found.append(folder.name)
    return found
