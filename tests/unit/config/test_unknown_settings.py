"""What is said of settings that there are not where they stand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import pytest
from pydantic import BaseModel, ValidationError

from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.config.unknown_settings import WRONG_VALUE, models_in

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
        ({"store": {"type": "sqlite", "pth": "a"}}, "store.pth", "did you mean 'path'?"),
        ({"allowed_networks": ["loopback"]}, "allowed_networks", "move it to 'fetch.allowed_networks'"),
        ({"fetch": {"ready_providers": []}}, "fetch.ready_providers", "move it to 'ready_providers'"),
        ({"fetch": {"rounds": 3}}, "fetch.rounds", "move it to 'limits.rounds'"),
        ({"limits": {"json_values": 3}}, "limits.json_values", "move it to 'limits.bodies.json_values'"),
        ({"store": {"type": "sqlite", "url": "a"}}, "store.url", "take it out; this block has type, path"),
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


@pytest.mark.parametrize(
    ("config", "place", "advice"),
    [
        ({"fetch": {"allowed_networks": ["loopbck"]}}, "fetch.allowed_networks.0", "did you mean 'loopback'?"),
        ({"fetch": {"allowed_networks": "10.1.2.3/16"}}, "fetch.allowed_networks.0", "did you mean '10.1.0.0/16'?"),
        (
            {"fetch": {"allowed_networks": ["loopback", 3]}},
            "fetch.allowed_networks.1",
            "nor 'loopback', which is this machine",
        ),
        (
            {"fetch": {"nat64_prefixes": ["10.0.0.0/8"]}},
            "fetch.nat64_prefixes.0",
            "this is not an IPv6 network such as 2001:db8:64::/96",
        ),
        ({"fetch": 3}, "fetch", "a mapping is expected here"),
        ({"profiles": {}}, "profiles", "a list is expected here"),
        (
            {"ready_providers": "al"},
            "ready_providers",
            "one of any, all, or a list is expected here; did you mean 'all'?",
        ),
        ({"ready_providers": [3]}, "ready_providers.0", "a text is expected here"),
        ({"unavailable_tools": {"web_serch": "omit"}}, "unavailable_tools.web_serch", "did you mean 'web_search'?"),
        ({"unavailable_tools": {"web_search": "omitt"}}, "unavailable_tools.web_search", "did you mean 'omit'?"),
        ({"unavailable_tools": {"x": "y"}}, "unavailable_tools.x", "mcp, programmatic_tool_calling, shell, web_search"),
        ({"usage": {"currency": "euro"}}, "usage.currency", "it must match pattern '^[a-z]{3}$'"),
        ({"log_owner": "hashd"}, "log_owner", "it is one of off, hashed, named; did you mean 'hashed'?"),
        ({"store": {"type": "sqlit"}}, "store.type", "redis, cluster, postgres, host, other; did you mean 'sqlite'?"),
        (
            {"store": {"path": "a"}},
            "store.type",
            "this setting is missing: it is one of memory, sqlite, redis, cluster, postgres, host, other",
        ),
        ({"store": "sqlite"}, "store", "a mapping is expected here"),
        ({"retention_days": "x"}, "retention_days", "a number is expected here"),
        ({"limits": {"rounds": 1.5}}, "limits.rounds", "a whole number is expected here"),
        ({"limits": {"rounds": 0}}, "limits.rounds", "it must be greater than or equal to 1"),
        ({"host_shortcuts": "maybe"}, "host_shortcuts", "true or false is expected here"),
    ],
)
def test_wrong_value_is_named_once_with_what_is_expected(config: Json, place: str, advice: str) -> None:
    [(named, text)] = said(config).items()
    assert named == place
    assert text.endswith(advice)


WRONG: Final = ["sesame", 3.5, True, ["sesame"], {"sesame": "sesame"}]
INTERNAL: Final = re.compile(r"Input|should|dictionary|instance|frozenset|tag|\w\[|sesame|<|Value error|python|valid ")


def wrong_values(model: type[BaseModel], *place: str) -> Iterator[Json]:
    """Yield a configuration for each of the wrong values at the place of each setting."""
    for name, field in model.model_fields.items():
        for value in WRONG:
            config: Any = value
            for each in reversed([*place, name]):
                config = {each: config}
            yield config
        for inner in models_in(field.annotation):
            if "type" not in inner.model_fields:
                yield from wrong_values(inner, *place, name)


def test_no_wrong_value_is_explained_in_words_of_pydantic() -> None:
    refused = 0
    for config in wrong_values(ResponsesConfig):
        try:
            ResponsesConfig.model_validate(config)
        except ValidationError as error:
            for each in error.errors(include_input=False):
                if each["type"] != WRONG_VALUE:
                    continue  # a setting that there is not
                refused += 1
                assert not INTERNAL.search(each["msg"]), (config, each["loc"], each["msg"])
    assert refused > 300
