"""`rlguard node check` on machines of every kind: real libraries, trees, sockets and children, each broken once."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from conftest import KernelLog
from fakecloud import FakeCloud, serving
from gpukit import COUNT, Machine, machine  # noqa: F401 - a fixture

from rlguard.health import once
from rlguard.health.assess import Source
from rlguard.health.catalogue import builtin
from rlguard.health.described import with_every_code
from rlguard.io import kmsg
from rlguard.io.clock import boottime
from rlguard.model import Verdict
from rlguard_chaos import check as checking
from rlguard_chaos.check import Checked, State, Wanted, check
from rlguard_chaos.cli_check import told
from rlguard_chaos.lab import gpus, ports

XID = "NVRM: Xid (PCI:0000:2b:00): 79, pid=1, GPU has fallen off the bus."
OOM = "Killed process 4242, UID 0, (python) total-vm:1kB, anon-rss:1kB, file-rss:0kB"
MOUNT = "36 35 0:99 / {point} rw - nfs4 server:/export rw\n"
HANGS = "import sys, time; sys.stdin.readline(); time.sleep(600)"
STATES_OF = {"ok", "not-here", "not-asked", "cannot-look"}


class Here:
    """A machine without anything but a kernel log; what it has is added to `wanted`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kernel = KernelLog(folder / "kmsg.sock")
        self.kernel.write("Linux is here")
        (folder / "mounts").write_text("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n")
        (folder / "sys/class").mkdir(parents=True)
        self.wanted = Wanted(kmsg=self.kernel.place, sysfs=folder / "sys", mounts=folder / "mounts", within=8.0)

    def want(self, **changes: Any) -> None:
        """Look at this, too."""
        self.wanted = dataclasses.replace(self.wanted, **changes)

    def add_ports(self, count: int = 2) -> Path:
        """RDMA ports; returns their tree."""
        ports.lay_out(self.folder / "sys", count)
        return self.folder / "sys"

    def add_mount(self, point: Path | str = "/") -> None:
        """A shared file system."""
        (self.folder / "mounts").write_text(MOUNT.format(point=point))

    async def check(self) -> Checked:
        """Look."""
        return await check(self.wanted, builtin(), lambda _: None)


@pytest.fixture
async def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Here]:
    monkeypatch.setattr(checking, "has_driver", lambda _: False)
    made = Here(tmp_path)
    yield made
    made.kernel.close()


def states(checked: Checked) -> dict[Source, State]:
    return {one.source: one.state for one in checked.looked}


def detail(checked: Checked, source: Source) -> str:
    return next(one.detail for one in checked.looked if one.source is source)


def faults(checked: Checked) -> dict[str, str]:
    return {notice.code: notice.severity.value for notice in checked.assessment.report.notices}


def verdict(checked: Checked) -> Verdict:
    return checked.assessment.report.verdict


async def test_a_machine_with_nothing_but_a_kernel_is_healthy_and_what_it_lacks_is_not_unknown(here: Here) -> None:
    checked = await here.check()
    assert verdict(checked) is Verdict.HEALTHY
    assert states(checked) == {
        Source.KERNEL: State.OK,
        Source.GPU: State.NOT_HERE,
        Source.RDMA: State.NOT_HERE,
        Source.STORAGE: State.NOT_HERE,
        Source.METADATA: State.NOT_ASKED,
    }


async def test_a_whole_machine_that_is_well_is_healthy(here: Here, machine: Machine) -> None:  # noqa: F811 - the fixture
    here.add_ports()
    here.add_mount()
    here.want(driver_root=machine.root, gpus=COUNT)
    async with serving(FakeCloud()) as cloud:
        here.want(cloud="tencent", metadata=(cloud.url,))
        checked = await here.check()
    assert set(states(checked).values()) == {State.OK}, checked.looked
    assert (verdict(checked), faults(checked)) == (Verdict.HEALTHY, {})
    assert detail(checked, Source.GPU) == "4 GPUs"
    assert detail(checked, Source.RDMA) == "2 of 2 ports carry traffic"


async def test_a_fatal_line_of_the_kernel_condemns_the_machine(here: Here) -> None:
    here.kernel.write(XID)
    checked = await here.check()
    assert (verdict(checked), faults(checked)) == (Verdict.LOST, {"xid-79": "fatal"})


async def test_a_line_that_user_space_wrote_is_not_believed_nor_is_one_without_a_head(here: Here) -> None:
    here.kernel.send(f"12,1,1,-;{XID}\n".encode())
    here.kernel.send(XID.encode())
    assert faults(await here.check()) == {}


