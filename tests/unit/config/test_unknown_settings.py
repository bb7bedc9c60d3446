"""What is said of settings that there are not where they stand."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.config.stack_file import misplaced_settings

Json = dict[str, Any]


def said(config: Any) -> dict[str, str]:
    """Return what is said of each wrong setting, by its place."""
    with pytest.raises(ValidationError) as raised:
        ResponsesConfig.model_validate(config)
    return {".".join(map(str, each["loc"])): each["msg"] for each in raised.value.errors()}


@pytest.mark.parametrize(
    ("config", "place", "advice"),
    [
        ({"retention_dayz": 3}, "retention_dayz", "did you mean 'retention_days'?"),
        ({"fetch": {"allowed_network": []}}, "fetch.allowed_network", "did you mean 'allowed_networks'?"),
        ({"profiles": [{"match": "*", "imges": True}]}, "profiles.0.imges", "did you mean 'images'?"),
        ({"store": {"type": "sqlite", "pth": "a"}}, "store.sqlite.pth", "did you mean 'path'?"),
        ({"allowed_networks": ["loopback"]}, "allowed_networks", "move it to 'fetch.allowed_networks'"),
        ({"fetch": {"retention_days": 3}}, "fetch.retention_days", "move it to 'retention_days'"),
        ({"fetch": {"rounds": 3}}, "fetch.rounds", "move it to 'limits.rounds'"),
        ({"limits": {"json_values": 3}}, "limits.json_values", "move it to 'limits.bodies.json_values'"),
        ({"store": {"type": "sqlite", "url": "a"}}, "store.sqlite.url", "take it out; this block has type, path"),
        ({"qqq": 3}, "qqq", "take it out; the features of this installation are admin,"),
    ],
)
def test_unknown_setting_is_named_with_what_may_be_meant(config: Json, place: str, advice: str) -> None:
    [(named, text)] = said(config).items()
    assert named == place
    assert text.startswith("there is no such setting here")
    assert advice in text


def test_all_wrong_settings_are_named() -> None:
    wrong = {"retention_dayz": 3, "memory_config": {}, "fetch": {"allowed_network": [], "seconds": -1}, "secrets": [""]}
    places = ["fetch.allowed_network", "fetch.seconds", "memory_config", "retention_dayz", "secrets.0"]
    assert sorted(said(wrong)) == places


def test_values_are_not_repeated() -> None:
    with pytest.raises(ValidationError) as raised:
        ResponsesConfig.model_validate({"secretz": "sesame", "secrets": ["sesame"], "fetch": {"seconds": "sesame"}})
    assert "sesame" not in str(raised.value)


def test_settings_at_levels_that_the_host_ignores_are_named_with_their_place() -> None:
    entry = {"provider_id": "r", "provider_type": "inline::kv", "module": "m", "config": {}, "allowed_networks": []}
    stack = {"version": 2, "providers": {"responses": [entry]}, "fetch": {}, "name": "a", "seconds": 3, "server": {}}
    assert misplaced_settings(stack) == {"fetch": "fetch", "allowed_networks": "fetch.allowed_networks"}
    assert misplaced_settings(stack, ["fetch"]) == {"allowed_networks": "fetch.allowed_networks"}
