"""Calls, in all forms of servers, become the same deltas."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from openai.types.chat import ChatCompletionChunk

from llama_stack_responses.chat.chunks import ChunkReader
from llama_stack_responses.chat.profile import Profile
from llama_stack_responses.stream.deltas import Reasoning, Text, ToolCall
from tests.support.chunk_reading import (
    MOST,
    Json,
    Maker,
    any_maker,
    as_client,
    calls,
    chunk,
    fragment,
    openai_maker,
    read,
)


def called(chunks: Sequence[Sequence[Json]], make: Maker = as_client) -> list[tuple[str, str, str]]:
    return calls(read(make, [chunk({"tool_calls": list(each)}) for each in chunks], finish="tool_calls"))


@any_maker
def test_fragments_of_parallel_calls_are_separated(make: Maker) -> None:
    created = called(
        [
            [fragment(0, "a", "f", "")],
            [fragment(1, "b", "g", "")],
            [fragment(1, None, "", '{"n":1'), fragment(0, None, "", '{"n":0')],
            [fragment(1, None, "", "}")],
            [fragment(0, None, "", "}")],
        ],
        make,
    )
    assert created == [("a", "f", '{"n":0}'), ("b", "g", '{"n":1}')]


@openai_maker
@pytest.mark.parametrize("indices", [(0, 1), (2, 3)])
def test_last_chunk_that_repeats_all_calls_with_other_ids_adds_none(make: Maker, indices: tuple[int, int]) -> None:
    def call(index: int, call_id: str, text: str) -> Json:
        function = {"name": "f", "arguments": json.dumps({"a": text})}
        return {"index": index, "id": call_id, "type": "function", "function": function}

    chunks = [chunk({"tool_calls": [call(0, "c1", "x")]}), chunk({"tool_calls": [call(1, "c2", "y")]})]
    again = [call(index, call_id, text) for index, call_id, text in zip(indices, ("z1", "z2"), "xy", strict=True)]
    deltas = read(make, [*chunks, chunk({"tool_calls": again}, finish="tool_calls")], finish="tool_calls")
    assert [each.call_id for each in deltas if isinstance(each, ToolCall)] == ["c1", "c2"]


@openai_maker
def test_null_names_and_arguments_are_ignored(make: Maker) -> None:
    assert called([[fragment(0, "a", "f")], [fragment(0, None, None, "{}")]], make) == [("a", "f", "{}")]


def test_call_may_begin_without_function() -> None:
    created = called([[{"index": 0, "id": "a"}], [{"index": 0, "function": {"name": "f", "arguments": "{}"}}]])
    assert created == [("a", "f", "{}")]


@pytest.mark.parametrize("more", [{"id": 0}, {"id": 7}, {"index": 0.0}])
def test_number_as_id_and_index_with_a_fraction_are_taken(more: Json) -> None:
    [(call_id, name, arguments)] = called([[fragment(name="f", arguments='{"a":') | more], [fragment(arguments="1}")]])
    assert (call_id, name, arguments) == ("", "f", '{"a":1}')


@pytest.mark.parametrize("name", ["parameters", "args", "input"])
def test_arguments_with_another_name_are_read(name: str) -> None:
    call = {"index": 0, "id": "a", "function": {"name": "f", name: {"a": "x"}}}
    assert called([[call]]) == [("a", "f", '{"a":"x"}')]


def test_late_call_id_is_used() -> None:
    created = called([[fragment(0, None, "f")], [fragment(0, "a", None, "{")], [fragment(0, None, None, "}")]])
    assert created == [("a", "f", "{}")]


def test_calls_without_ids_are_separated_by_index() -> None:
    assert called([[fragment(0, None, "f", "{}")], [fragment(1, "", "g", "{}")]]) == [("", "f", "{}"), ("", "g", "{}")]


def test_late_name_is_used() -> None:
    assert called([[fragment(0, "a", None, "{")], [fragment(0, None, "f", "}")]]) == [("a", "f", "{}")]


@pytest.mark.parametrize("index", [0, None])
def test_repeated_index_with_new_id_begins_new_call(index: int | None) -> None:
    created = called(
        [
            [fragment(index, "a", "f", "{")],
            [fragment(index, None, None, "}")],
            [fragment(index, "b", "f", '{"n":')],
            [fragment(index, None, None, "1}")],
        ]
    )
    assert created == [("a", "f", "{}"), ("b", "f", '{"n":1}')]


def test_whole_calls_in_one_chunk_with_same_index_are_separated() -> None:
    created = called([[fragment(0, "a", "f", "{}"), fragment(0, "b", "g", '{"n":1}')]])
    assert created == [("a", "f", "{}"), ("b", "g", '{"n":1}')]


def test_whole_calls_in_one_chunk_without_index_or_id_are_separated() -> None:
    created = called([[fragment(None, None, "f", "{}"), fragment(None, None, "g", '{"n":1}')]])
    assert created == [("", "f", "{}"), ("", "g", '{"n":1}')]


def test_whole_calls_with_same_index_without_ids_are_separated() -> None:
    created = called([[fragment(0, "", "f", "{}")], [fragment(0, "", "g", '{"n":1}')], [fragment(0, "", "f", "{}")]])
    assert created == [("", "f", "{}"), ("", "g", '{"n":1}'), ("", "f", "{}")]


@pytest.mark.parametrize("index", [0, None])
def test_whole_calls_of_one_function_without_ids_are_separated(index: int | None) -> None:
    created = called([[fragment(index, "", "f", '{"a":1}')], [fragment(index, "", "f", '{"a":2}')]])
    assert created == [("", "f", '{"a":1}'), ("", "f", '{"a":2}')]


def test_name_repeated_in_every_fragment_is_one_call() -> None:
    created = called([[fragment(0, "", "f", '{"a":')], [fragment(0, "", "f", "{}")], [fragment(0, "", "f", "}")]])
    assert created == [("", "f", '{"a":{}}')]


def test_arguments_as_object_become_json_text() -> None:
    call = fragment(0, "a", "f") | {"function": {"name": "f", "arguments": {"a": [1]}}}
    assert called([[call]]) == [("a", "f", '{"a":[1]}')]


def test_surrogate_pairs_cut_in_two_are_joined() -> None:
    halves = [{"content": "a\ud83d"}, {"reasoning": "\ud83d"}, {"content": "\ude00"}, {"reasoning": "\ude00"}]
    assert read(as_client, [chunk(delta) for delta in halves]) == [
        Text("a"),
        Text("\U0001f600"),
        Reasoning("\U0001f600"),
    ]
    created = called(
        [[fragment(0, "a", "f", "\ud83d")], [fragment(1, "b", "g", "x")], [fragment(0, None, None, "\ude00")]]
    )
    assert created == [("a", "f", "\U0001f600"), ("b", "g", "x")]


def test_id_repeated_in_every_fragment_is_one_call() -> None:
    created = called([[fragment(0, "a", "f", "{")], [fragment(0, "a", None, "1")], [fragment(0, "a", None, "}")]])
    assert created == [("a", "f", "{1}")]


def test_calls_as_plain_dicts_are_read() -> None:
    delta = ChatCompletionChunk.construct(**chunk({}))
    delta.choices[0].delta.__dict__["tool_calls"] = [fragment(0, "a", "f", '{"a":1}')]
    assert calls(ChunkReader(Profile(), MOST).read(delta)) == [("a", "f", '{"a":1}')]


@openai_maker
def test_legacy_function_call_is_one_call(make: Maker) -> None:
    begun = chunk({"function_call": {"name": "f", "arguments": ""}})
    deltas = read(make, [begun, chunk({"function_call": {"arguments": "{}"}})], finish="function_call")
    assert [(call.name, call.arguments) for call in deltas if isinstance(call, ToolCall)] == [("f", ""), ("", "{}")]
    assert len({call.key for call in deltas if isinstance(call, ToolCall)}) == 1
