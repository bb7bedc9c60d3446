"""The response object has every field of OpenAI's type and no other."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.responses import Response, ResponseUsage
from pydantic import BaseModel

from llama_stack_responses.requests.request import parse_create
from llama_stack_responses.stream.response import new_response
from llama_stack_responses.stream.usage import Usage, usage_of
from tests.support.conform import ALLOWED_KEYS

Json = dict[str, Any]

ID = "resp_0123456789abcdef"
SOME = Usage(10, 5, cached_tokens=3, cache_write_tokens=2, reasoning_tokens=4)


def response(**fields: Any) -> Json:
    return new_response(parse_create({"model": "m", "input": "hi", **fields}), id=ID, created_at=1_700_000_000)


def assert_declared(value: Any) -> None:
    """Assert that no model in `value` has a key that its type does not declare."""
    if isinstance(value, BaseModel):
        extra = (value.model_extra or {}).keys() - ALLOWED_KEYS.get(type(value), frozenset())
        assert not extra, f"{type(value).__name__}: {extra}"
        for name in type(value).model_fields:
            assert_declared(getattr(value, name))
    elif isinstance(value, list):
        for entry in value:
            assert_declared(entry)


REQUESTS: dict[str, Json] = {
    "bare": {},
    "tuned": {
        "temperature": 0,
        "frequency_penalty": 0.5,
        "presence_penalty": -2,
        "top_p": 0.5,
        "top_logprobs": 3,
        "max_output_tokens": 50,
        "max_tool_calls": 2,
    },
    "functions": {
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True, "async": True}],
        "tool_choice": {"type": "function", "name": "f"},
        "parallel_tool_calls": False,
    },
    "allowed": {
        "tools": [{"type": "function", "name": "f"}],
        "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]},
    },
    "text": {"text": {"format": {"type": "json_object"}, "verbosity": "low"}},
    "schema": {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"a": 1}, "strict": None}}},
    "reasoning": {"reasoning": {"effort": "high", "summary": "auto", "context": "auto", "mode": "pro"}},
    "cache": {
        "prompt_cache_key": "k",
        "prompt_cache_options": {"ttl": "12h", "prewarm": False, "comparison_response_id": "resp_1"},
        "prompt_cache_retention": "24h",
    },
    "rest": {
        "access_programs": {"cyber": "standard"},
        "image": {"context_compression": "disabled"},
        "instructions": "Be short.",
        "metadata": {"a": "b"},
        "previous_response_id": ID,
        "safety_identifier": "s",
        "service_tier": "ultrafast",
        "user": "u",
        "store": False,
        "stream": True,
    },
    "empty": {"access_programs": {}, "image": {}, "text": {}, "reasoning": {}, "prompt_cache_options": {}},
}


@pytest.mark.parametrize("fields", REQUESTS.values(), ids=REQUESTS)
def test_response_matches_openai_type(fields: Json) -> None:
    created = response(**fields)
    model = Response.model_validate(created, strict=True)
    assert_declared(model)
    typed = {field.alias or name for name, field in Response.model_fields.items()}
    assert created.keys() == typed | ALLOWED_KEYS[Response]


def test_request_fields_are_echoed() -> None:
    for fields in REQUESTS.values():
        created = response(**fields)
        for name, value in fields.items():
            if name not in {
                "stream",
                "tools",
                "text",
                "reasoning",
                "prompt_cache_options",
                *REQUESTS["empty"],
            }:
                assert created[name] == value, name


def test_response_has_defaults() -> None:
    assert {name: value for name, value in response().items() if value is not None} == {
        "id": ID,
        "object": "response",
        "created_at": 1_700_000_000,
        "status": "in_progress",
        "background": False,
        "billing": {"payer": "developer"},
        "frequency_penalty": 0.0,
        "metadata": {},
        "model": "m",
        "output": [],
        "parallel_tool_calls": True,
        "presence_penalty": 0.0,
        "reasoning": {"effort": None, "summary": None, "context": "current_turn"},
        "service_tier": "default",
        "store": True,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
    }


def test_zero_temperature_is_kept() -> None:
    assert (response(temperature=0)["temperature"], response(top_p=0)["top_p"]) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("wanted", "shown"), [(None, "default"), ("auto", "default"), ("fast", "priority"), ("flex", "flex")]
)
def test_service_tier_is_effective_tier(wanted: str | None, shown: str) -> None:
    assert response(service_tier=wanted)["service_tier"] == shown


def test_image_policy_is_effective_policy() -> None:
    assert response(image={"context_compression": "auto"})["image"] is None
    assert response(image={"context_compression": "disabled"})["image"] == {"context_compression": "disabled"}


def test_cache_options_are_complete() -> None:
    options = response(prompt_cache_options={"mode": "explicit", "prewarm": False})["prompt_cache_options"]
    assert options == {"mode": "explicit", "ttl": "30m"}


def test_echoed_function_has_parameters_and_strict() -> None:
    [tool] = response(tools=[{"type": "function", "name": "f"}])["tools"]
    assert tool == {"type": "function", "name": "f", "description": None, "parameters": None, "strict": None}


def test_responses_do_not_share_output() -> None:
    request = parse_create({"model": "m", "input": "hi"})
    first = new_response(request, id=ID, created_at=0)
    first["output"].append({})
    assert new_response(request, id=ID, created_at=0)["output"] == []


@pytest.mark.parametrize("created", [usage_of(Usage()), usage_of(SOME)], ids=["zero", "some"])
def test_usage_matches_openai_type(created: Json) -> None:
    model = ResponseUsage.model_validate(created, strict=True)
    assert_declared(model)
    assert model.total_tokens == model.input_tokens + model.output_tokens


def test_usage_counts_are_in_their_fields() -> None:
    assert usage_of(SOME) == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 2},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 4},
        "total_tokens": 15,
    }


@pytest.mark.parametrize("default", ["always", "never"])
def test_mcp_server_shows_effective_approval(default: Any) -> None:
    server = {"type": "mcp", "server_label": "s", "server_url": "https://example.com/mcp"}
    request = parse_create({"model": "m", "input": "hi", "tools": [server, {**server, "server_label": "t"}]})
    request.tools[1]["require_approval"] = "always"
    shown = new_response(request, id=ID, created_at=0, mcp_approval=default)["tools"]
    assert [tool["require_approval"] for tool in shown] == [default, "always"]
