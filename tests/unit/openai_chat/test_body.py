"""What goes to the model server is what was asked, also where the host's own types would refuse it."""

import json
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from llama_stack_openai_chat.body import dumps, loads, request_body


class Part(BaseModel):
    """Content of a message."""

    type: str = "text"
    text: str | None = None


class Tier(StrEnum):
    """An enumeration, as the host has them."""

    FLEX = "flex"


class Request(BaseModel, extra="allow"):
    """A request with a few of a chat request's fields."""

    model: str
    messages: list[Any] = []
    stream: bool | None = None
    temperature: float | None = None
    service_tier: Tier | None = None


def body(request: BaseModel, defaults: dict[str, Any] | None = None) -> Any:
    """The JSON of a request, read again."""
    return json.loads(request_body(request, defaults or {}))


def test_fields_that_are_set_go_along_and_no_others() -> None:
    asked = Request(model="m", stream=True, service_tier=Tier.FLEX, top_k=5, min_p=None)
    assert body(asked) == {"model": "m", "messages": [], "stream": True, "service_tier": "flex", "top_k": 5}


def test_what_was_not_validated_goes_as_it_is() -> None:
    audio = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}
    messages = [{"role": "tool", "tool_call_id": "c", "content": [audio]}, {"role": "assistant", "content": None}]
    asked = Request.model_construct(model="m", messages=messages, reasoning_effort="max")
    assert body(asked) == {"model": "m", "messages": messages, "reasoning_effort": "max"}


def test_what_was_validated_goes_without_its_empty_fields() -> None:
    assert body(Request(model="m", messages=[{"role": "user", "content": [Part()]}]))["messages"] == [
        {"role": "user", "content": [{"type": "text"}]}
    ]


def test_the_request_goes_before_the_configuration() -> None:
    defaults = {"temperature": 0.5, "top_k": 5}
    assert body(Request(model="m"), defaults) == {"model": "m", "messages": [], **defaults}
    assert body(Request(model="m", temperature=0.0), defaults)["temperature"] == 0


@given(
    st.recursive(
        st.none() | st.booleans() | st.text(st.characters()) | st.integers(-(2**63), 2**64 - 1), st.lists, max_leaves=5
    )
)
def test_any_json_comes_out_as_it_went_in(value: Any) -> None:
    assert loads(dumps(value)) == value


@pytest.mark.parametrize("said", [b'"\\ud83d"', b"[NaN, -Infinity]"])
def test_what_strict_readers_refuse_is_read(said: bytes) -> None:
    assert repr(loads(said)) == repr(json.loads(said))


def test_what_is_nested_too_deeply_is_an_error() -> None:
    with pytest.raises(ValueError, match="deeply"):
        loads(b"[" * 100_000)


def test_what_is_no_json_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"."):
        loads(b"{oops")
    with pytest.raises(TypeError, match="cannot carry <object"):
        dumps(object())
