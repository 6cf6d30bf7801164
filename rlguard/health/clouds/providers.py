"""All clouds, and on which one a machine runs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rlguard.health.clouds.alibaba import ALIBABA
from rlguard.health.clouds.aws import AWS
from rlguard.health.clouds.azure import AZURE
from rlguard.health.clouds.gcp import GCP
from rlguard.health.clouds.request import Here, Provider, Question, Reply, Request
from rlguard.health.spot import PATH, Answer, read_tencent


def _read_tencent(reply: Reply, here: Here) -> Answer:
    return read_tencent(reply.status, reply.body, reply.date, here.now, here.uptime)


TENCENT: Final = Provider(
    "tencent",
    # By name where the host's name servers know it, else by address.
    ("http://metadata.tencentyun.com", "http://169.254.0.23"),
    (Question("spot", Request("GET", PATH), _read_tencent),),
)

PROVIDERS: Final[Mapping[str, Provider]] = {one.name: one for one in (TENCENT, AWS, GCP, AZURE, ALIBABA)}

DMI_FILES: Final = ("sys_vendor", "product_name", "chassis_asset_tag", "board_vendor")
"""The files of /sys/class/dmi/id that tell the cloud."""
AZURE_TAG: Final = "7783-7084-3265-9085-8269-3286-77"
"""The chassis tag of every Azure machine; its vendor alone may also be a Hyper-V at home."""


def detect(dmi: Mapping[str, str]) -> str | None:
    """The name of the provider whose machines describe themselves so (file -> content), None if it is none of ours."""
    words = {name: text.strip() for name, text in dmi.items()}
    vendors = {words.get("sys_vendor", ""), words.get("board_vendor", "")}
    product = words.get("product_name", "")
    marks = {
        "tencent": "Tencent Cloud" in vendors,
        "aws": "Amazon EC2" in vendors,
        "gcp": "Google" in vendors and product in ("Google", "Google Compute Engine"),
        "azure": "Microsoft Corporation" in vendors and words.get("chassis_asset_tag") == AZURE_TAG,
        "alibaba": "Alibaba Cloud" in vendors,
    }
    found = [name for name, marked in marks.items() if marked]
    return found[0] if len(found) == 1 else None
