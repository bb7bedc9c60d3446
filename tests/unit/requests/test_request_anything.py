"""Any request body gives a request that can be stored and sent on, or a 400."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.requests.input_items import parse_input
from llama_stack_responses.requests.request import FIELDS, CreateRequest, parse_create, request_schema
from llama_stack_responses.stream.response import new_response

Json = dict[str, Any]

TOKEN: Json = {"token": "a", "bytes": [97], "logprob": -0.5}
ITEMS: list[Json] = [
    {"role": "user", "content": "a"},
    {
        "type": "message",
        "role": "user",
        "content": [
            {"type": "input_text", "text": "a", "prompt_cache_breakpoint": {"mode": "explicit"}},
            {"type": "input_image", "image_url": "https://a"},
            {"type": "input_file", "file_id": "a"},
            {"type": "input_audio", "input_audio": {"data": "SUQz", "format": "mp3"}},
        ],
    },
    {
        "role": "assistant",
        "content": [
            {"type": "input_text", "text": "a"},
            {
                "type": "output_text",
                "text": "a",
                "annotations": [{"type": "file_path", "file_id": "a", "index": 0}],
                "logprobs": [{**TOKEN, "top_logprobs": [TOKEN]}],
            },
            {"type": "refusal", "refusal": "a"},
        ],
        "phase": "commentary",
    },
    {"type": "reasoning", "id": None, "summary": ["a"], "content": [{"type": "text", "text": "a"}]},
    {"type": "function_call", "call_id": "a", "name": "f", "arguments": "", "caller": {"type": "direct"}},
    {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "a"}]},
    {"type": "mcp_call", "server_label": "s", "name": "f", "arguments": "{}", "error": "a"},
    {
        "type": "mcp_call",
        "server_label": "s",
        "name": "f",
        "arguments": "{}",
        "error": {"type": "http_error", "code": 1, "message": "a"},
    },
    {"id": "msg_1"},
]
TOOLS: list[Json] = [
    {"type": "function", "name": "f", "parameters": {"a": [1]}},
    {"type": "function", "name": "g"},
    {
        "type": "namespace",
        "name": "n",
        "description": "a",
        "tools": [{"type": "function", "name": "f", "strict": True}],
    },
    {
        "type": "mcp",
        "server_label": "s",
        "server_url": "https://a",
        "headers": {"a": "b"},
        "allowed_tools": ["f"],
        "require_approval": "always",
    },
    {
        "type": "mcp",
        "server_label": "t",
        "connector_id": "c",
        "allowed_tools": {"tool_names": ["f"], "read_only": True},
        "require_approval": {"never": {"tool_names": ["f"]}},
    },
]
BODY: Json = {
    "model": "m",
    "input": ITEMS,
    "include": ["reasoning.encrypted_content"],
    "instructions": "a",
    "max_output_tokens": 50,
    "metadata": {"a": "b"},
    "previous_response_id": "resp_0123456789abcdef",
    "prompt_cache_options": {"mode": "explicit", "ttl": "12h"},
    "reasoning": {"effort": "low", "mode": "pro"},
    "seed": 1,
    "stream": True,
    "stream_options": {"include_obfuscation": False},
    "temperature": 0.5,
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {"a": [1]}}},
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
    "tools": TOOLS,
    "top_logprobs": 1,
}
OTHER_BODY: Json = {
    "model": "m",
    "context_management": [{"type": "compaction", "compact_threshold": 1}],
    "conversation": {"id": "conv_1"},
    "moderation": {"model": "m", "policy": {"input": {"mode": "score"}, "output": {"mode": "block"}}},
    "prompt": {"id": "p", "variables": {"a": "b"}, "version": "1"},
}

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=4)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def spoiled(draw: st.DrawFn, value: Any) -> Any:
    """Return `value` with one part of it, at any depth, left out or replaced by any JSON."""
    keys: list[Any] = []
    if isinstance(value, dict | list):
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    if not keys or draw(st.integers(0, 9)) == 0:
        return draw(JSON)
    key = draw(st.sampled_from(keys))
    copy = value.copy()
    if draw(st.integers(0, 9)) == 0:
        del copy[key]
    else:
        copy[key] = draw(spoiled(value[key]))
    return copy


def outcome(body: Any) -> CreateRequest | ApiError:
    try:
        return parse_create(body)
    except ApiError as error:
        return error


def test_samples_are_accepted() -> None:
    assert isinstance(outcome(BODY), CreateRequest)
    assert isinstance(outcome(OTHER_BODY), CreateRequest)


@settings(max_examples=300)
@given(JSON | spoiled(BODY) | spoiled(OTHER_BODY))
def test_arbitrary_body_is_accepted_or_400(body: Any) -> None:
    before = deepcopy(body)
    result = outcome(body)
    assert repr(body) == repr(before)  # compared as text, since NaN is not equal to itself
    if isinstance(result, ApiError):
        assert result.status == 400
        assert orjson.dumps(result.body())
    else:
        assert result.input_items or result.previous_response_id or result.conversation or result.prompt
        assert parse_input(result.input_items) == result.input_items
        assert orjson.dumps(new_response(result, id="resp_0123456789abcdef", created_at=0))


SCHEMA = Draft202012Validator(request_schema())


@settings(max_examples=300)
@given(spoiled(BODY))
def test_schema_accepts_every_accepted_body(body: Any) -> None:
    if isinstance(outcome(body), CreateRequest):
        SCHEMA.validate(body)


@pytest.mark.parametrize("field", sorted((BODY | OTHER_BODY).keys() - {"seed"}))
def test_schema_rejects_only_refused_values(field: str) -> None:
    wrongs: list[Any] = [{}, [[]], "", -1, 0.1, True]
    for body in ({**BODY, field: wrong} for wrong in wrongs):
        assert SCHEMA.is_valid(body) or isinstance(outcome(body), ApiError)
    assert not SCHEMA.is_valid({**BODY, field: [[]]})


@pytest.mark.parametrize(
    ("change", "described"),
    [
        ({"tools": [{"type": "function", "name": 5}]}, "function"),
        (
            {"tools": [{"type": "namespace", "name": "n", "description": "a", "tools": [{"type": "function"}]}]},
            "namespace",
        ),
        ({"tools": [{"type": "mcp", "server_url": "https://a"}]}, "mcp"),
        ({"tools": [{"type": "mcp", "server_label": "s", "require_approval": "sometimes"}]}, "approval"),
        ({"input": [{"role": "user", "content": 5}]}, "content"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "part of content"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "detail": "low"}]}]}, "image"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": 5}]}]}, "URL"),
        ({"input": [{"role": "assistant", "content": [{"type": "input_image", "image_url": "https://a"}]}]}, "answer"),
        ({"input": [{"type": "reasoning", "summary": [{"type": "summary_text"}]}]}, "reasoning"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_schema_describes_fields(change: Json, described: str) -> None:
    assert not SCHEMA.is_valid({**BODY, **change}), described


def test_schema_has_every_field() -> None:
    Draft202012Validator.check_schema(request_schema())
    assert request_schema()["properties"].keys() == FIELDS
    assert SCHEMA.is_valid(OTHER_BODY)


@settings(max_examples=300)
@given(spoiled(BODY))
def test_parsed_request_parses_to_itself(body: Any) -> None:
    first = outcome(body)
    if isinstance(first, CreateRequest) and first.input_items:
        again = outcome({**body, "input": first.input_items, "tools": first.tools, "tool_choice": first.tool_choice})
        assert isinstance(again, CreateRequest)
        assert (again.input_items, again.tools) == (first.input_items, first.tools)
        assert again.tool_choice == first.tool_choice


@settings(max_examples=300)
@given(JSON | spoiled(ITEMS))
def test_arbitrary_input_is_accepted_or_400_within_input(value: Any) -> None:
    try:
        items = parse_input(value)
    except ApiError as error:
        place = error.param
    else:
        place = "input"
        assert parse_input(items) == items
    assert place is None or place.startswith("input")
