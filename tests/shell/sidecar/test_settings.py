"""The environment that the injector sets, read once."""

from __future__ import annotations

import pytest

from rlguard.errors import BadConfigError
from rlguard.model import GroupKey
from rlguard_sidecar.settings import read_settings

WHOLE = {
    "RLGUARD_NAMESPACE": "team",
    "RLGUARD_POD": "ppo-0",
    "RLGUARD_POD_UID": "u",
    "RLGUARD_NODE": "n",
    "RLGUARD_HOST_IP": "10.0.0.1",
    "RLGUARD_POD_IP": "10.0.0.1",
    "RLGUARD_JOB": "ppo",
    "RLGUARD_GROUP": "0",
    "RLGUARD_INDEX": "0",
    "RLGUARD_SIZE": "2",
    "RLGUARD_CA": "pem",
    "RLGUARD_LISTEN_FD": "3",
    "RLGUARD_KEEP_FD": "4",
}


def test_a_whole_environment_gives_settings_with_defaults() -> None:
    settings = read_settings(WHOLE)
    assert settings.key == GroupKey("team", "ppo", 0)
    assert settings.leads
    assert settings.root is None
    assert settings.controller == ""
    assert str(settings.run) == "/rlguard/run"


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_a_missing_variable_is_named(name: str) -> None:
    with pytest.raises(BadConfigError, match=name):
        read_settings({key: value for key, value in WHOLE.items() if key != name})


@pytest.mark.parametrize(("name", "value"), [("RLGUARD_SIZE", "-1"), ("RLGUARD_GRACE", "soon"), ("RLGUARD_RUN", "run")])
def test_a_bad_value_is_named_and_shown(name: str, value: str) -> None:
    with pytest.raises(BadConfigError, match=f"{name}.*{value}"):
        read_settings({**WHOLE, name: value})