async def test_what_ends_by_itself_is_over_by_the_log_s_own_times(here: Here) -> None:
    now = int(boottime() * 1e6)
    here.kernel.send(f"4,1,{now - 1_000_000},-;{OOM}\n".encode())
    recent = faults(await here.check())
    here.kernel.packets[-1] = f"4,1,1,-;{OOM}\n".encode()
    assert set(recent) - set(faults(await here.check())) == {"oom-kill"}


async def test_a_log_whose_beginning_is_gone_says_so_and_one_that_broke_off_is_unknown(here: Here) -> None:
    here.kernel.packets[:] = [b"4,70,1,-;x\n"]
    checked = await here.check()
    assert verdict(checked) is Verdict.HEALTHY
    assert "older lines are gone" in detail(checked, Source.KERNEL)
    here.kernel.packets[:] = [b"4,70,1,-;x\n", b"EPIPE", b"4,90,1,-;x\n"]
    assert verdict(await here.check()) is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("error", "words"),
    [(PermissionError(1, "no"), "as root"), (FileNotFoundError(2, "no"), "is not there"), (OSError(5, "no"), "replay")],
)
async def test_a_log_that_cannot_be_read_is_unknown_and_says_what_to_do(
    here: Here, monkeypatch: pytest.MonkeyPatch, error: OSError, words: str
) -> None:
    def refuse(_: str) -> None:
        raise error

    monkeypatch.setattr(kmsg, "DeviceLog", refuse)
    here.want(kmsg="/dev/kmsg")
    checked = await here.check()
    assert (verdict(checked), states(checked)[Source.KERNEL]) == (Verdict.UNKNOWN, State.CANNOT_LOOK)
    assert words in detail(checked, Source.KERNEL)


@pytest.mark.parametrize("content", ["", XID + "\n", "4,1,1,-;x\n"])
async def test_a_saved_log_is_no_kernel_log(here: Here, content: str) -> None:
    saved = here.folder / "saved"
    saved.write_text(content)
    here.want(kmsg=str(saved))
    checked = await here.check()
    assert verdict(checked) is Verdict.UNKNOWN
    assert "rlguard node replay" in detail(checked, Source.KERNEL)


async def test_a_log_into_which_lines_keep_coming_is_read_as_far_as_it_goes(here: Here) -> None:
    async def storm() -> None:
        for number in range(1, 10_000):
            here.kernel.send(f"4,{number},1,-;{XID}\n".encode())
            await asyncio.sleep(0.01)

    storming, before = asyncio.create_task(storm()), boottime()
    checked = await here.check()
    storming.cancel()
    assert boottime() - before < 5.0
    assert (verdict(checked), states(checked)[Source.KERNEL]) == (Verdict.LOST, State.OK)


