"""What the node agent costs and how fast it is, as a real process between faked edges: a ring, a cloud, an API server.

The rival of the kernel log's rows is a reader that does nothing but read, in the same run.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import statistics
import sys
import tempfile
from pathlib import Path

from agent_noise import DAYS, false_verdicts
from agent_rig import Burst, Rig, until
from table import Row, arguments, show

from rlguard.io.clock import boottime

TICK = os.sysconf("SC_CLK_TCK")
MARKS = tuple(range(1, 101))
"""Bus numbers of the GPUs whose faults are timed."""
HIDDEN = tuple(range(200, 210))
LATENCY_LIMIT_MS, CPU_LIMIT, MEMORY_LIMIT = 50.0, 10.0, 120.0
FOUND_WITHIN_S = 2.0
IDLE_S = 30.0
FLOOD_LINES = 200_000
FLOOD_RATE = 2_000.0


def main() -> int:
    """Each part starts an agent of its own."""
    options = arguments(__doc__).parse_args()
    rows = [*asyncio.run(latency()), *asyncio.run(flood()), *asyncio.run(idle()), noise()]
    return show(rows, as_json=options.json)


async def latency() -> list[Row]:
    """From the line's writing to the notice at a sidecar on the same node, p99 of a hundred."""
    rows = []
    for name, lines in (("quiet", 2_000), (f"{FLOOD_RATE:.0f} lines/s beside it", 20_000)):
        with tempfile.TemporaryDirectory() as folder:
            rig = Rig(Path(folder))
            async with rig.running():
                await healthy(rig)
                rate = 200.0 if name == "quiet" else FLOOD_RATE
                at = await rig.write(Burst(lines, rate, MARKS))
                await until(lambda: len(rig.seen) >= len(MARKS), 5.0)  # noqa: B023 - this round's
                took = sorted((rig.seen.get(notice(bus), float("inf")) - when) * 1e3 for bus, when in at.items())
        p99 = took[int(len(took) * 0.99) - 1]
        limit = f"<= {LATENCY_LIMIT_MS:.0f}"
        label = f"kernel line to notice, p99, {name} (rival: p50)"
        rows.append(Row(label, p99, "ms", statistics.median(took), limit, p99 <= LATENCY_LIMIT_MS))
    return rows


async def flood() -> list[Row]:
    """As many lines as the ring takes, overwriting; faults among them, each told or lost in a gap that is said."""
    with tempfile.TemporaryDirectory() as folder:
        rig = Rig(Path(folder))
        async with rig.running(**rig.machine()):
            await healthy(rig)
            reading = asyncio.create_task(asyncio.to_thread(plain_reader, f"{folder}/kmsg.sock"))
            await asyncio.sleep(0.2)
            began, hidden = boottime(), rig.lose_gpu()
            at = await rig.write(Burst(FLOOD_LINES, 0.0, HIDDEN))
            written = boottime()
            read, missed = await reading
            await until(lambda: hidden in rig.seen and all(notice(bus) in rig.seen for bus in at), 2.0)
            found = rig.seen.get(hidden, float("inf")) - began
            told = [bus for bus in at if notice(bus) in rig.seen]
            figures = await metrics(rig)
            late = max((rig.seen[notice(bus)] - when for bus, when in at.items() if bus in told), default=0.0)
    unsaid = 0 if figures["gaps"] or len(told) == len(at) else len(at) - len(told)
    rate = FLOOD_LINES / (written - began)
    return [
        Row("flood: faults neither told nor in a gap that is said", unsaid, "", None, "0", unsaid == 0),
        Row("flood: faults told by their lines, of 10", len(told), "", None, "", None),
        Row("flood: slowest of these", late, "s", None, f"<= {FOUND_WITHIN_S:.0f}", late <= FOUND_WITHIN_S),
        Row(
            "flood: a lost GPU found by the look after a gap",
            found,
            "s",
            None,
            f"<= {FOUND_WITHIN_S:.0f}",
            found <= FOUND_WITHIN_S,
        ),
        Row(
            f"flood: records read of {rate / 1e3:.0f}k/s (rival: plain reader)", figures["records"], "", read, "", None
        ),
        Row("flood: records overwritten unread (rival: the same)", figures["lost"], "", missed, "", None),
    ]


def plain_reader(path: str) -> tuple[int, int]:
    """Records that a reader gets which does nothing else, and how many it missed."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(1.0)
    connection.connect(path)
    count, missed, last = 0, 0, -1
    try:
        while packet := connection.recv(8192):
            if packet == b"EPIPE":
                continue
            number = int(packet.split(b",", 2)[1])
            missed += number - last - 1 if last >= 0 else 0
            count, last = count + 1, number
    except TimeoutError:
        return count, missed
    finally:
        connection.close()
    return count, missed


async def idle() -> list[Row]:
    """Nothing happens, with all sources on: processor time, memory, writes to the API server."""
    with tempfile.TemporaryDirectory() as folder:
        rig = Rig(Path(folder))
        async with rig.running(**rig.machine()) as agent:
            await healthy(rig)
            await asyncio.sleep(12.0)  # the first writes, and what a start costs
            before, writes = family_cpu(agent.pid), rig.patches
            await asyncio.sleep(IDLE_S)
            millicores = (family_cpu(agent.pid) - before) / IDLE_S * 1e3
            memory = family_memory(agent.pid)
            written = rig.patches - writes
    return [
        Row(
            "idle, all sources on: processor", millicores, "mcore", None, f"<= {CPU_LIMIT:.0f}", millicores <= CPU_LIMIT
        ),
        Row(
            "idle, all sources on: resident, with its children",
            memory,
            "MiB",
            None,
            f"<= {MEMORY_LIMIT:.0f}",
            memory <= MEMORY_LIMIT,
        ),
        Row(f"idle: API writes in {IDLE_S:.0f} s", written, "", None, "0", written == 0),
    ]


def noise() -> Row:
    """A healthy node in a noisy world."""
    wrong = false_verdicts()
    name = f"{DAYS} days of simulated noise: false verdicts"
    return Row(name, wrong.total(), "", None, "0", not wrong)


async def healthy(rig: Rig) -> None:
    """Wait for the agent's first healthy verdict."""
    if not await until(lambda: rig.verdicts and rig.verdicts[-1][1] == "healthy", 20.0):
        raise SystemExit(f"the agent did not become healthy: {rig.verdicts}")


def notice(bus: int) -> str:
    """The id of the notice about this GPU."""
    return f"11111111/xid-79/0000:{bus:02x}:00"


async def metrics(rig: Rig) -> dict[str, float]:
    """The agent's own counters of its kernel log."""
    text = await asyncio.to_thread(rig.scrape)
    names = {
        "records": "rlguard_agent_kernel_records_total",
        "lost": "rlguard_agent_kernel_records_lost_total",
        "gaps": "rlguard_agent_kernel_gaps_total",
    }
    found = {key: re.search(rf"^{name} (\S+)$", text, re.MULTILINE) for key, name in names.items()}
    return {key: float(match.group(1)) if match else 0.0 for key, match in found.items()}


def family(pid: int) -> list[int]:
    """The process and all that descend from it."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def family_cpu(pid: int) -> float:
    """Seconds of processor time, user and system."""
    total = 0
    for one in family(pid):
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICK


def family_memory(pid: int) -> float:
    """MiB resident, shared pages counted once each process."""
    kib = 0
    for one in family(pid):
        status = Path(f"/proc/{one}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        kib += int(found.group(1)) if found else 0
    return kib / 1024


if __name__ == "__main__":
    sys.exit(main())
