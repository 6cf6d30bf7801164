"""Alibaba Cloud: the end of spot machines. Pure.

GET `instance/spot/termination-time`: 404 while nothing is announced; 200 with `2015-01-05T18:02:00Z`, UTC (Tencent's
is not), about five minutes ahead. A server in hardened mode wants a token; in normal mode it needs none (ECS
documentation).
"""

from __future__ import annotations

from typing import Final

from rlguard.health.clouds.request import Here, Provider, Question, Reply, Request, Token, moment, not_documented
from rlguard.health.spot import NOT_FOUND, OK, Answer, NoNotice, judge, server_now

_ISO: Final = "%Y-%m-%dT%H:%M:%SZ"


def read_termination(reply: Reply, here: Here) -> Answer:
    """The answer to `instance/spot/termination-time`."""
    if reply.status == NOT_FOUND:
        return NoNotice()
    end = moment(reply.body, _ISO) if reply.status == OK else None
    if end is None:
        return not_documented("spot notice", reply)
    return judge(end - server_now(reply.date, here.now), here.uptime, reply.body.strip())


ALIBABA: Final = Provider(
    "alibaba",
    ("http://100.100.100.200",),
    (Question("spot", Request("GET", "/latest/meta-data/instance/spot/termination-time"), read_termination),),
    Token(
        Request("PUT", "/latest/api/token", {"X-aliyun-ecs-metadata-token-ttl-seconds": "21600"}),
        "X-aliyun-ecs-metadata-token",
        required=False,
    ),
)
