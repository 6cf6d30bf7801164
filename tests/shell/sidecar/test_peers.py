"""Who is let in at the coordinator's door, over real TLS on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pytest
from aiohttp import web
from authority import Authority
from fakecontroller import KEY
from structlog.testing import capture_logs
from waiting import until

from rlguard.io import link
from rlguard.io.clock import boottime
from rlguard.io.identity import CredentialsHolder
from rlguard.io.link import Dialler, Outbox, Target
from rlguard.io.tls import Credentials, Key, anonymous_context, client_context, pod_identity, server_context
from rlguard.messages import MemberReport, Message, Order, Ranks, Want
from rlguard.model import Incarnation, Member
from rlguard_sidecar.peers import PATH, PeerServer, Reach, Roster
from rlguard_sidecar.supervisor import listen

LEADER = pod_identity("team", "ppo-0", "uid-0")
WORKER = pod_identity("team", "ppo-0-1", "uid-1")
REPORT = MemberReport(
    member=Member(1, "uid-1", "ppo-0-1", "node-1", "127.0.0.1"),
    incarnation=None,
    ranks=Ranks.NONE,
    code=None,
    signal=None,
    tail="",
    hooked=None,
    reshardable=False,
    step=None,
    heartbeat_age=None,
    slots=(),
    stage=None,
    flush=None,
    notices=(),
    terminating=False,
    untouched=False,
)
ORDER = Order(Incarnation(1, 1), Want.STOP, None, None, None, None, None, None, 2.0)


@dataclass
class Door:
    """A coordinator's listening side."""

    authority: Authority
    port: int
    roster: Roster
    reports: list[MemberReport] = field(default_factory=list)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
async def door(authority: Authority) -> AsyncIterator[Door]:
    holder, roster = CredentialsHolder(), Roster(KEY)
    holder.replace(authority.credentials(LEADER))
    descriptor = listen("127.0.0.1").detach()
    reports: list[MemberReport] = []
    server = PeerServer(descriptor, holder, roster, reports.append)
    made = Door(authority, server.port, roster, reports)
    with running(server.run()):
        yield made
    await asyncio.sleep(0.05)


@contextlib.contextmanager
def running(part: object) -> Iterator[asyncio.Task[None]]:
    """Run a part while the block lasts."""
    assert asyncio.iscoroutine(part)
    task: asyncio.Task[None] = asyncio.create_task(part)
    try:
        yield task
    finally:
        task.cancel()


def member(door: Door, credentials: Credentials, expects: str = LEADER) -> tuple[Dialler, list[Message]]:
    """A member's calling side that says `REPORT`."""
    context, outbox = client_context(credentials), Outbox()
    outbox.publish(REPORT)
    heard: list[Message] = []
    target = Target(f"https://127.0.0.1:{door.port}{PATH}", expects)
    return Dialler(lambda: target, lambda: context, outbox, heard.append), heard


async def test_a_member_is_heard_and_gets_its_order(door: Door) -> None:
    dialler, heard = member(door, door.authority.credentials(WORKER))
    with running(dialler.run()):
        await until(lambda: door.reports)
        assert door.reports[0] == REPORT
        door.roster.box("uid-1").publish(ORDER)
        await until(lambda: heard)
        assert heard[0] == ORDER


async def test_each_try_is_a_new_connection_so_that_a_service_can_lead_it_elsewhere(authority: Authority) -> None:
    callers: list[object] = []

    async def refuse(request: web.Request) -> web.Response:
        callers.append(request.transport.get_extra_info("peername") if request.transport else None)
        return web.Response(status=503)

    app = web.Application()
    app.router.add_get(PATH, refuse)
    context, outbox = client_context(authority.credentials(WORKER)), Outbox()
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=server_context(authority.credentials(LEADER)))
    await site.start()
    target = Target(f"https://127.0.0.1:{runner.addresses[0][1]}{PATH}", LEADER)
    dialler = Dialler(lambda: target, lambda: context, outbox, lambda _: None)
    with running(dialler.run()):
        await until(lambda: len(callers) >= 2)
    await runner.cleanup()
    assert callers[0] != callers[1]


async def test_what_cannot_be_read_is_logged_once_on_both_sides(door: Door) -> None:
    dialler, heard = member(door, door.authority.credentials(WORKER))
    with capture_logs() as logs, running(dialler.run()):
        await until(lambda: door.reports)
        dialler._outbox._text = '{"type": "MemberReport"}'
        door.roster.box("uid-1")._text = '{"type": "Order"}'
        await until(lambda: dialler.state.garbage >= 2, 5)
        await until(lambda: len(logs) >= 2, 5)
    assert heard == []
    assert sorted(log["sender"] for log in logs) == ["dialled", WORKER]


