"""The chat request states what the client requested, in the model's terms."""

from __future__ import annotations

from typing import Any, Final

import pytest

from llama_stack_responses.chat.profile import Profile, profile_for
from llama_stack_responses.chat.request import chat_request
from llama_stack_responses.requests.request import parse_create
from llama_stack_responses.tools.registry import client_tools
from llama_stack_responses.tools.toolset import Toolset

Json = dict[str, Any]

FUNCTION: Final[Json] = {"type": "function", "name": "f", "parameters": {"type": "object"}}
OTHER: Final[Json] = {"type": "function", "name": "g", "parameters": {"type": "object"}}
BARE: Final[Json] = {"model": "m", "messages": [], "stream": True, "stream_options": {"include_usage": True}}


def chat(function: Json) -> Json:
    """Return a function as chat requests have it."""
    return {"type": "function", "function": {"name": function["name"], "parameters": function["parameters"]}}


def chat_fields(*tools: Json, max_tokens: int | None = None, profile: Profile | None = None, **fields: Any) -> Json:
    """Return the fields of the chat request beyond those that are always sent."""
    request = parse_create({"model": "m", "input": "hi", "tools": [*tools], **fields})
    offer = Toolset(request, client_tools()).offer()
    created = chat_request(request, profile or Profile(), [], offer, max_tokens)
    assert {name: created.pop(name) for name in BARE} == BARE
    return created


def test_unset_fields_are_not_sent() -> None:
    assert chat_fields() == {}
    assert chat_fields(temperature=None, tools=[], reasoning={}, text={}, stream=True, metadata={"a": "b"}) == {}


def test_fields_with_same_name_are_passed_on() -> None:
    fields: Json = {"temperature": 0.0, "top_p": 0.5, "user": "u", "service_tier": "flex", "prompt_cache_key": "k"}
    assert chat_fields(**fields) == fields
    options = {"mode": "explicit", "ttl": "12h"}
    asked_for = chat_fields(prompt_cache_options=options | {"comparison_response_id": "resp_1"})
    assert asked_for == {"prompt_cache_options": options}


def test_token_limit_has_field_name_of_profile() -> None:
    assert chat_fields(max_tokens=7, max_output_tokens=19) == {"max_completion_tokens": 7}
    assert chat_fields(max_tokens=7, profile=Profile(max_tokens_field="max_tokens")) == {"max_tokens": 7}


def test_reasoning_effort_is_sent() -> None:
    assert chat_fields(reasoning={"effort": "max", "summary": "auto"}) == {"reasoning_effort": "max"}


def test_engine_parameters_are_sent() -> None:
    assert chat_fields(seed=1, stop=["x"], top_k=3) == {"seed": 1, "stop": ["x"], "top_k": 3}


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}, "auto"),
    ],
)
def test_tool_choice_is_mapped(choice: str | Json, expected: str) -> None:
    assert chat_fields(FUNCTION, OTHER, tool_choice=choice) == {
        "tools": [chat(FUNCTION), chat(OTHER)],
        "tool_choice": expected,
    }


def test_required_call_of_allowed_tools_sends_only_those() -> None:
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]}
    assert chat_fields(FUNCTION, OTHER, tool_choice=allowed) == {"tools": [chat(FUNCTION)], "tool_choice": "required"}


def test_tool_chosen_by_name_is_only_tool_sent() -> None:
    chosen = chat_fields(FUNCTION, OTHER, tool_choice={"type": "function", "name": "g"})
    assert chosen == {"tools": [chat(OTHER)], "tool_choice": "required"}


def test_parallel_tool_calls_is_sent() -> None:
    assert chat_fields(FUNCTION, parallel_tool_calls=False)["parallel_tool_calls"] is False
    assert "parallel_tool_calls" not in chat_fields(FUNCTION)


def test_tool_fields_are_not_sent_without_tools() -> None:
    assert chat_fields(tool_choice="none", parallel_tool_calls=True) == {}


def test_text_formats_are_mapped() -> None:
    assert chat_fields(text={"format": {"type": "text"}, "verbosity": "low"}) == {"verbosity": "low"}
    assert chat_fields(text={"format": {"type": "json_object"}}) == {"response_format": {"type": "json_object"}}
    schema = {"name": "n", "schema": {"type": "object"}, "strict": False}
    expected = {"response_format": {"type": "json_schema", "json_schema": schema}}
    assert chat_fields(text={"format": {"type": "json_schema", **schema, "description": None}}) == expected


def test_logprobs_are_requested() -> None:
    assert chat_fields(include=["message.output_text.logprobs"]) == {"logprobs": True}
    assert chat_fields(top_logprobs=2) == {"logprobs": True, "top_logprobs": 2}
    assert chat_fields(top_logprobs=0) == {}


@pytest.mark.parametrize(
    ("stream", "fields", "streamed"),
    [
        ("always", {}, True),
        ("as_asked", {}, False),
        ("as_asked", {"stream": True}, True),
        ("as_asked", {"background": True}, True),
        ("never", {"stream": True}, False),
        ("never", {"background": True}, False),
    ],
)
def test_profile_selects_whether_answer_is_streamed(stream: Any, fields: Json, streamed: bool) -> None:
    request = parse_create({"model": "m", "input": "hi", **fields})
    created = chat_request(request, Profile(stream=stream), [], ([], None), None)
    assert created == (BARE if streamed else {"model": "m", "messages": [], "stream": False})


def test_first_matching_profile_applies() -> None:
    first, second = Profile(match="local/qwen3*", audio=False), Profile(match="local/*", images=False)
    assert profile_for("local/qwen3-8b", [first, second]) is first
    assert profile_for("local/Qwen3-8b", [first, second]) is second
    assert profile_for("other/m", [first, second]) == Profile()
