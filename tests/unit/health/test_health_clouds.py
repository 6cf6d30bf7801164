"""What the metadata servers of the clouds answer, and what it means."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlguard.health.clouds.alibaba import read_termination
from rlguard.health.clouds.aws import read_action, read_maintenance, read_rebalance
from rlguard.health.clouds.azure import approve, read_events
from rlguard.health.clouds.gcp import read_maintenance as read_gcp_maintenance
from rlguard.health.clouds.gcp import read_preempted
from rlguard.health.clouds.providers import AZURE_TAG, PROVIDERS, detect
from rlguard.health.clouds.request import NEAR, Here, Reply, read
from rlguard.health.spot import Hint, NoNotice, Reclaim, Unreadable
from rlguard.model import Repair

NOW = datetime(2026, 3, 1, 4, 0, 0, tzinfo=UTC)
DATE = "Sun, 01 Mar 2026 04:00:00 GMT"
DAY = 86_400.0
HERE = Here(NOW.timestamp(), DAY, "vm_0")
GOOGLE = {"metadata-flavor": "Google"}
HTML = "<html><title>Please log in</title></html>"
NOT_ANSWERS = [
    Reply(200, HTML, {"date": DATE}),
    Reply(200, "", {"date": DATE}),
    Reply(200, '{"action": "term', {"date": DATE}),
    Reply(302, "", {"location": "http://portal.example/"}),
    Reply(403, HTML, {"date": DATE}),
    Reply(500, "", {"date": DATE}),
    Reply(503, "[]", {"date": DATE}),
    Reply(200, "[" * 100_000, {"date": DATE}),
    Reply(200, '{"time": ' + "9" * 5000 + "}", {"date": DATE}),
]
QUESTIONS = [question for provider in PROVIDERS.values() for question in provider.questions]


def ok(body: Any, **headers: str) -> Reply:
    text = body if isinstance(body, str) else json.dumps(body)
    return Reply(200, text, {"date": DATE, **headers})


def iso(seconds: float) -> str:
    return (NOW + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def english(seconds: float) -> str:
    return (NOW + timedelta(seconds=seconds)).strftime("%d %b %Y %H:%M:%S GMT")


def maintenance(seconds: float, code: str = "system-reboot", state: str = "active") -> dict[str, str]:
    return {
        "NotBefore": english(seconds),
        "NotAfter": english(seconds + 60),
        "Code": code,
        "EventId": "e",
        "State": state,
    }


def event(kind: str, seconds: float | None, *resources: str, status: str = "Scheduled") -> dict[str, Any]:
    begins = "" if seconds is None else (NOW + timedelta(seconds=seconds)).strftime("%a, %d %b %Y %H:%M:%S GMT")
    return {
        "EventId": "602d9444-d2cd-49c7-8624-8643e7171297",
        "EventStatus": status,
        "EventType": kind,
        "ResourceType": "VirtualMachine",
        "Resources": list(resources) or ["vm_0"],
        "NotBefore": begins,
    }


def events(*those: dict[str, Any]) -> Reply:
    return ok({"DocumentIncarnation": 7, "Events": list(those)})


@pytest.mark.parametrize("reply", NOT_ANSWERS, ids=lambda reply: f"{reply.status} {reply.body[:12]}")
@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.request.path)
def test_whatever_is_not_documented_is_no_answer_of_any_cloud(question: Any, reply: Reply) -> None:
    assert isinstance(read(question, reply, HERE), Unreadable)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.request.path)
def test_an_answer_that_was_cut_off_is_none(question: Any) -> None:
    assert isinstance(read(question, Reply(404, "", {}, whole=False), HERE), Unreadable)


def test_aws_says_404_while_there_is_nothing() -> None:
    for question in PROVIDERS["aws"].questions:
        assert read(question, Reply(404, "<?xml?>"), HERE) == NoNotice()


@pytest.mark.parametrize("action", ["terminate", "stop"])
def test_aws_takes_a_spot_instance_at_the_time_it_names(action: str) -> None:
    assert read_action(ok({"action": action, "time": iso(120)}), HERE) == Reclaim(120.0)


def test_aws_begins_to_hibernate_at_once() -> None:
    assert read_action(ok({"action": "hibernate", "time": iso(120)}), HERE) == Reclaim(0.0)


@pytest.mark.parametrize(
    "body",
    [
        {"action": "terminate", "time": iso(-2 * DAY)},  # before this boot
        {"action": "terminate", "time": iso(8 * 3600)},  # another zone
        {"action": "terminate", "time": "2026-03-01T04:02:00+08:00"},
        {"action": "terminate", "time": 1772337720},
        {"action": "dance", "time": iso(120)},
        {"action": ["terminate"], "time": iso(120)},
        {"time": iso(120)},
        [],
    ],
)
def test_a_spot_notice_of_aws_that_makes_no_sense_is_none(body: Any) -> None:
    assert isinstance(read_action(ok(body), HERE), Unreadable)


def test_a_rebalance_recommendation_is_a_hint_however_old() -> None:
    answer = read_rebalance(ok({"noticeTime": iso(-9 * DAY)}), HERE)
    assert isinstance(answer, Hint)
    assert answer.code == "spot-rebalance"
    assert isinstance(read_rebalance(ok({"noticeTime": iso(600)}), HERE), Unreadable)


def test_maintenance_of_aws_is_a_hint_until_it_is_near() -> None:
    assert isinstance(read_maintenance(ok([maintenance(3 * DAY)]), HERE), Hint)
    near = read_maintenance(ok([maintenance(NEAR)]), HERE)
    assert isinstance(near, Reclaim)
    assert (near.code, near.seconds_left, near.repair) == ("maintenance-system-reboot", NEAR, Repair.REBOOT)
    assert not near.binding


def test_the_nearest_event_of_aws_counts() -> None:
    both = ok([maintenance(DAY, "instance-retirement"), maintenance(60), maintenance(600, "instance-stop")])
    answer = read_maintenance(both, HERE)
    assert isinstance(answer, Reclaim)
    assert answer.seconds_left == 60.0


@pytest.mark.parametrize("state", ["completed", "canceled"])
def test_maintenance_that_is_over_is_none(state: str) -> None:
    assert read_maintenance(ok([maintenance(60, state=state)]), HERE) == NoNotice()
    assert read_maintenance(ok([]), HERE) == NoNotice()


def test_maintenance_of_aws_that_should_have_begun_is_due_now() -> None:
    late = read_maintenance(ok([maintenance(-60)]), HERE)
    assert isinstance(late, Reclaim)
    assert late.seconds_left == 0.0


@pytest.mark.parametrize(
    "raw", [maintenance(60, "earthquake"), maintenance(60, state="maybe"), maintenance(-2 * DAY), {}, 7, None]
)
def test_an_event_of_aws_that_makes_no_sense_is_no_answer_even_beside_one_that_does(raw: Any) -> None:
    assert isinstance(read_maintenance(ok([maintenance(60), raw]), HERE), Unreadable)


def test_google_counts_thirty_seconds_from_when_it_says_so() -> None:
    assert read_preempted(ok("FALSE", **GOOGLE), HERE) == NoNotice()
    assert read_preempted(ok("TRUE\n", **GOOGLE), HERE) == Reclaim(30.0, dated=False)


def test_google_s_maintenance_moves_or_ends_the_machine() -> None:
    assert read_gcp_maintenance(ok("NONE", **GOOGLE), HERE) == NoNotice()
    assert isinstance(read_gcp_maintenance(ok("MIGRATE_ON_HOST_MAINTENANCE", **GOOGLE), HERE), Hint)
    ends = read_gcp_maintenance(ok("TERMINATE_ON_HOST_MAINTENANCE", **GOOGLE), HERE)
    assert isinstance(ends, Reclaim)
    assert (ends.seconds_left, ends.code) == (60.0, "maintenance-terminate")


@pytest.mark.parametrize("reply", [ok("FALSE"), ok("false", **GOOGLE), ok("", **GOOGLE), Reply(404, "FALSE", GOOGLE)])
def test_who_is_not_google_s_server_is_not_believed(reply: Reply) -> None:
    assert isinstance(read_preempted(reply, HERE), Unreadable)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("Preempt", "spot-reclaim"),
        ("Reboot", "maintenance-reboot"),
        ("Redeploy", "maintenance-redeploy"),
        ("Terminate", "maintenance-terminate"),
    ],
)
def test_an_event_of_azure_ends_the_machine_at_its_time(kind: str, code: str) -> None:
    answer = read_events(events(event(kind, 30)), HERE)
    assert isinstance(answer, Reclaim)
    assert (answer.code, answer.seconds_left, answer.binding) == (code, 30.0, False)
    assert answer.event == "602d9444-d2cd-49c7-8624-8643e7171297"


def test_azure_s_events_of_other_machines_are_not_ours() -> None:
    assert read_events(events(event("Preempt", 30, "vm_1", "vm_2")), HERE) == NoNotice()
    assert isinstance(read_events(events(event("Preempt", 30, "vm_1", "vm_0")), HERE), Reclaim)
    assert read_events(events(), HERE) == NoNotice()


def test_without_its_own_name_nobody_knows_whose_azure_s_events_are() -> None:
    assert isinstance(read_events(events(), Here(HERE.now, DAY)), Unreadable)


def test_an_event_of_azure_that_has_begun_is_due_and_one_called_off_is_none() -> None:
    begun = read_events(events(event("Reboot", None, status="Started")), HERE)
    assert isinstance(begun, Reclaim)
    assert begun.seconds_left == 0.0
    assert read_events(events(event("Reboot", None, status="Canceled")), HERE) == NoNotice()


def test_azure_s_freeze_is_a_pause() -> None:
    assert isinstance(read_events(events(event("Freeze", 60)), HERE), Hint)


@pytest.mark.parametrize(
    "raw",
    [
        event("Reboot", None),  # no date, and not begun
        event("Reboot", -2 * DAY),
        event("Holiday", 60),
        {**event("Reboot", 60), "EventType": ["Reboot"]},
        {**event("Reboot", 60), "EventStatus": "Perhaps"},
        {**event("Reboot", 60), "EventId": "../../x"},
        {**event("Reboot", 60), "Resources": "vm_0"},
        {},
        None,
    ],
)
def test_an_event_of_azure_that_makes_no_sense_is_no_answer(raw: Any) -> None:
    assert isinstance(read_events(events(event("Preempt", 30), raw), HERE), Unreadable)


def test_azure_s_answer_without_incarnation_is_none() -> None:
    assert isinstance(read_events(ok({"Events": []}), HERE), Unreadable)


def test_azure_is_told_to_go_ahead_by_the_event_s_id() -> None:
    request = approve("id-1")
    assert (request.method, json.loads(request.body)) == ("POST", {"StartRequests": [{"EventId": "id-1"}]})
    assert request.headers == {"Metadata": "true"}


def test_alibaba_s_time_is_utc() -> None:
    assert read_termination(ok(iso(300)), HERE) == Reclaim(300.0)
    assert read_termination(Reply(404, ""), HERE) == NoNotice()
    assert isinstance(read_termination(ok("2026-03-01 12:05:00"), HERE), Unreadable)  # Tencent's form
    assert isinstance(read_termination(ok(iso(8 * 3600)), HERE), Unreadable)


FIRMWARE = {
    "tencent": {"sys_vendor": "Tencent Cloud", "product_name": "CVM"},
    "aws": {"sys_vendor": "Amazon EC2", "product_name": "p5.48xlarge"},
    "gcp": {"sys_vendor": "Google", "product_name": "Google Compute Engine"},
    "azure": {"sys_vendor": "Microsoft Corporation", "chassis_asset_tag": AZURE_TAG},
    "alibaba": {"sys_vendor": "Alibaba Cloud", "product_name": "Alibaba Cloud ECS"},
}


@pytest.mark.parametrize("name", PROVIDERS)
def test_each_cloud_is_known_by_its_firmware(name: str) -> None:
    assert detect(FIRMWARE[name]) == name
    assert detect({file: f" {text}\n" for file, text in FIRMWARE[name].items()}) == name


@pytest.mark.parametrize(
    "dmi",
    [
        {},
        {"sys_vendor": "QEMU", "product_name": "Standard PC"},
        {"sys_vendor": "Microsoft Corporation", "chassis_asset_tag": "7"},  # a Hyper-V at home
        {"sys_vendor": "Google", "product_name": "Chromebook"},
        {"sys_vendor": "Tencent Cloud", "board_vendor": "Alibaba Cloud"},
    ],
)
def test_another_machine_is_on_no_cloud_that_we_know(dmi: dict[str, str]) -> None:
    assert detect(dmi) is None


PARTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.just(iso(60)) | st.just(english(60)),
    lambda part: (
        st.lists(part, max_size=3)
        | st.dictionaries(
            st.sampled_from([*event("Reboot", 1), *maintenance(1), "Events", "DocumentIncarnation", "action", "time"]),
            part | st.sampled_from(["Reboot", "Scheduled", "active", "system-reboot", "terminate", "vm_0", ["vm_0"]]),
            max_size=7,
        )
    ),
    max_leaves=12,
)
HEADERS = st.dictionaries(st.sampled_from(["date", "metadata-flavor"]), st.text(max_size=30), max_size=2)


@given(
    st.sampled_from(QUESTIONS),
    st.sampled_from([200, 200, 404, 500]) | st.integers(),
    PARTS.map(json.dumps) | st.text(),
    HEADERS,
    st.floats(0, 4e9),
    st.floats(0, 1e9),
)
def test_no_answer_makes_a_reader_fail_nor_is_a_reason_without_bound(
    question: Any, status: int, body: str, headers: dict[str, str], now: float, uptime: float
) -> None:
    answer = read(question, Reply(status, body, headers), Here(now, uptime, "vm_0"))
    if status not in (200, 404):
        assert isinstance(answer, Unreadable)
    if isinstance(answer, Unreadable):
        assert len(answer.reason) < 500
    if isinstance(answer, Reclaim):
        assert answer.seconds_left >= 0
        assert len(answer.detail) < 500


@given(st.dictionaries(st.sampled_from(["sys_vendor", "product_name", "board_vendor"]), st.text(), max_size=3))
def test_no_firmware_makes_the_detection_fail(dmi: dict[str, str]) -> None:
    assert detect(dmi) in (None, *PROVIDERS)


def test_the_last_place_of_every_cloud_is_an_address_so_that_nothing_has_to_be_looked_up() -> None:
    for provider in PROVIDERS.values():
        ip_address(provider.bases[-1].removeprefix("http://"))
