"""One look at this machine with every source that needs no cluster, each bounded in time, all at once."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from pathlib import Path
from typing import Final

from rlguard.health import once, storage
from rlguard.health.assess import Assessment, CloudSaid, Fact, Observed, Source, View, decide, fold
from rlguard.health.catalogue import Catalogue
from rlguard.health.clouds.providers import DMI_FILES, PROVIDERS, detect
from rlguard.health.gpu.snapshot import Hung, Unreadable
from rlguard.health.gpu.table import builtin_signs
from rlguard.health.rdma import table as rdma_table
from rlguard.health.rdma.learned import Expectation
from rlguard.health.rdma.snapshot import read_snapshot
from rlguard.health.rdma.watch import LEARN_ALL
from rlguard.health.spot import Unreadable as NoAnswer
from rlguard.io.clock import boottime
from rlguard.io.dmi import read_dmi
from rlguard.io.driver import find_library, has_driver
from rlguard.io.kmsg import Log, open_log, readable
from rlguard.io.metadata import Client, open_session
from rlguard.io.mounts import COMMAND, TABLE, MountProbe, mount_table
from rlguard.io.nvml import Nvml, Patience
from rlguard.io.rdma import has_devices
from rlguard.io.rdmaclient import CannotReadError, HungError, RdmaClient

WITHIN: Final = 10.0
"""Seconds that one look may take."""
GRACE: Final = 3.0
"""Seconds on top for ending what did not answer."""
SETTLED: Final = 0.2
SETTLES: Final = 1.0
"""A kernel log has been read when it is found empty: for the first of these seconds, or at all after the second."""
BATCH: Final = 256
"""Records read before the other looks get their turn."""
LOG_BYTES: Final = 64 << 20
"""More than any kernel's ring holds."""
MOST_PROBES: Final = 16


class State(StrEnum):
    """How a look went."""

    OK = "ok"
    NOT_HERE = "not here"
    NOT_ASKED = "not asked"
    CANNOT_LOOK = "cannot look"


@dataclass(frozen=True, slots=True)
class Looked:
    """One source: how the look went, in words what was seen or why nothing was and what to do, and its facts."""

    source: Source
    state: State
    detail: str
    facts: tuple[Fact, ...] = ()


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to look at. `driver_root` None: wherever a driver is installed; `gpus` and `expected.ports`: so many must
    be there. `cloud`: a provider's name, `auto` or `none`; `metadata`: other URLs than the provider's own.
    """

    kmsg: str = "/dev/kmsg"
    driver_root: Path | None = None
    gpus: int | None = None
    sysfs: Path = Path("/sys")
    expected: Expectation = LEARN_ALL
    mounts: Path = TABLE
    cloud: str = "none"
    metadata: tuple[str, ...] = ()
    within: float = WITHIN
    probe: tuple[str, ...] = COMMAND


@dataclass(frozen=True, slots=True)
class Checked:
    """The whole check: what was looked at, and what the core makes of it."""

    looked: tuple[Looked, ...]
    assessment: Assessment


async def check(wanted: Wanted, catalogue: Catalogue, waiting: Callable[[Collection[Source]], None]) -> Checked:
    """Look once, at everything at the same time. `waiting` hears for which sources, whenever that changes.

    The facts are all of the moment when the looks began, and so is the verdict.
    """
    now = boottime()
    looks = {
        Source.KERNEL: _kernel(wanted, catalogue, now),
        Source.GPU: _gpus(wanted, now),
        Source.RDMA: _ports(wanted, now),
        Source.STORAGE: _mounts(wanted, now),
        Source.METADATA: _cloud(wanted, now),
    }
    left = list(looks)

    async def bounded(source: Source, look: Awaitable[Looked]) -> Looked:
        looked = await _bounded(source, look, wanted.within + GRACE)
        left.remove(source)
        waiting(left)
        return looked

    waiting(left)
    looked = await asyncio.gather(*(bounded(source, look) for source, look in looks.items()))
    return Checked(tuple(looked), judge(looked, now))


def judge(looked: Sequence[Looked], now: float) -> Assessment:
    """What the agent's own core concludes from these looks."""
    here = frozenset(one.source for one in looked if one.state in (State.OK, State.CANNOT_LOOK))
    view = reduce(fold, (fact for one in looked for fact in one.facts), View("this machine", "check", here))
    blind = {one.source: one.detail for one in looked if one.state is State.CANNOT_LOOK}
    # What a blind source did see stands; that it saw something is no answer.
    answered = {source: at for source, at in view.answered.items() if source not in blind}
    (assessment,) = decide(dataclasses.replace(view, answered=answered, problems=blind), now).actions
    assert isinstance(assessment, Assessment)  # noqa: S101 - what decide promises
    return assessment