async def test_of_a_log_that_is_faster_than_its_reader_what_was_read_counts_and_the_rest_is_unknown(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Flood:
        def __init__(self, text: str) -> None:
            self.text, self.number = text, 0

        def fileno(self) -> int:
            return 0

        def read(self) -> bytes:
            self.number += 1
            return f"4,{self.number},1,-;{self.text}\n".encode()

        def close(self) -> None:
            return

    async def opened(place: str) -> Flood:
        return Flood(place)

    monkeypatch.setattr(checking, "open_log", opened)
    monkeypatch.setattr(once, "MOST_TELLING", 1000)
    here.want(kmsg="quiet", within=0.3)
    checked = await here.check()
    assert (verdict(checked), states(checked)[Source.KERNEL]) == (Verdict.UNKNOWN, State.CANNOT_LOOK)
    here.want(kmsg=XID)
    assert verdict(await here.check()) is Verdict.LOST


async def test_what_a_gpu_shows_is_told(here: Here, machine: Machine) -> None:  # noqa: F811 - the fixture
    gpus.change(machine.state, {"device.1.field.230": 1, "device.2.fabric.status": 999})
    here.want(driver_root=machine.root)
    checked = await here.check()
    assert verdict(checked) is Verdict.LOST
    assert faults(checked)["gpu-wants-reset"] == "fatal"


async def test_what_must_last_to_count_is_a_warning_at_one_look(here: Here, machine: Machine) -> None:  # noqa: F811 - the fixture
    gpus.change(machine.state, {"device.2.fabric.status": 999})
    here.want(driver_root=machine.root)
    checked = await here.check()
    assert (verdict(checked), faults(checked)) == (Verdict.DEGRADED, {"gpu-fabric-failed": "warning"})
    assert "one look" in checked.assessment.report.notices[0].detail


async def test_too_few_gpus_are_lost(here: Here, machine: Machine) -> None:  # noqa: F811 - the fixture
    here.want(driver_root=machine.root, gpus=COUNT + 1)
    assert (await here.check()).assessment.report.verdict is Verdict.LOST


async def test_a_driver_that_hangs_is_told_in_time_and_the_rest_is_looked_at(
    here: Here,
    machine: Machine,  # noqa: F811 - the fixture
) -> None:
    gpus.change(machine.state, {"hang.nvmlInitWithFlags": 60})
    here.add_ports()
    here.want(driver_root=machine.root, within=1.0)
    before = boottime()
    checked = await here.check()
    assert boottime() - before < 6.0
    assert (verdict(checked), faults(checked)) == (Verdict.UNKNOWN, {"nvml-hung": "warning"})
    assert states(checked)[Source.RDMA] is State.OK
    assert "did not answer" in detail(checked, Source.GPU)


async def test_a_driver_asked_for_that_is_not_there_is_unknown(here: Here) -> None:
    here.want(driver_root=here.folder)
    checked = await here.check()
    assert verdict(checked) is Verdict.UNKNOWN
    assert "--driver-root" in detail(checked, Source.GPU)


async def test_a_driver_without_gpus_is_unknown(here: Here, machine: Machine) -> None:  # noqa: F811 - the fixture
    gpus.change(machine.state, {"count": 0})
    here.want(driver_root=machine.root)
    assert verdict(await here.check()) is Verdict.UNKNOWN


async def test_a_port_that_is_down_is_a_warning_and_too_few_ports_are_lost(here: Here) -> None:
    tree = here.add_ports()
    ports.set_port(tree, 1, up=False)
    checked = await here.check()
    assert (verdict(checked), faults(checked)) == (Verdict.DEGRADED, {"rdma-port-down": "warning"})
    here.want(expected=dataclasses.replace(here.wanted.expected, ports=2))
    checked = await here.check()
    assert verdict(checked) is Verdict.LOST
    assert faults(checked) == {"rdma-ports-missing": "fatal", "rdma-port-down": "warning"}


async def test_a_slow_port_is_no_port_where_a_rate_is_asked_for(here: Here) -> None:
    tree = here.add_ports()
    ports.set_rate(tree, 0, 200)
    here.want(expected=dataclasses.replace(here.wanted.expected, ports=2, rate=400.0))
    assert faults(await here.check()) == {"rdma-ports-missing": "fatal", "rdma-rate-low": "warning"}


async def test_half_a_bond_is_a_warning(here: Here) -> None:
    ports.set_link(here.add_ports(), "eth1", up=False)
    assert faults(await here.check()) == {"rdma-bond-degraded": "warning"}


async def test_ports_asked_for_where_there_are_none_are_lost_and_a_tree_that_is_not_there_is_unknown(
    here: Here,
) -> None:
    here.want(expected=dataclasses.replace(here.wanted.expected, ports=2))
    assert faults(await here.check()) == {"rdma-ports-missing": "fatal"}
    here.want(sysfs=here.folder / "nowhere")
    checked = await here.check()
    assert verdict(checked) is Verdict.UNKNOWN
    assert "--sysfs" in detail(checked, Source.RDMA)


async def test_a_card_that_hangs_is_unknown_in_time(here: Here) -> None:
    state = here.add_ports() / "class/infiniband/mlx5_bond_0/ports/1/state"
    state.unlink()
    os.mkfifo(state)
    here.want(within=1.0)
    before = boottime()
    checked = await here.check()
    assert boottime() - before < 6.0
    assert verdict(checked) is Verdict.UNKNOWN
    assert "mlx5_bond_0" in detail(checked, Source.RDMA)


async def test_a_mount_that_hangs_is_told_in_time(here: Here) -> None:
    here.add_mount("/mnt/cfs")
    here.want(within=1.0, probe=(sys.executable, "-c", HANGS))
    checked = await here.check()
    assert (verdict(checked), faults(checked)) == (Verdict.DEGRADED, {"storage-hung": "warning"})
    assert "mounted at /mnt/cfs" in checked.assessment.report.notices[0].detail


async def test_a_mount_that_cannot_be_judged_is_unknown(here: Here) -> None:
    here.add_mount()
    here.want(probe=(sys.executable, "-c", "print('nonsense')"))
    assert verdict(await here.check()) is Verdict.UNKNOWN


async def test_a_cloud_that_takes_the_machine_back_is_told_with_the_time_left(here: Here) -> None:
    soon = (datetime.now(UTC) + timedelta(hours=8, seconds=100)).strftime("%Y-%m-%d %H:%M:%S")
    async with serving(FakeCloud(answers={"/latest/meta-data/spot/termination-time": (200, soon)})) as cloud:
        here.want(cloud="tencent", metadata=(cloud.url,))
        checked = await here.check()
    assert verdict(checked) is Verdict.LEAVING, checked.looked
    (fault,) = told(checked, with_every_code(builtin()))["faults"]
    assert fault["code"] == "spot-reclaim"
    assert 80 < fault["seconds_left"] <= 100


async def test_a_cloud_that_does_not_answer_is_unknown_and_one_that_nobody_knows_is_not_here(here: Here) -> None:
    here.want(cloud="tencent", metadata=("http://127.0.0.1:9",))
    checked = await here.check()
    assert verdict(checked) is Verdict.UNKNOWN
    assert "--cloud" in detail(checked, Source.METADATA)
    here.want(cloud="auto")
    assert states(await here.check())[Source.METADATA] is State.NOT_HERE


async def command(here: Here, *words: str) -> tuple[int | None, str, str]:
    arguments = ("--kmsg", here.kernel.place, "--sysfs", str(here.wanted.sysfs), "--mounts", str(here.wanted.mounts))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "rlguard_chaos",
        *("node", "check", *arguments, *words),
        env={**os.environ, "COLUMNS": "80"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_the_json_is_one_object_of_a_form_that_stays(here: Here, machine: Machine) -> None:  # noqa: F811 - the fixture
    here.kernel.write(XID)
    status, out, err = await command(here, "--json", "--driver-root", str(machine.root))
    assert (status, err, out.count("\n")) == (1, "", 1)
    value = json.loads(out)
    assert list(value) == ["format", "verdict", "means", "sources", "faults"]
    assert (value["format"], value["verdict"]) == (1, "lost")
    assert [list(source) for source in value["sources"]] == [["source", "state", "detail"]] * 5
    assert [source["source"] for source in value["sources"]] == ["kernel-log", "nvml", "rdma", "storage", "metadata"]
    assert {source["state"] for source in value["sources"]} <= STATES_OF
    (fault,) = value["faults"]
    assert {key: fault[key] for key in fault if key not in ("detail", "meaning")} == {
        "code": "xid-79",
        "device": "0000:2b:00",
        "severity": "fatal",
        "scope": "gpu",
        "repair": "reboot",
        "to_do": "reboot the node",
        "seconds_left": None,
    }
    assert all(fault[key] for key in ("detail", "meaning"))


async def test_people_get_what_was_looked_at_each_fault_and_the_verdict_in_80_columns(here: Here) -> None:
    here.kernel.write(XID)
    here.kernel.write("NVRM: Xid (PCI:0000:2b:00): 13, [/bold][red] x")
    status, out, _ = await command(here, "--rdma-ports", "2")
    assert status == 1
    for words in ("kernel log", "RDMA ports", "xid-79", "0000:2b:00", "reboot the node"):
        assert words in out
    assert "rlguard node explain xid-79" in out
    assert out.splitlines()[-1] == "lost: no job should run here before it is repaired"
    assert max(map(len, out.splitlines())) <= 80


async def test_a_lost_machine_with_a_blind_source_says_both(here: Here) -> None:
    here.kernel.write(XID)
    status, out, _ = await command(here, "--driver-root", "/nowhere")
    assert status == 1
    assert " ".join(out.split()).endswith("lost: no job should run here before it is repaired; not looked at: GPUs")


@pytest.mark.parametrize(
    ("words", "status"),
    [(("--driver-root", "/nowhere"), 3), (("--gpus", "x"), 2), (("--within", "0"), 2), (("--metadata", "http://x"), 2)],
)
async def test_the_exit_status_says_it_too(here: Here, words: tuple[str, ...], status: int) -> None:
    assert (await command(here, *words))[0] == status


async def test_every_code_of_a_look_can_be_explained() -> None:
    rows = with_every_code(builtin()).rows
    for code in ("xid-79", "gpu-fabric-failed", "nvml-hung", "rdma-port-down", "storage-hung", "spot-reclaim"):
        assert rows[code].meaning
