"""What concerns whole chunks: their choices, whole messages in place of deltas, and arbitrary ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_stack_openai_chat.chunks import chat_chunk
from llama_stack_responses.chat.chunks import ChunkReader
from llama_stack_responses.chat.profile import InlineThinking, Profile
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.stream.deltas import Annotation, Delta, Finish, Reasoning, Refusal, Text, ToolCall
from tests.support.chunk_reading import (
    CALL,
    MOST,
    USAGE,
    Json,
    Maker,
    any_maker,
    as_client,
    calls,
    chunk,
    ended,
    envelope,
    fragment,
    read,
    said,
)


@any_maker
def test_chunks_without_choices_give_no_delta(make: Maker) -> None:
    assert read(make, [envelope([]), chunk({"content": "a"}), envelope([])]) == [Text("a")]


def test_choice_without_delta_gives_no_delta() -> None:
    assert read(as_client, [envelope([{"index": 0, "finish_reason": None, "content_filter_offsets": {}}])]) == []
    assert read(as_client, [envelope([{"index": 0, "delta": None}])]) == []
    assert ended([envelope([{"index": 0, "finish_reason": "length"}])]).reason == "length"


ANY_FRAGMENT: Final = st.builds(
    fragment,
    index=st.none() | st.integers(0, 2),
    call_id=st.sampled_from([None, "", "a", "b"]),
    name=st.sampled_from([None, "", "f"]),
    arguments=st.sampled_from([None, "", "{", "}"]),
)
ANY_DELTA: Final = st.fixed_dictionaries(
    {},
    optional={
        "content": st.sampled_from([None, "", "a", "<think>", "</", "think>"]),
        "reasoning_content": st.sampled_from([None, "", "r"]),
        "reasoning": st.sampled_from([None, "", "r"]),
        "refusal": st.sampled_from([None, "", "no"]),
        "tool_calls": st.none() | st.lists(ANY_FRAGMENT, max_size=3),
        "thinking_blocks": st.none() | st.just([{"type": "thinking", "thinking": "r"}]),
    },
)
ANY_CHUNK: Final = (
    st.just(envelope([]))
    | st.builds(chunk, ANY_DELTA, usage=st.none() | st.just(USAGE))
    | st.builds(lambda delta: envelope([{"index": 0, "delta": delta}]), ANY_DELTA)
)


@settings(max_examples=100)
@given(chunks=st.lists(ANY_CHUNK, max_size=8), thinking=st.booleans())
def test_arbitrary_chunks_give_nonempty_deltas(chunks: list[Json], thinking: bool) -> None:
    profile = Profile(inline_thinking=InlineThinking() if thinking else None)
    try:
        deltas = read(as_client, chunks, profile)
    except ApiError:
        return
    for delta in deltas:
        assert isinstance(delta, ToolCall | Annotation) or (not isinstance(delta, Finish) and delta.text)
    assert {each[2] for each in calls(each for each in deltas if isinstance(each, ToolCall))} <= {"", "{}"}
    json.dumps([delta.text for delta in deltas if isinstance(delta, Text | Reasoning | Refusal)])


def as_built(each: Any) -> Any:
    return as_client(each) if isinstance(each, dict) else each


def with_message(content: str, calls: Any = None) -> Any:
    message = {"role": "assistant", "content": content, "tool_calls": calls}
    return chat_chunk({"object": "chat.completion", "choices": [{"message": message, "finish_reason": "stop"}]})


def test_message_in_place_of_deltas_is_read() -> None:
    deltas = read(as_built, [with_message("Hello", CALL["tool_calls"]), as_client(chunk())])
    assert deltas[0] == Text("Hello")
    assert calls(deltas[1:]) == [("a", "f", '{"a":1}')]


@pytest.mark.parametrize(
    "messages",
    [
        ["Hel", "lo"],
        ["Hel", "Hello"],
        ["H", "He", "Hell", "Hello"],
        ["", "Hel", "lo"],
        ["Hel", "lo", "Hello"],
        ["Hello", "Hello"],
        ["Hello", "Hello", "Hello"],
        ["Hel", "Hel", "Hello"],
    ],
)
def test_messages_in_place_of_deltas_are_read_whole_and_once(messages: list[str]) -> None:
    deltas = read(as_built, map(with_message, messages))
    assert "".join(delta.text for delta in deltas if isinstance(delta, Text)) == "Hello"


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        (["Hi", "Hi"], "Hi"),
        (["H", "Hi"], "Hi"),
        (["ha", "haha", "hahaha"], "hahaha"),
        (["no", "no", " way"], "nono way"),
        (["a", "ab", "c"], "aabc"),
        (["ha", "ha", "hum"], "hahahum"),
    ],
)
def test_messages_that_begin_with_the_text_so_far_are_that_text_unless_another_one_follows(
    messages: list[str], said: str
) -> None:
    deltas = read(as_built, map(with_message, messages))
    assert "".join(delta.text for delta in deltas if isinstance(delta, Text)) == said


def test_messages_that_change_the_text_so_far_are_502() -> None:
    with pytest.raises(ApiError, match="'stream: never'"):
        read(as_built, map(with_message, ["He", "Hel", "Hello", "Bye"]))


def test_messages_with_longer_pieces_are_read() -> None:
    deltas = read(as_built, map(with_message, ["The cat ", "sat down."]))
    assert deltas == [Text("The cat "), Text("sat down.")]


def test_message_brings_the_text_that_deltas_lack() -> None:
    chunks = [as_client(chunk({"reasoning_content": "It is a greeting."})), with_message("Hello")]
    assert read(as_built, chunks) == [Reasoning("It is a greeting."), Text("Hello")]


def test_message_behind_the_deltas_does_not_repeat_them() -> None:
    chunks = [as_client(chunk({"content": "Hel"})), as_client(chunk({"content": "lo"})), as_client(chunk(CALL))]
    deltas = read(as_built, [*chunks, with_message("Hello", CALL["tool_calls"]), as_client(chunk())])
    assert deltas[:2] == [Text("Hel"), Text("lo")]
    assert calls(deltas[2:]) == [("a", "f", '{"a":1}')]


def test_call_in_message_behind_the_deltas_is_their_call_even_with_another_id() -> None:
    repeated = {"id": "b", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    deltas = read(as_built, [as_client(chunk(CALL)), with_message("", [repeated])])
    assert calls(deltas) == [("a", "f", '{"a":1}')]


def test_message_brings_the_call_that_deltas_lack() -> None:
    deltas = read(as_built, [as_client(chunk({"content": "Hi"})), with_message("Hi", CALL["tool_calls"])])
    assert calls(deltas[1:]) == [("a", "f", '{"a":1}')]


def test_message_with_another_call_than_the_deltas_is_502() -> None:
    other = {"id": "b", "type": "function", "function": {"name": "f", "arguments": '{"a":2}'}}
    with pytest.raises(ApiError, match="another message than it streamed"):
        read(as_built, [as_client(chunk(CALL)), with_message("", [other])])


@pytest.mark.parametrize("content", ["Hello", "lo"])
@pytest.mark.parametrize("before", [{}, {"reasoning_content": "It is a greeting."}])
def test_message_with_another_text_than_the_deltas_is_502(content: str, before: Json) -> None:
    chunks = [as_client(chunk(before)), as_client(chunk({"content": "Hel"}))]
    with pytest.raises(ApiError, match="another message than it streamed"):
        read(as_built, [*chunks, with_message(content)])


def of_choice(index: int | None, delta: Json, finish: str | None = None) -> Json:
    return envelope([{"index": index, "delta": delta, "finish_reason": finish}])


def read_alone(chunks: Sequence[Json]) -> list[Delta]:
    """Return the deltas of these chunks alone, without `Finish`; texts are taken from their JSON if allowed."""
    reader, deltas = ChunkReader(Profile(), MOST), list[Delta]()
    for each in chunks:
        text = reader.extension(each)
        if text and len(text) <= reader.max_extension:
            reader.answer.characters += len(text)
            if reader.is_opening:
                reader.open_with(text)
            deltas.append(Text(text))
        else:
            deltas += reader.read(as_client(each))
    return said([*deltas, *reader.end()[:-1]])


def test_second_choice_is_not_mixed_into_the_first() -> None:
    texts = [(0, "H"), (0, "e"), (1, "X"), (0, "l"), (1, "X"), (0, "lo")]
    ends = [of_choice(1, {}, "length"), of_choice(0, {}, "stop")]
    deltas = read_alone([*(of_choice(index, {"content": each}) for index, each in texts), *ends])
    assert deltas == [Text("H"), Text("e"), Text("l"), Text("lo")]


def test_answer_behind_reasoning_of_another_choice_is_read() -> None:
    """A proxy that counts the blocks of an answer."""
    chunks = [of_choice(0, {"reasoning_content": "hm"}), of_choice(1, {"content": "Hello"}), of_choice(0, {}, "stop")]
    assert read_alone(chunks) == [Reasoning("hm"), Text("Hello")]


def test_null_as_index_is_the_first_choice() -> None:
    chunks = [of_choice(0, {"content": "Hel"}), of_choice(None, {"content": "lo"}), of_choice(0, {}, "stop")]
    assert read_alone(chunks) == [Text("Hel"), Text("lo")]


@pytest.mark.parametrize("other", [{"content": "X"}, CALL])
def test_choice_that_does_not_end_beside_others_is_502(other: Json) -> None:
    with pytest.raises(ApiError, match="several choices"):
        read_alone([of_choice(0, {"content": "Hel"}), of_choice(1, other), of_choice(1, {}, "stop")])


def test_call_of_another_choice_is_not_lost() -> None:
    with pytest.raises(ApiError, match="several choices"):
        read_alone([of_choice(0, {"content": "Hel"}), of_choice(1, CALL), of_choice(0, {}, "stop")])
