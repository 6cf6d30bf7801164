"""The agent's questions to a cloud's metadata server, asked of a real server that plays each cloud and each mood."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import aiohttp
import pytest
from fakecloud import MOODS, FakeCloud, serving
from waiting import until

from rlguard.health.assess import CloudSaid, Fact
from rlguard.health.clouds.providers import PROVIDERS
from rlguard.health.spot import Answer, Hint, NoNotice, Reclaim, Unreadable
from rlguard.io import metadata as asked
from rlguard.io.metadata import Client, open_session
from rlguard_agent import metadata
from rlguard_agent.metadata import watch_cloud

AWS_TOKEN = ("/latest/api/token", "X-aws-ec2-metadata-token", "t-1")
AWS_SPOT = "/latest/meta-data/spot/instance-action"
AWS_PLANS = "/latest/meta-data/events/maintenance/scheduled"
AZURE_EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
AZURE_NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
TENCENT_SPOT = "/latest/meta-data/spot/termination-time"
GCP = "/computeMetadata/v1/instance"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "EVERY", 0.01)
    monkeypatch.setattr(asked, "ANSWER_WITHIN", 0.3)


@asynccontextmanager
async def client(name: str, *bases: str) -> AsyncIterator[Client]:
    async with open_session() as session:
        yield Client(session, PROVIDERS[name], bases)


async def answers(name: str, *bases: str) -> dict[str, Answer]:
    async with client(name, *bases) as one:
        return dict(await one.ask())


def soon(seconds: float = 120.0) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def events(kind: str = "Reboot", event: str = "id-1") -> tuple[int, str]:
    begins = (datetime.now(UTC) + timedelta(seconds=600)).strftime("%a, %d %b %Y %H:%M:%S GMT")
    one = {"EventId": event, "EventStatus": "Scheduled", "EventType": kind, "Resources": ["vm_0"], "NotBefore": begins}
    return 200, json.dumps({"DocumentIncarnation": 1, "Events": [one]})


async def test_each_cloud_with_nothing_to_say_says_nothing() -> None:
    nothing = {
        f"{GCP}/preempted": (200, "FALSE"),
        f"{GCP}/maintenance-event": (200, "NONE"),
        AZURE_NAME: (200, "vm_0"),
        AZURE_EVENTS: (200, '{"DocumentIncarnation": 1, "Events": []}'),
    }
    google = {"Metadata-Flavor": "Google"}
    for name in PROVIDERS:
        token = AWS_TOKEN if name == "aws" else None
        async with serving(FakeCloud(nothing, token, google)) as cloud:
            assert set((await answers(name, cloud.url)).values()) == {NoNotice()}, name


async def test_aws_is_asked_with_a_token_that_is_renewed_when_it_is_refused() -> None:
    cloud = FakeCloud({AWS_SPOT: (200, json.dumps({"action": "terminate", "time": soon()}))}, AWS_TOKEN)
    async with serving(cloud), client("aws", cloud.url) as one:
        assert isinstance(dict(await one.ask())["spot"], Reclaim)
        cloud.token = (*AWS_TOKEN[:2], "t-2")
        said = dict(await one.ask())
    assert isinstance(said["spot"], Reclaim)
    assert said["rebalance"] == NoNotice()
    assert sum(method == "PUT" for method, _, _ in cloud.seen) == 2


async def test_without_a_token_aws_has_not_answered() -> None:
    async with serving(FakeCloud()) as cloud:
        said = (await answers("aws", cloud.url)).values()
    assert all(isinstance(answer, Unreadable) and "hop limit" in answer.reason for answer in said)
    assert {method for method, _, _ in cloud.seen} == {"PUT"}


async def test_alibaba_is_asked_without_a_token_where_there_is_none_to_have() -> None:
    async with serving(FakeCloud()) as cloud:
        assert await answers("alibaba", cloud.url) == {"spot": NoNotice()}


@pytest.mark.parametrize("mood", MOODS)
@pytest.mark.parametrize("name", PROVIDERS)
async def test_a_server_in_a_mood_has_not_answered_and_delays_nothing(name: str, mood: str) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with serving(FakeCloud(mood=mood)) as cloud:
        said = (await answers(name, cloud.url)).values()
        assert loop.time() - began < 5
    assert all(isinstance(answer, Unreadable) and len(answer.reason) < 500 for answer in said)
    assert not any(path == "/portal" for _, path, _ in cloud.seen)


async def test_one_question_that_hangs_does_not_take_the_answers_of_the_others() -> None:
    notice = json.dumps({"action": "terminate", "time": soon()})
    async with serving(FakeCloud({AWS_SPOT: (200, notice)}, AWS_TOKEN, mood="hang", moody="maintenance")) as cloud:
        said = await answers("aws", cloud.url)
    assert isinstance(said["spot"], Reclaim)
    assert isinstance(said["maintenance"], Unreadable)


async def test_a_server_that_does_not_answer_is_followed_by_the_next() -> None:
    async with (
        serving(FakeCloud(mood="html")) as lying,
        serving(FakeCloud()) as honest,
        client("tencent", "http://127.0.0.1:1", lying.url, honest.url) as one,
    ):
        said = [dict(await one.ask())["spot"] for _ in range(4)]
    assert [isinstance(answer, Unreadable) for answer in said] == [True, True, False, False]


async def test_a_proxy_of_the_environment_is_never_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(FakeCloud()) as proxy, serving(FakeCloud()) as cloud:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        assert await answers("tencent", cloud.url) == {"spot": NoNotice()}
    assert (len(proxy.seen), len(cloud.seen)) == (0, 1)


@asynccontextmanager
async def watching(name: str, url: str, left: Callable[[str], bool] | None = None) -> AsyncIterator[list[Fact]]:
    """What is told while the cloud is watched."""
    told: list[Fact] = []
    task = asyncio.create_task(watch_cloud(PROVIDERS[name], (url,), told.append, left))
    try:
        yield told
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_notice_is_told_when_it_comes_and_when_it_goes() -> None:
    plan = [{"NotBefore": "21 Jan 2199 09:00:43 GMT", "Code": "system-reboot", "EventId": "e", "State": "active"}]
    async with serving(FakeCloud({AWS_PLANS: (200, "[]")}, AWS_TOKEN)) as cloud, watching("aws", cloud.url) as told:
        await until(lambda: len(told) >= 3)
        assert {fact.question for fact in told if isinstance(fact, CloudSaid)} == {"spot", "rebalance", "maintenance"}
        begins = datetime.now(UTC) + timedelta(days=3)
        cloud.answers[AWS_PLANS] = (
            200,
            json.dumps([{**plan[0], "NotBefore": begins.strftime("%d %b %Y %H:%M:%S GMT")}]),
        )
        await until(lambda: any(isinstance(fact, CloudSaid) and isinstance(fact.answer, Hint) for fact in told))
        cloud.answers[AWS_PLANS] = (200, json.dumps([{**plan[0], "State": "canceled"}]))
        told.clear()
        await until(lambda: len(told) >= 9)
    assert isinstance(told[-1], CloudSaid)
    assert told[-1].answer == NoNotice()


async def test_azure_is_told_to_go_ahead_once_and_only_when_all_have_left() -> None:
    gone = False
    cloud = FakeCloud({AZURE_NAME: (200, "vm_0"), AZURE_EVENTS: events()})
    async with serving(cloud), watching("azure", cloud.url, lambda code: gone and code == "maintenance-reboot") as told:
        await until(lambda: len(told) > 3 * metadata.QUIET_ROUNDS)
        assert not posts(cloud)
        gone = True
        await until(lambda: posts(cloud))
        await until(lambda: len(told) > 8 * metadata.QUIET_ROUNDS)
    assert posts(cloud) == ['{"StartRequests": [{"EventId": "id-1"}]}']


async def test_azure_is_never_told_to_go_ahead_unless_a_person_asked_for_it() -> None:
    cloud = FakeCloud({AZURE_NAME: (200, "vm_0"), AZURE_EVENTS: events()})
    async with serving(cloud), watching("azure", cloud.url) as told:
        await until(lambda: len(told) > 5 * metadata.QUIET_ROUNDS)
    assert not posts(cloud)


def posts(cloud: FakeCloud) -> list[str]:
    return [body for method, _, body in cloud.seen if method == "POST"]


async def test_the_session_follows_no_redirect_and_keeps_no_cookie() -> None:
    async with open_session() as session:
        assert session.trust_env is False
        assert isinstance(session.cookie_jar, aiohttp.DummyCookieJar)
