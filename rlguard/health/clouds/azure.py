"""Azure: scheduled events, the early end of spot machines among them. Pure.

`/metadata/scheduledevents` with the header `Metadata: true` tells the events of **all** machines of a set: those of
this one name it in `Resources`. Leads (Azure documentation): Preempt 30 s, Freeze and Reboot 15 min, Redeploy 10 min,
Terminate 5 to 15 min. `NotBefore` is `Thu, 22 Jul 2021 04:50:17 GMT`, and empty once the event has started. An event
that was called off or is done is no longer listed. The first call of a machine switches the service on, which may take
two minutes without answer; it is switched off again after a day without calls.

To POST an event's id as a StartRequest lets it begin at once instead of at its time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from rlguard.health.clouds.request import (
    Here,
    Provider,
    Question,
    Reply,
    Request,
    as_object,
    moment,
    not_documented,
    scheduled,
    worst,
)
from rlguard.health.spot import SPOT, Answer, Hint, NoNotice, Unreadable, server_now
from rlguard.model import Repair

PATH: Final = "/metadata/scheduledevents?api-version=2020-07-01"
HEADERS: Final = {"Metadata": "true"}
NAME: Final = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"

_DATE: Final = "%a, %d %b %Y %H:%M:%S GMT"
_ID: Final = re.compile(r"[0-9A-Za-z-]{1,64}", re.ASCII)
_ENDS: Final[Mapping[str, tuple[str, Repair]]] = {
    "Preempt": (SPOT, Repair.REPLACE),
    "Terminate": ("maintenance-terminate", Repair.REPLACE),
    "Redeploy": ("maintenance-redeploy", Repair.REPLACE),
    "Reboot": ("maintenance-reboot", Repair.REBOOT),
}
_STATUS: Final = ("Scheduled", "Started")
_OVER: Final = ("Canceled", "Completed")


def read_events(reply: Reply, here: Here) -> Answer:
    """The answer to `scheduledevents`."""
    value = as_object(reply)
    events = value.get("Events")
    if not isinstance(events, list) or not isinstance(value.get("DocumentIncarnation"), int):
        return not_documented("scheduled events", reply)
    if not here.instance:
        return Unreadable("scheduled events: the own name is not known, by which an event could be told from another's")
    return worst([_event(raw, reply, here) for raw in events]) or NoNotice()


def _event(raw: Any, reply: Reply, here: Here) -> Answer:
    resources = raw.get("Resources") if isinstance(raw, dict) else None
    if not isinstance(resources, list) or raw.get("EventStatus") not in (*_STATUS, *_OVER):
        return Unreadable(f"scheduled events: no event: {raw!r:.80}")
    if here.instance not in resources or raw["EventStatus"] in _OVER:
        return NoNotice()
    return _ours(raw, reply, here)


def _ours(raw: Mapping[str, Any], reply: Reply, here: Here) -> Answer:
    kind, event = raw.get("EventType"), raw.get("EventId")
    if not isinstance(event, str) or not _ID.fullmatch(event):
        return Unreadable(f"scheduled events: no event: {raw!r:.80}")
    if kind == "Freeze":
        return Hint("maintenance-freeze", f"Azure pauses this machine for seconds (event {event})")
    left = _left(raw, reply, here)
    if not isinstance(kind, str) or kind not in _ENDS or left is None:
        return Unreadable(f"scheduled events: no event: {raw!r:.80}")
    code, repair = _ENDS[kind]
    return scheduled(code, f"Azure announces {kind} (event {event})", left, here, repair, event)


def _left(raw: Mapping[str, Any], reply: Reply, here: Here) -> float | None:
    """Seconds until the event; 0 once it has started, None if that cannot be read."""
    if raw.get("EventStatus") == "Started":
        return 0.0
    begins = moment(raw.get("NotBefore"), _DATE)
    return None if begins is None else begins - server_now(reply.date, here.now)


def approve(event: str) -> Request:
    """What lets an event begin before its time."""
    return Request("POST", PATH, HEADERS, json.dumps({"StartRequests": [{"EventId": event}]}))


AZURE: Final = Provider(
    "azure",
    ("http://169.254.169.254",),
    (Question("events", Request("GET", PATH, HEADERS), read_events),),
    instance=Request("GET", NAME, HEADERS),
    approve=approve,
)