async def _bounded(source: Source, look: Awaitable[Looked], seconds: float) -> Looked:
    try:
        async with asyncio.timeout(seconds):
            return await look
    except TimeoutError:
        return Looked(source, State.CANNOT_LOOK, f"no end within {seconds:g} s; try again with --within")


async def _kernel(wanted: Wanted, catalogue: Catalogue, now: float) -> Looked:
    try:
        log = await open_log(wanted.kmsg)
        try:
            packets, whole = await _read_all(log, boottime() + wanted.within)
        finally:
            log.close()
    except OSError as error:  # a TimeoutError is one, too
        return Looked(Source.KERNEL, State.CANNOT_LOOK, _kernel_advice(wanted.kmsg, error))
    seen = once.kernel_log(packets, catalogue, now)
    if packets and not seen.records:
        return Looked(Source.KERNEL, State.CANNOT_LOOK, f"{wanted.kmsg} gave no record of a kernel log; see --kmsg")
    if not whole or seen.left_out:
        detail = f"{_counted(seen.records, 'record')} , more than can be read: `dmesg | rlguard node replay -`"
        return Looked(Source.KERNEL, State.CANNOT_LOOK, detail, seen.facts)
    older = "; older lines are gone: `journalctl -k | rlguard node replay -` reads those kept" if seen.first else ""
    return Looked(Source.KERNEL, State.OK, _counted(seen.records, "record") + older, seen.facts)


async def _read_all(log: Log, until: float) -> tuple[list[bytes], bool]:
    """Every record that there is, and whether that is so: false at `until`, or at LOG_BYTES. Raises OSError.

    A log is at its end when it is found empty; a socket may be so before its other side has begun.
    """
    packets: list[bytes] = []
    size, settled = 0, boottime() + SETTLES
    while size < LOG_BYTES and boottime() < until:
        try:
            packets.append(log.read())
        except BlockingIOError:
            before = boottime()
            await readable(log.fileno(), SETTLED)
            if boottime() >= min(before + SETTLED, settled):
                return packets, True
        else:
            size += len(packets[-1])
            if len(packets) % BATCH == 0:
                await asyncio.sleep(0)
    return packets, False


def _kernel_advice(place: str, error: OSError) -> str:
    if isinstance(error, PermissionError):
        return f"not allowed to read {place}: run it as root (sudo), or `sudo dmesg | rlguard node replay -`"
    if isinstance(error, FileNotFoundError):
        return f"{place} is not there: run it on the machine itself, or in a privileged container"
    if isinstance(error, TimeoutError):
        return f"{place} cannot be opened: nobody answers there; see --kmsg"
    return f"{place} cannot be read ({error}); a log that was saved is for `rlguard node replay FILE`"


async def _gpus(wanted: Wanted, now: float) -> Looked:
    root = wanted.driver_root or Path("/")
    if wanted.driver_root is None and not wanted.gpus and not has_driver(root):
        return Looked(Source.GPU, State.NOT_HERE, "no NVIDIA driver (--driver-root says where it is, if it is)")
    nvml = Nvml(root, Patience(answer=wanted.within, first=wanted.within, reap=0.5))
    try:
        look = await nvml.look()
    finally:
        await nvml.close()
    seen = once.gpus(look, now, builtin_signs(), wanted.gpus)
    facts = (Observed(Source.GPU, now, seen.faults),)
    if seen.problem:
        return Looked(Source.GPU, State.CANNOT_LOOK, _gpu_advice(root, look, seen.problem), facts)
    return Looked(Source.GPU, State.OK, _counted(seen.count, "GPU"), facts)


