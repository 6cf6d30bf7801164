"""Google Cloud: preemption of spot machines, and maintenance of the host. Pure.

Every request carries `Metadata-Flavor: Google`, without which the server says 403, and so does every answer of the
real server (Compute Engine documentation).

- `instance/preempted`: `TRUE` or `FALSE`. From the moment it turns TRUE the machine has 30 s (120 s only if it was made
  with preemptionNoticeDuration=120, which cannot be seen from inside).
- `instance/maintenance-event`: `NONE`, `MIGRATE_ON_HOST_MAINTENANCE` (it goes on elsewhere after a pause) or
  `TERMINATE_ON_HOST_MAINTENANCE`: one hour ahead for machines with GPUs, 60 s for others. Which one this is cannot be
  seen here, so 60 s are believed: to leave too early costs less than to leave too late.
"""

from __future__ import annotations

from typing import Final

from rlguard.health.clouds.request import Here, Provider, Question, Reply, Request, not_documented
from rlguard.health.spot import OK, Answer, Hint, NoNotice, Reclaim
from rlguard.model import Repair

PREEMPTION_LEAD: Final = 30.0
MAINTENANCE_LEAD: Final = 60.0
FLAVOR: Final = {"Metadata-Flavor": "Google"}
_INSTANCE: Final = "/computeMetadata/v1/instance"


def read_preempted(reply: Reply, _: Here) -> Answer:
    """The answer to `instance/preempted`."""
    match _text(reply):
        case "FALSE":
            return NoNotice()
        case "TRUE":
            return Reclaim(PREEMPTION_LEAD, dated=False)
        case _:
            return not_documented("preempted", reply)


def read_maintenance(reply: Reply, _: Here) -> Answer:
    """The answer to `instance/maintenance-event`."""
    match _text(reply):
        case "NONE":
            return NoNotice()
        case "MIGRATE_ON_HOST_MAINTENANCE":
            return Hint("maintenance-migrate", "Google moves this machine to another host; it pauses meanwhile")
        case "TERMINATE_ON_HOST_MAINTENANCE":
            detail = "Google ends this machine for maintenance of its host"
            return Reclaim(
                MAINTENANCE_LEAD, "maintenance-terminate", detail, Repair.REPLACE, dated=False, binding=False
            )
        case _:
            return not_documented("maintenance event", reply)


def _text(reply: Reply) -> str:
    """The body of an answer of the real server, empty for any other."""
    ours = reply.status == OK and reply.headers.get("metadata-flavor") == "Google"
    return reply.body.strip() if ours else ""


GCP: Final = Provider(
    "gcp",
    ("http://metadata.google.internal", "http://169.254.169.254"),
    (
        Question("spot", Request("GET", f"{_INSTANCE}/preempted", FLAVOR), read_preempted),
        Question("maintenance", Request("GET", f"{_INSTANCE}/maintenance-event", FLAVOR), read_maintenance),
    ),
)