async def test_a_link_with_nothing_to_say_stays_open(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "HEARTBEAT", 0.05)
    monkeypatch.setattr(link, "SUSPECT", 0.5)
    dialler, heard = member(door, door.authority.credentials(WORKER))
    with running(dialler.run()):
        await until(lambda: door.reports)
        await asyncio.sleep(0.8)  # longer than a silent link lives
        assert dialler.state.opened == 1
        assert dialler.state.open
        assert heard == []


@pytest.mark.parametrize(
    "identity",
    [
        pod_identity("team", "other-0", "uid-1"),
        pod_identity("team", "ppo-1", "uid-1"),
        pod_identity("team", "ppo-0-x", "uid-1"),
        pod_identity("elsewhere", "ppo-0-1", "uid-1"),
        "rlguard://node/node-1",
        "rlguard://pod/team/ppo-0-1",
    ],
)
async def test_a_stranger_with_a_certificate_is_refused(door: Door, identity: str) -> None:
    dialler, _ = member(door, door.authority.credentials(identity))
    with running(dialler.run()):
        await until(lambda: dialler.state.refused >= 2)
    assert dialler.state.opened == 0
    assert door.reports == []


async def test_a_member_cannot_speak_for_another(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[bool] = []
    original = door.roster.speaks_for

    def judge(identity: str, report: MemberReport) -> bool:
        judged.append(original(identity, report))
        return judged[-1]

    monkeypatch.setattr(door.roster, "speaks_for", judge)
    dialler, _ = member(door, door.authority.credentials(pod_identity("team", "ppo-0-2", "uid-2")))
    with running(dialler.run()):
        await until(lambda: judged)
    assert not any(judged)
    assert door.reports == []


async def test_a5_a_certificate_that_has_run_out_still_opens_the_door(door: Door) -> None:
    dialler, heard = member(door, door.authority.credentials(WORKER, datetime(2001, 1, 1, tzinfo=UTC)))
    with running(dialler.run()):
        await until(lambda: door.reports)
        door.roster.box("uid-1").publish(ORDER)
        await until(lambda: heard)


async def test_a_certificate_of_another_authority_is_refused(door: Door) -> None:
    key = Key.generate()
    foreign = Authority().sign(key.request(), WORKER)
    dialler, _ = member(door, Credentials(foreign, key, door.authority.pem))
    with running(dialler.run()):
        await until(lambda: dialler.state.refused >= 2)
    assert dialler.state.opened == 0
    assert door.reports == []


async def test_without_a_certificate_not_even_a_request_gets_through(door: Door) -> None:
    context = anonymous_context(door.authority.pem)
    reader, writer = await asyncio.open_connection("127.0.0.1", door.port, ssl=context)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    answer = b""
    with contextlib.suppress(ssl.SSLError, ConnectionError):
        answer = await asyncio.wait_for(reader.read(), 3)
    assert answer == b""
    writer.close()


async def test_a5_a_member_hangs_up_on_one_that_is_not_its_leader(door: Door) -> None:
    earlier_life = pod_identity("team", "ppo-0", "uid-of-an-earlier-life")
    dialler, _ = member(door, door.authority.credentials(WORKER), expects=earlier_life)
    with running(dialler.run()):
        await until(lambda: dialler.state.refused >= 2)
    assert dialler.state.opened == 0
    assert door.reports == []


async def test_one_order_does_not_reach_another_member(door: Door) -> None:
    dialler, heard = member(door, door.authority.credentials(WORKER))
    with running(dialler.run()):
        await until(lambda: door.reports)
        door.roster.box("uid-2").publish(ORDER)
        door.roster.box("uid-1").publish(replace(ORDER, want=Want.IDLE))
        await until(lambda: heard)
    assert [order.want for order in heard if isinstance(order, Order)] == [Want.IDLE]


async def test_a5_a_completed_handshake_counts_as_reach_and_silence_ends_it() -> None:
    told: list[bool] = []
    bound = listen("127.0.0.1")
    where = ("127.0.0.1", bound.getsockname()[1])
    ahead = 0.0
    reach = Reach(lambda: where, told.append, lambda: boottime() + ahead)
    with running(reach.run()):
        await until(lambda: told == [True])
        bound.close()
        ahead = 6.0
        await until(lambda: told == [True, False])