def _gpu_advice(root: Path, look: object, problem: str) -> str:
    match look:
        case Hung(seconds):
            return f"the driver did not answer within {seconds:g} s: see `dmesg` for Xid 119 or 120, reboot if it lasts"
        case Unreadable() if find_library(root) is None:
            return f"no libnvidia-ml.so.1 under {root}: --driver-root says where the driver's files are"
        case Unreadable():
            return problem
        case _:
            return "the NVIDIA driver works and shows no GPU: see `lspci -d 10de:`, and `dmesg` for lines with NVRM"


async def _ports(wanted: Wanted, now: float) -> Looked:
    asked = wanted.expected.ports is not None
    if not asked and wanted.sysfs.is_dir() and not has_devices(wanted.sysfs):
        return Looked(Source.RDMA, State.NOT_HERE, "no RDMA device")
    client = RdmaClient(wanted.sysfs, wanted.expected.gid_index, advice="--sysfs says where the machine's /sys is")
    try:
        files = await client.look((), wanted.within)
    except HungError as error:
        detail = f"{error}: if it does so again, the card or its driver hangs: reboot the machine"
        return Looked(Source.RDMA, State.CANNOT_LOOK, detail)
    except CannotReadError as error:
        return Looked(Source.RDMA, State.CANNOT_LOOK, str(error))
    finally:
        await client.close()
    seen = once.ports(read_snapshot(files), rdma_table.builtin(), wanted.expected)
    facts = (Observed(Source.RDMA, now, seen.faults),)
    return Looked(Source.RDMA, State.OK, f"{seen.up} of {seen.count} ports carry traffic", facts)


async def _mounts(wanted: Wanted, now: float) -> Looked:
    table = storage.builtin()
    try:
        mounts = storage.read_all_mounts(mount_table(wanted.mounts), table)
    except OSError as error:
        return Looked(Source.STORAGE, State.CANNOT_LOOK, f"the mount table cannot be read ({error})")
    if not mounts:
        return Looked(Source.STORAGE, State.NOT_HERE, "no shared file system is mounted")
    answers = await asyncio.gather(*(_ask(mount, wanted) for mount in mounts[:MOST_PROBES]))
    answers += [storage.NotProbed(f"more than {MOST_PROBES} shared file systems")] * (len(mounts) - len(answers))
    judged = storage.judge(zip(mounts, answers, strict=True), frozenset(), table)
    facts = (Observed(Source.STORAGE, now, judged.faults),)
    if judged.unseen:
        return Looked(Source.STORAGE, State.CANNOT_LOOK, "; ".join(judged.unseen)[:300], facts)
    return Looked(Source.STORAGE, State.OK, _counted(len(mounts), "shared file system"), facts)


async def _ask(mount: storage.Mount, wanted: Wanted) -> storage.Probed:
    probe = MountProbe(mount.points[0], wanted.probe)
    try:
        return await probe.ask(wanted.within)
    finally:
        await probe.close()


async def _cloud(wanted: Wanted, now: float) -> Looked:
    name = detect(read_dmi(DMI_FILES, wanted.sysfs / "class/dmi/id")) if wanted.cloud == "auto" else wanted.cloud
    if name is None:
        return Looked(Source.METADATA, State.NOT_HERE, "the firmware names no cloud that rlguard knows; see --cloud")
    if name == "none":
        return Looked(Source.METADATA, State.NOT_ASKED, "--cloud auto asks whether the machine is taken back")
    provider = PROVIDERS[name]
    # By its address, which every provider gives last: a lookup of a name has no bound.
    bases = wanted.metadata or provider.bases[-1:]
    async with open_session() as session:
        answers = await Client(session, provider, bases, "is --cloud right?").ask()
    facts = tuple(CloudSaid(now, answer, question) for question, answer in answers)
    wrong = [answer.reason for _, answer in answers if isinstance(answer, NoAnswer)]
    if wrong:
        return Looked(Source.METADATA, State.CANNOT_LOOK, "; ".join(wrong)[:300], facts)
    return Looked(Source.METADATA, State.OK, f"{name} was asked", facts)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
