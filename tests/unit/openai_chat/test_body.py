"""The request reaches the model server as sent, even where the host's own types would refuse it."""

import asyncio
import json
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from llama_stack_openai_chat.json_encoding import dumps, loads
from llama_stack_openai_chat.request_body import request_body


class Part(BaseModel):
    """Content of a message."""

    type: str = "text"
    text: str | None = None


class Tier(StrEnum):
    """An enumeration as the host has them."""

    FLEX = "flex"


class Request(BaseModel, extra="allow"):
    """A request with a few fields of a chat request."""

    model: str
    messages: list[Any] = []
    stream: bool | None = None
    temperature: float | None = None
    service_tier: Tier | None = None


def body(request: BaseModel, defaults: dict[str, Any] | None = None) -> Any:
    """Return the decoded JSON body of a request."""
    return json.loads(asyncio.run(request_body(request, defaults or {})))


def test_only_set_fields_are_sent() -> None:
    request = Request(model="m", stream=True, service_tier=Tier.FLEX, top_k=5, min_p=None)
    assert body(request) == {"model": "m", "messages": [], "stream": True, "service_tier": "flex", "top_k": 5}


def test_unvalidated_fields_are_sent_unchanged() -> None:
    audio = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}
    messages = [{"role": "tool", "tool_call_id": "c", "content": [audio]}, {"role": "assistant", "content": None}]
    request = Request.model_construct(model="m", messages=messages, reasoning_effort="max")
    assert body(request) == {"model": "m", "messages": messages, "reasoning_effort": "max"}


def test_empty_fields_of_validated_parts_are_not_sent() -> None:
    assert body(Request(model="m", messages=[{"role": "user", "content": [Part()]}]))["messages"] == [
        {"role": "user", "content": [{"type": "text"}]}
    ]


def test_request_overrides_configured_defaults() -> None:
    defaults = {"temperature": 0.5, "top_k": 5}
    assert body(Request(model="m"), defaults) == {"model": "m", "messages": [], **defaults}
    assert body(Request(model="m", temperature=0.0), defaults)["temperature"] == 0


LARGE: dict[str, list[Any]] = {
    "text": [{"role": "user", "content": 'wörd "quoted" \ud800 \n' * 200_000}],
    "messages": [{"role": "user", "content": [{"type": "text", "text": "x" * 30}]}] * 30_000,
    "nested": [[[{"a": [1, None, {"b": "x" * 2_000_000, "": []}]}]], {}],
}


@pytest.mark.parametrize("name", LARGE)
async def test_others_run_while_large_request_is_encoded(name: str) -> None:
    request = Request.model_construct(model="m", messages=LARGE[name], stream=True)
    encoding, turns = asyncio.create_task(request_body(request, {"top_k": 5})), 0
    while not encoding.done():
        turns += 1
        await asyncio.sleep(0)
    assert json.loads(await encoding) == {"top_k": 5, "model": "m", "messages": LARGE[name], "stream": True}
    assert turns >= 12


async def test_request_of_ordinary_size_is_encoded_at_once() -> None:
    request = Request(model="m", messages=[{"role": "user", "content": "x" * 500_000}])
    with pytest.raises(StopIteration):
        request_body(request, {}).send(None)


@given(
    st.recursive(
        st.none() | st.booleans() | st.text(st.characters()) | st.integers(-(2**63), 2**64 - 1), st.lists, max_leaves=5
    )
)
def test_arbitrary_json_is_encoded_and_decoded_unchanged(value: Any) -> None:
    assert loads(dumps(value)) == value


@pytest.mark.parametrize("encoded", [b'"\\ud83d"', b"[NaN, -Infinity]"])
def test_json_with_lone_surrogate_or_nan_is_read(encoded: bytes) -> None:
    assert repr(loads(encoded)) == repr(json.loads(encoded))


def test_deeply_nested_json_raises_error() -> None:
    with pytest.raises(ValueError, match="deeply"):
        loads(b"[" * 100_000)


def test_invalid_json_raises_error() -> None:
    with pytest.raises(ValueError, match=r"."):
        loads(b"{oops")
    with pytest.raises(TypeError, match="cannot carry <object"):
        dumps(object())
