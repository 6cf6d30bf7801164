"""The agent's look at the machine: at clocks of our own, and by a real D-Bus at a logind of ours."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from dbus_fast import Message, MessageType, Variant
from dbus_fast.aio import MessageBus
from waiting import until

from rlguard.health.assess import CannotLook, Fact, Observed
from rlguard.model import Severity
from rlguard_agent import host
from rlguard_agent.host import Clocks, HostSource

BUS = """\
<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <listen>unix:path={path}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/><allow user="*"/>
  </policy>
</busconfig>
"""


@asynccontextmanager
async def running(source: HostSource) -> AsyncIterator[None]:
    task = asyncio.create_task(source.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def codes(told: list[Fact]) -> list[str] | str:
    """The faults told last, or why nobody could look."""
    if not told:
        return "nothing told"
    fact = told[-1]
    assert isinstance(fact, Observed | CannotLook)
    return fact.reason if isinstance(fact, CannotLook) else [fault.code for fault in fact.faults]


async def test_a_stepped_wall_clock_is_told_and_a_pause_between_the_readings_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host, "EVERY", 0.001)
    told: list[Fact] = []
    now, step, pause = 1000.0, 0.0, 0.0

    def boot() -> float:
        nonlocal now
        now += 0.01 + pause
        return now

    source = HostSource(None, lambda: True, told.append, Clocks(lambda: 1.7e9 + now + step, boot))
    async with running(source):
        await until(lambda: len(told) > 3)
        pause = 60.0
        count = len(told)
        await asyncio.sleep(0.05)
        assert len(told) <= count + 1
        pause = 0.0
        await until(lambda: len(told) > count + 3)
        assert codes(told) == []
        step = 100.0
        await until(lambda: codes(told) == ["clock-jump"])


@dataclass
class FakeLogind:
    """A logind: gives inhibitors, and says that the machine shuts down when a test says so."""

    path: Path
    delay: Any = 30_000_000
    preparing: bool = False
    silent: bool = False
    ends: list[int] = field(default_factory=list)
    bus: MessageBus | None = None

    async def serve(self) -> None:
        """Take the name on the bus."""
        bus = MessageBus(bus_address=f"unix:path={self.path}", negotiate_unix_fd=True)
        self.bus = await bus.connect()
        self.bus.add_message_handler(self._answer)
        await self.bus.request_name("org.freedesktop.login1")

    def held(self) -> int:
        """How many inhibitors are held by others."""
        count = 0
        for end in self.ends:
            with contextlib.suppress(BlockingIOError):
                if os.read(end, 1) == b"":
                    continue
            count += 1
        return count

    async def say(self, preparing: bool) -> None:
        """PrepareForShutdown."""
        self.preparing = preparing
        signal = Message.new_signal(
            "/org/freedesktop/login1", "org.freedesktop.login1.Manager", "PrepareForShutdown", "b", [preparing]
        )
        assert self.bus is not None
        await self.bus.send(signal)

    def _answer(self, message: Message) -> Any:
        if message.message_type is not MessageType.METHOD_CALL or not str(message.path).startswith(
            "/org/freedesktop/login1"
        ):
            return None
        if self.silent:
            return True
        if message.member == "Inhibit":
            assert message.body[0] == "shutdown"
            assert message.body[3] == "delay"
            mine, theirs = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            self.ends.append(mine)
            asyncio.get_running_loop().call_later(0.3, os.close, theirs)
            return Message.new_method_return(message, "h", [0], [theirs])
        values = {"InhibitDelayMaxUSec": self.delay, "PreparingForShutdown": Variant("b", self.preparing)}
        value = values[message.body[1]]
        return Message.new_method_return(message, "v", [Variant("t", value) if isinstance(value, int) else value])

    def close(self) -> None:
        """Leave the bus."""
        if self.bus is not None:
            self.bus.disconnect()
        for end in self.ends:
            os.close(end)
        self.ends.clear()


@pytest.fixture
async def logind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeLogind]:
    program = shutil.which("dbus-daemon")
    if program is None:
        pytest.skip("no dbus-daemon on the PATH")
    monkeypatch.setattr(host, "EVERY", 0.05)
    monkeypatch.setattr(host, "AGAIN", 0.05)
    monkeypatch.setattr(host, "LOOK_WHO", 0.01)
    path = tmp_path / "bus"
    (tmp_path / "bus.conf").write_text(BUS.format(path=path))
    daemon = await asyncio.create_subprocess_exec(program, f"--config-file={tmp_path / 'bus.conf'}", "--nofork")
    await until(path.exists)
    made = FakeLogind(path)
    await made.serve()
    yield made
    made.close()
    await asyncio.sleep(0.35)  # the ends of inhibitors that were sent
    daemon.kill()
    await daemon.wait()


def watched(logind: FakeLogind, needed: Callable[[], bool] = lambda: True) -> tuple[HostSource, list[Fact]]:
    told: list[Fact] = []
    return HostSource(logind.path, needed, told.append), told


async def test_a_shutdown_is_a_deadline_and_is_over_when_it_is_called_off(logind: FakeLogind) -> None:
    source, told = watched(logind)
    async with running(source):
        await until(lambda: codes(told) == [] and logind.ends)
        await logind.say(preparing=True)
        await until(lambda: codes(told) == ["node-shutdown"])
        fact = told[-1]
        assert isinstance(fact, Observed)
        (fault,) = fact.faults
        assert fault.severity is Severity.FATAL
        assert fault.deadline is not None
        assert 25 < fault.deadline - fact.at <= 30
        await logind.say(preparing=False)
        await until(lambda: codes(told) == [])


async def test_the_shutdown_waits_as_long_as_somebody_needs_it_and_no_longer(logind: FakeLogind) -> None:
    needed = True
    source, told = watched(logind, lambda: needed)
    async with running(source):
        await until(lambda: codes(told) == [] and logind.ends)
        await asyncio.sleep(0.35)  # the fake's own copy of the inhibitor is closed
        assert logind.held() == 1
        await logind.say(preparing=True)
        await until(lambda: codes(told) == ["node-shutdown"])
        await asyncio.sleep(0.1)
        assert logind.held() == 1
        needed = False
        await until(lambda: logind.held() == 0)
        await logind.say(preparing=False)
        await until(lambda: len(logind.ends) == 2)  # ready for the next one


async def test_a_shutdown_that_was_announced_stands_while_logind_is_gone(
    logind: FakeLogind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlguard.io.logind.ANSWER_WITHIN", 0.3)
    source, told = watched(logind)
    async with running(source):
        await until(lambda: codes(told) == [] and logind.ends)
        await logind.say(preparing=True)
        await until(lambda: codes(told) == ["node-shutdown"])
        logind.silent = True
        await until(lambda: source._problem)
        count = len(told)
        await until(lambda: len(told) > count)
        assert codes(told) == ["node-shutdown"]


async def test_an_agent_that_ends_holds_up_no_shutdown(logind: FakeLogind) -> None:
    source, told = watched(logind)
    async with running(source):
        await until(lambda: codes(told) == [] and logind.ends)
        await asyncio.sleep(0.35)  # the fake's own copy of the inhibitor is closed
        assert logind.held() == 1
    assert logind.held() == 0


async def test_an_agent_that_starts_during_a_shutdown_sees_it(logind: FakeLogind) -> None:
    logind.preparing = True
    source, told = watched(logind)
    async with running(source):
        await until(lambda: codes(told) == ["node-shutdown"])


async def test_without_logind_the_agent_is_blind_and_tries_again(logind: FakeLogind) -> None:
    assert logind.bus is not None
    logind.bus.disconnect()
    source, told = watched(logind)
    async with running(source):
        await until(lambda: "RLGUARD_AGENT_DBUS" in codes(told))
        await logind.serve()
        await until(lambda: codes(told) == [])


async def test_a_logind_that_does_not_answer_or_lies_is_no_logind(
    logind: FakeLogind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlguard.io.logind.ANSWER_WITHIN", 0.3)
    source, told = watched(logind)
    async with running(source):
        await until(lambda: codes(told) == [])
        logind.silent = True
        await until(lambda: "RLGUARD_AGENT_DBUS" in codes(told))
        logind.silent, logind.delay = False, Variant("s", "long")
        await until(lambda: "how long" in codes(told))
        logind.delay = 5_000_000
        await until(lambda: codes(told) == [])


@pytest.mark.parametrize("words", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""], ids=["talks of other things", "silent"])
async def test_a_socket_that_is_no_bus_is_blind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: bytes) -> None:
    monkeypatch.setattr(host, "AGAIN", 0.05)
    monkeypatch.setattr("rlguard.io.logind.ANSWER_WITHIN", 0.3)
    writers: list[asyncio.StreamWriter] = []

    async def babble(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        writer.write(words)

    server = await asyncio.start_unix_server(babble, tmp_path / "socket")
    told: list[Fact] = []
    async with server, running(HostSource(tmp_path / "socket", lambda: True, told.append)):
        await until(lambda: "RLGUARD_AGENT_DBUS" in codes(told))
        await until(lambda: len(writers) > 1)
    for writer in writers:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
