"""Lists are read from variables too, and parts whose variables are not set are absent."""

from typing import Any

import pytest
from pydantic import ValidationError

from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.core.input_policy import InputPolicy


def test_names_and_origins_are_read_from_lists_and_from_variables() -> None:
    lists = {"allowed_hosts": ["A.example.", "*.b.example", "*"], "allowed_origins": ["https://App.example:443/"]}
    texts = {"allowed_hosts": "a.example, *.b.example,*,", "allowed_origins": " https://app.example "}
    for given in (lists, texts):
        config = ResponsesConfig.model_validate(given)
        assert config.allowed_hosts == {"a.example", "*.b.example", "*"}
        assert config.allowed_origins == {"https://app.example"}
    for absent in ("", None):
        config = ResponsesConfig.model_validate({"allowed_hosts": absent, "allowed_origins": absent})
        assert (config.allowed_hosts, config.allowed_origins) == (frozenset(), frozenset())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("loopback", ["127.0.0.0/8", "::1/128"]),
        (["loopback", "10.1.0.0/16"], ["127.0.0.0/8", "::1/128", "10.1.0.0/16"]),
        (" 10.1.0.0/16,192.168.0.7 ", ["10.1.0.0/16", "192.168.0.7/32"]),
        ("", []),
        (None, []),
    ],
)
def test_networks_are_read_from_lists_and_from_variables(given: Any, expected: list[str]) -> None:
    config = ResponsesConfig.model_validate({"fetch": {"allowed_networks": given}})
    assert [str(each) for each in config.fetch.allowed_networks] == expected


def test_network_that_is_none_is_an_error() -> None:
    with pytest.raises(ValidationError, match=r"fetch\.allowed_networks"):
        ResponsesConfig.model_validate({"fetch": {"allowed_networks": "localnet"}})


@pytest.mark.parametrize(
    "name", ["https://a.example", "a.example:80", "a b", "a.*", "**.a", "*a.example", "[::1]", "."]
)
def test_host_name_with_more_than_a_name_is_an_error(name: str) -> None:
    with pytest.raises(ValidationError, match=r"such as 'responses\.example\.com'"):
        ResponsesConfig.model_validate({"allowed_hosts": [name]})


@pytest.mark.parametrize("origin", ["a.example", "*", "null", "https://", "https://a.example/path", "https://a@b"])
def test_origin_with_more_or_less_than_an_origin_is_an_error(origin: str) -> None:
    with pytest.raises(ValidationError, match=r"such as 'https://app\.example\.com'"):
        ResponsesConfig.model_validate({"allowed_origins": [origin]})


def test_input_of_which_a_part_is_lost_is_handled_as_configured() -> None:
    config = ResponsesConfig()
    assert config.input_policy == InputPolicy(drops_reasoning=False, fills_calls=True)
    assert config.request_limits.call_ids_required
    config = ResponsesConfig(unreadable_reasoning="drop", unanswered_calls="refuse", missing_call_ids="match")
    assert config.input_policy == InputPolicy(drops_reasoning=True, fills_calls=False)
    assert not config.request_limits.call_ids_required
