"""Chunks built without validation equal those that the `openai` package builds of the same JSON."""

from typing import Any

import pytest
from openai.types.chat import ChatCompletionChunk

from llama_stack_openai_chat.chunks import chat_chunk

type Json = dict[str, Any]


def chunk(delta: Json | None = None, **fields: Any) -> Json:
    """Return a complete chunk as servers send it, with one choice."""
    choice = {"index": 0, "delta": delta or {}, "logprobs": None, "finish_reason": None}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 5, "model": "m"}
    return head | {"choices": [choice]} | fields


LOGPROB = {
    "token": "a",
    "logprob": -0.5,
    "bytes": [97],
    "top_logprobs": [{"token": "b", "logprob": -2.0, "bytes": [98]}],
}
WHOLE: dict[str, Json] = {
    "text": chunk({"content": "Hi"}),
    "role": chunk({"role": "assistant", "content": ""}),
    "reasoning": chunk({"reasoning_content": "Hm", "reasoning": None}),
    "refusal": chunk({"refusal": "No."}),
    "calls": chunk(
        {
            "tool_calls": [
                {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}},
                {"index": 1, "function": {"arguments": "{}"}, "extra_content": {"google": {"signature": "x"}}},
            ]
        }
    ),
    "an older call": chunk({"function_call": {"name": "f", "arguments": "{"}}),
    "logprobs": chunk(
        choices=[{"index": 0, "delta": {"content": "a"}, "logprobs": {"content": [LOGPROB], "refusal": None}}]
    ),
    "usage": chunk(
        choices=[],
        usage={
            "prompt_tokens": 3,
            "completion_tokens": 4,
            "total_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 2, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 1},
        },
    ),
    "two choices": chunk(choices=[{"index": 0, "delta": {"content": "a"}}, {"index": 1, "delta": {"content": "b"}}]),
    "unknown fields": chunk({"content": "a", "thinking_blocks": [{"thinking": "hm"}]}, provider="x", timings={"n": 1}),
    "a finish reason of its own": chunk(choices=[{"index": 0, "delta": {}, "finish_reason": "eos"}]),
}


@pytest.mark.parametrize("name", WHOLE)
def test_chunk_equals_that_of_openai_package(name: str) -> None:
    built, expected = chat_chunk(WHOLE[name]), ChatCompletionChunk.construct(**WHOLE[name])
    assert type(built) is ChatCompletionChunk
    # The host's own chat route sends this.
    assert built.model_dump_json(warnings=False) == expected.model_dump_json(warnings=False)
    assert built.model_dump(exclude_unset=True, warnings=False) == WHOLE[name]
    for ours, theirs in zip(built.choices, expected.choices, strict=True):
        assert ours.delta == theirs.delta
        assert ours.model_extra == theirs.model_extra
    assert built.usage == expected.usage


def test_content_list_is_readable_as_text() -> None:
    parts = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "He"}, {"type": "text", "text": "y"}]
    content: Any = chat_chunk(chunk({"content": parts})).choices[0].delta.content
    assert content == "Hey"
    assert content.parts == parts


def test_router_can_modify_chunk() -> None:
    built = chat_chunk(WHOLE["logprobs"])
    built.model = "local/m"
    assert built.choices[0].logprobs is not None
    built.choices[0].logprobs.content = []
    assert '"model":"local/m"' in built.model_dump_json()
    assert chat_chunk(WHOLE["logprobs"]).model == "m"


@pytest.mark.parametrize(
    "raw", [{}, {"choices": None}, {"choices": []}, {"choices": [{}]}, {"choices": [{"delta": None}]}]
)
def test_missing_chunk_fields_have_defaults(raw: Json) -> None:
    built = chat_chunk(raw)
    assert (built.id, built.model, built.created, built.usage) == ("", "", 0, None)
    for choice in built.choices if raw.get("choices") else ():
        assert choice.index == 0
        assert choice.finish_reason is None
        delta: Any = choice.delta
        assert delta is None or delta.content is None


def test_call_without_a_list_is_one_call() -> None:
    """TGI."""
    function = {"name": "f", "arguments": "{}"}
    raw = {"choices": [{"delta": {"tool_calls": {"index": 0, "id": "", "type": "function", "function": function}}}]}
    calls = chat_chunk(raw).choices[0].delta.tool_calls
    assert calls
    [call] = calls
    assert call.function
    assert (call.index, call.function.name, call.function.arguments) == (0, "f", "{}")


def test_message_so_far_beside_a_delta_is_left_out() -> None:
    """Perplexity."""
    choice = {"index": 0, "delta": {"content": "lo"}, "message": {"role": "assistant", "content": "Hello"}}
    [built] = chat_chunk({"choices": [choice]}).choices
    assert built.delta.content == "lo"
    assert "message" not in (built.__pydantic_extra__ or {})


def test_text_in_place_of_a_delta_is_its_content() -> None:
    built = chat_chunk({"object": "text_completion", "choices": [{"index": 0, "text": "Hel", "finish_reason": None}]})
    assert built.choices[0].delta.content == "Hel"


@pytest.mark.parametrize("raw", [[1], "text", 5, {"choices": 5}, {"choices": ["x"]}, {"choices": [{"delta": 5}]}])
def test_invalid_chunk_is_refused(raw: Any) -> None:
    with pytest.raises(ValueError, match="not a chunk"):
        chat_chunk(raw)


@pytest.mark.parametrize("raw", [None, [], {}, ""])
def test_empty_event_is_a_chunk_that_says_nothing(raw: Any) -> None:
    assert chat_chunk(raw).choices == []


@pytest.mark.parametrize("usage", [[], [1], "9 tokens", 7, True])
def test_usage_that_is_no_object_is_none(usage: Any) -> None:
    built = chat_chunk({"choices": [{"delta": {"content": "a"}}], "usage": usage})
    assert (built.usage, built.choices[0].delta.content) == (None, "a")


def test_null_among_calls_is_left_out() -> None:
    call = {"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}
    built = chat_chunk({"choices": [{"delta": {"tool_calls": [None, call]}}]})
    assert [each.id for each in built.choices[0].delta.tool_calls or ()] == ["a"]


@pytest.mark.parametrize("content", [1, 0.5, True, {}, {"text": 1}])
def test_non_text_content_is_refused(content: Any) -> None:
    """The host's router joins the content of all chunks."""
    with pytest.raises(ValueError, match="not a chunk"):
        chat_chunk(chunk({"content": content}))


@pytest.mark.parametrize("index", [[], [0], {}, {"x": 1}])
def test_index_that_is_array_or_object_is_refused(index: Any) -> None:
    """The host's router keeps choices and calls in dictionaries."""
    with pytest.raises(ValueError, match="not a chunk"):
        chat_chunk(chunk({}) | {"choices": [{"index": index, "delta": {}}]})
    with pytest.raises(ValueError, match="not a chunk"):
        chat_chunk(chunk({"tool_calls": [{"index": index, "function": {"name": "f"}}]}))
