"""AWS: spot interruptions, rebalance recommendations and scheduled maintenance. Pure.

Instance metadata service version 2: a token is PUT for and then sent along; 401 says that it is no longer good (EC2
user guide; with a hop limit of 1 it does not reach pods outside of the host's network). All questions answer 404 while
there is nothing to say.

- `spot/instance-action`: `{"action": "terminate", "time": "2026-01-02T03:04:05Z"}`, two minutes ahead, by best effort;
  `stop` and `terminate` end the machine then, `hibernate` begins at once.
- `events/recommendations/rebalance`: `{"noticeTime": "...Z"}`, earlier than the former and not always: a hint.
- `events/maintenance/scheduled`: a JSON array, days ahead, with `NotBefore` as `21 Jan 2019 09:00:43 GMT`, `Code`,
  `EventId`, and `State`: `active`, or `completed` or `canceled`, which take it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from rlguard.health.clouds.request import (
    Here,
    Provider,
    Question,
    Reply,
    Request,
    Token,
    as_list,
    as_object,
    moment,
    not_documented,
    scheduled,
    worst,
)
from rlguard.health.spot import NOT_FOUND, Answer, Hint, NoNotice, Reclaim, Unreadable, judge, server_now
from rlguard.model import Repair

REBALANCE: Final = "spot-rebalance"
LASTS: Final = "21600"
"""Seconds for which a token is asked."""

_ISO: Final = "%Y-%m-%dT%H:%M:%SZ"
_ENGLISH: Final = "%d %b %Y %H:%M:%S GMT"
_ACTIONS: Final = ("terminate", "stop", "hibernate")
_OVER: Final = ("completed", "canceled")
_EVENTS: Final[Mapping[str, Repair]] = {
    "instance-reboot": Repair.REBOOT,
    "system-reboot": Repair.REBOOT,
    "system-maintenance": Repair.REBOOT,
    "instance-retirement": Repair.REPLACE,
    "instance-stop": Repair.REPLACE,
}


def read_action(reply: Reply, here: Here) -> Answer:
    """The answer to `spot/instance-action`."""
    if reply.status == NOT_FOUND:
        return NoNotice()
    value = as_object(reply)
    end = moment(value.get("time"), _ISO)
    if end is None or value.get("action") not in _ACTIONS:
        return not_documented("spot notice", reply)
    answer = judge(end - server_now(reply.date, here.now), here.uptime, value["time"])
    if isinstance(answer, Reclaim) and value["action"] == "hibernate":
        return replace(answer, seconds_left=0.0)
    return answer


def read_rebalance(reply: Reply, here: Here) -> Answer:
    """The answer to `events/recommendations/rebalance`."""
    if reply.status == NOT_FOUND:
        return NoNotice()
    value = as_object(reply)
    given = moment(value.get("noticeTime"), _ISO)
    if given is None or given > server_now(reply.date, here.now) + 60:
        return not_documented("rebalance recommendation", reply)
    return Hint(
        REBALANCE, f"this spot instance is more likely than before to be taken back, says AWS since {given:.0f}"
    )


def read_maintenance(reply: Reply, here: Here) -> Answer:
    """The answer to `events/maintenance/scheduled`."""
    if reply.status == NOT_FOUND:
        return NoNotice()
    events = as_list(reply)
    if events is None:
        return not_documented("scheduled maintenance", reply)
    return worst([_event(raw, reply, here) for raw in events]) or NoNotice()


def _event(raw: Any, reply: Reply, here: Here) -> Answer:
    if not isinstance(raw, dict) or raw.get("State") not in ("active", *_OVER):
        return Unreadable(f"scheduled maintenance: no event: {raw!r:.80}")
    if raw["State"] in _OVER:
        return NoNotice()
    begins, code = moment(raw.get("NotBefore"), _ENGLISH), raw.get("Code")
    if begins is None or not isinstance(code, str) or code not in _EVENTS:
        return Unreadable(f"scheduled maintenance: no event: {raw!r:.80}")
    detail = f"AWS announces {code} not before {raw['NotBefore']}"
    return scheduled(f"maintenance-{code}", detail, begins - server_now(reply.date, here.now), here, _EVENTS[code])


AWS: Final = Provider(
    "aws",
    ("http://169.254.169.254",),
    (
        Question("spot", Request("GET", "/latest/meta-data/spot/instance-action"), read_action),
        Question("rebalance", Request("GET", "/latest/meta-data/events/recommendations/rebalance"), read_rebalance),
        Question("maintenance", Request("GET", "/latest/meta-data/events/maintenance/scheduled"), read_maintenance),
    ),
    Token(
        Request("PUT", "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": LASTS}),
        "X-aws-ec2-metadata-token",
        required=True,
    ),
)
