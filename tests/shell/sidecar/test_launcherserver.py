"""The launcher's socket: strict about what comes, whole snapshots in both directions."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from rlguard.errors import BadWireError
from rlguard.group.member_facts import LauncherState
from rlguard.messages import Ranks
from rlguard.model import Incarnation
from rlguard_sidecar.launcher import GARBAGE_LIMIT, MOST_CONNECTIONS, LauncherServer, parse_state

STATE: dict[str, Any] = {
    "type": "state",
    "pid": 1,
    "command": ["torchrun"],
    "incarnation": "3.2",
    "ranks": "running",
    "code": None,
    "signal": None,
    "hooked": True,
    "terminating": False,
    "tail": "",
    "stuck": [],
    "idle": False,
}


class Heard:
    """What the server told."""

    def __init__(self) -> None:
        self.states: list[LauncherState] = []
        self.lost = 0

    def count_lost(self) -> None:
        """The connection has ended."""
        self.lost += 1


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
async def server(tmp_path: Path, heard: Heard) -> AsyncIterator[LauncherServer]:
    made = LauncherServer(tmp_path, heard.states.append, heard.count_lost)
    task = asyncio.create_task(made.run())
    await until((tmp_path / "sidecar.sock").exists)
    yield made
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def connect(tmp_path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_unix_connection(tmp_path / "sidecar.sock")


def line(message: object) -> bytes:
    return json.dumps(message).encode() + b"\n"


def test_a_state_is_read_whole() -> None:
    state = parse_state(line(STATE))
    assert (state.incarnation, state.ranks, state.hooked) == (Incarnation(3, 2), Ranks.RUNNING, True)


@pytest.mark.parametrize(
    "changed",
    [
        {"type": "states"},
        {"incarnation": "3"},
        {"incarnation": 3},
        {"ranks": "unknown"},
        {"ranks": "walking"},
        {"ranks": None},
        {"ranks": []},
        {"code": "0"},
        {"code": True},
        {"code": 10**4000},
        {"stuck": [2**31]},
        {"stuck": list(range(10_000))},
        {"signal": 9.0},
        {"hooked": 1},
        {"terminating": "no"},
        {"tail": None},
        {"stuck": "1"},
        {"stuck": [None]},
        {"idle": None},
    ],
)
def test_what_does_not_fit_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(BadWireError):
        parse_state(line({**STATE, **changed}))


async def test_the_newest_order_is_sent_on_connect_and_repeated(
    server: LauncherServer, heard: Heard, tmp_path: Path
) -> None:
    server.order({"type": "idle"})
    server.order({"type": "stop", "incarnation": "3.2", "grace_s": 2.0})
    reader, writer = await connect(tmp_path)
    writer.write(line(STATE))
    first = json.loads(await asyncio.wait_for(reader.readline(), 3))
    again = json.loads(await asyncio.wait_for(reader.readline(), 3))
    assert first == again == {"type": "stop", "incarnation": "3.2", "grace_s": 2.0}
    assert len(heard.states) == 1
    writer.close()
    await until(lambda: heard.lost == 1)


async def test_garbage_is_counted_and_the_launcher_goes_on(
    server: LauncherServer, heard: Heard, tmp_path: Path
) -> None:
    _, writer = await connect(tmp_path)
    writer.write(b"\x00\xff\n[]\n{}\n" + b"[" * 5000 + b"\n" + line(STATE))
    await until(lambda: len(heard.states) == 1)
    assert server.garbage == 4
    writer.close()


async def test_nothing_but_garbage_is_no_launcher(server: LauncherServer, heard: Heard, tmp_path: Path) -> None:
    reader, writer = await connect(tmp_path)
    writer.write(b"x\n" * (GARBAGE_LIMIT + 1))
    assert await asyncio.wait_for(reader.read(), 3) == b""
    assert heard.states == []
    assert server.garbage == GARBAGE_LIMIT
    writer.close()


async def test_an_endless_line_is_cut_off(server: LauncherServer, heard: Heard, tmp_path: Path) -> None:
    reader, writer = await connect(tmp_path)
    with contextlib.suppress(OSError):
        writer.write(b"x" * (3 << 20))
        await writer.drain()
        assert await asyncio.wait_for(reader.read(), 3) == b""
    _, other = await connect(tmp_path)
    other.write(line(STATE))
    await until(lambda: len(heard.states) == 1)
    assert server.garbage == 0
    writer.close()
    other.close()


def test_half_a_character_in_the_output_is_replaced() -> None:
    """It could be written to no file, and an incident's would end the process."""
    assert parse_state(line({**STATE, "tail": "a\ud800b"})).tail == "a?b"


async def test_idle_connections_are_few_and_leave_room(server: LauncherServer, heard: Heard, tmp_path: Path) -> None:
    idle = [await connect(tmp_path) for _ in range(MOST_CONNECTIONS)]
    reader, writer = await connect(tmp_path)
    assert await asyncio.wait_for(reader.read(), 3) == b""
    writer.close()
    for _, other in idle:
        other.close()

    async with asyncio.timeout(3):
        while not heard.states:
            _, launcher = await connect(tmp_path)
            launcher.write(line(STATE))
            await asyncio.sleep(0.01)
            launcher.close()
    assert server.garbage == 0


async def test_a_second_launcher_is_turned_away_while_the_first_lives(
    server: LauncherServer, heard: Heard, tmp_path: Path
) -> None:
    _, first = await connect(tmp_path)
    first.write(line(STATE))
    await until(lambda: len(heard.states) == 1)
    reader, second = await connect(tmp_path)
    second.write(line({**STATE, "ranks": "gone"}))
    assert await asyncio.wait_for(reader.read(), 3) == b""
    assert len(heard.states) == 1
    first.close()
    await until(lambda: heard.lost == 1)
    _, third = await connect(tmp_path)
    third.write(line({**STATE, "ranks": "gone"}))
    await until(lambda: len(heard.states) == 2)
    assert server.garbage == 0
    second.close()
    third.close()
