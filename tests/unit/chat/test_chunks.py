"""Differences between providers' chunks disappear in the deltas."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from llama_stack_openai_chat.chunks import chat_chunk, whole
from llama_stack_responses.chat.chunks import ChunkReader
from llama_stack_responses.chat.profile import InlineThinking, Profile
from llama_stack_responses.core.errors import ApiError, MalformedCallError
from llama_stack_responses.core.surrogates import without_surrogates
from llama_stack_responses.model_server.whole_answer import in_one
from llama_stack_responses.stream.deltas import (
    Annotation,
    Delta,
    Finish,
    FinishReason,
    Reasoning,
    Refusal,
    Text,
    ToolCall,
)
from llama_stack_responses.stream.usage import UNKNOWN, Usage

try:
    from llama_stack_api.inference.models import OpenAIChatCompletionChunk as HostChunk
except ImportError:
    from ogx_api.inference.models import OpenAIChatCompletionChunk as HostChunk

Json = dict[str, Any]

MOST: Final = 10**9
Maker = Callable[[Json], Any]


def as_client(chunk: Json) -> Any:
    """Return the chunk as the `openai` client builds it: as the provider sent it, unchecked."""
    return ChatCompletionChunk.construct(**chunk)


def as_openai(chunk: Json) -> Any:
    """Return the chunk as built by a provider of the host that translates another API."""
    return ChatCompletionChunk.model_validate(chunk)


def as_host(chunk: Json) -> Any:
    """Return the chunk as built by a provider that uses the host's own types."""
    return HostChunk.model_validate(chunk)


any_maker = pytest.mark.parametrize("make", [as_client, as_openai, as_host])
openai_maker = pytest.mark.parametrize("make", [as_client, as_openai])


def envelope(choices: list[Json], **more: Any) -> Json:
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices, **more}


def chunk(delta: Json | None = None, *, finish: str | None = None, logprobs: Json | None = None, **more: Any) -> Json:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish, "logprobs": logprobs}
    return envelope([choice], **more)


def read(make: Maker, chunks: Iterable[Json], profile: Profile | None = None, finish: str = "stop") -> list[Delta]:
    """Return the deltas of these chunks and of one with a finish reason, without `Finish`."""
    reader = ChunkReader(profile or Profile(), MOST)
    deltas = [delta for each in [*chunks, chunk(finish=finish)] for delta in reader.read(make(each))]
    *rest, last = reader.end()
    assert isinstance(last, Finish)
    return said(deltas + rest)


def said(deltas: Iterable[Delta]) -> list[Delta]:
    """Return the deltas without those that only say in which entry of a list the reasoning before them was."""
    return [delta for delta in deltas if delta not in (Reasoning(""), Reasoning("", summary=True))]


def ended(chunks: Sequence[Json], make: Maker = as_client) -> Finish:
    reader = ChunkReader(Profile(), MOST)
    for each in chunks:
        reader.read(make(each))
    [finish] = reader.end()
    assert isinstance(finish, Finish)
    return finish


# Text, reasoning, refusals


@any_maker
def test_content_becomes_text(make: Maker) -> None:
    assert read(
        make, [chunk({"role": "assistant", "content": ""}), chunk({"content": "a"}), chunk({"content": " b"})]
    ) == [
        Text("a"),
        Text(" b"),
    ]


@any_maker
def test_null_and_empty_fields_give_no_delta(make: Maker) -> None:
    empty = {"content": None, "refusal": None, "tool_calls": None, "reasoning_content": None}
    assert read(make, [chunk(empty), chunk({"content": "", "refusal": "", "reasoning_content": ""}), chunk({})]) == []


@any_maker
def test_reasoning_content_becomes_reasoning(make: Maker) -> None:
    deltas = read(make, [chunk({"reasoning_content": "hm"}), chunk({"reasoning_content": "!", "content": "a"})])
    assert deltas == [Reasoning("hm"), Reasoning("!"), Text("a")]


@openai_maker
def test_reasoning_field_becomes_reasoning(make: Maker) -> None:
    assert read(make, [chunk({"reasoning": "hm"}), chunk({"reasoning": None, "content": "a"})]) == [
        Reasoning("hm"),
        Text("a"),
    ]


@openai_maker
def test_reasoning_sent_in_several_fields_counts_once(make: Maker) -> None:
    delta = {
        "reasoning_content": "hm",
        "reasoning": "hm",
        "thinking_blocks": [{"type": "thinking", "thinking": "hm"}],
        "reasoning_details": [{"type": "reasoning.text", "text": "hm"}],
    }
    assert read(make, [chunk(delta)]) == [Reasoning("hm")]
    assert read(make, [chunk(delta | {"reasoning_content": ""})]) == [Reasoning("hm")]
    assert read(make, [chunk(delta | {"reasoning_content": None, "reasoning": None})]) == [Reasoning("hm")]


@openai_maker
def test_thinking_blocks_become_reasoning_with_signatures(make: Maker) -> None:
    blocks = [
        {"type": "thinking", "thinking": "a", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "thinking", "thinking": None, "signature": "s"},
        {"type": "thinking", "thinking": "b"},
    ]
    signed = Reasoning("", signature="s")
    assert read(make, [chunk({"thinking_blocks": blocks})]) == [Reasoning("a"), signed, signed, Reasoning("b")]


def test_content_list_becomes_text_and_reasoning() -> None:
    content = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"type": "thinking", "thinking": "c"},
        {"type": "thinking", "thinking": ""},
        {"type": "reference", "reference_ids": [1]},
        {"type": "text", "text": "d"},
        {"type": "text", "text": ""},
    ]
    expected = [Reasoning("a"), Reasoning("b"), Reasoning("c"), Text("d")]
    assert read(as_client, [chunk({"content": content})]) == expected


# Summaries of the reasoning, where requested


def summarized(chunks: Iterable[Json], **profile: Any) -> list[Delta]:
    reader = ChunkReader(Profile(**profile), MOST, summaries=True)
    deltas = [delta for each in [*chunks, chunk(finish="stop")] for delta in reader.read(as_client(each))]
    return said(deltas + reader.end()[:-1])


def detail(**fields: Any) -> Json:
    return {"type": "reasoning.summary" if "summary" in fields else "reasoning.text", "index": 0, **fields}


TEXTS: Final = [
    {"reasoning_content": "hm"},
    {"reasoning": "hm"},
    {"content": [{"type": "thinking", "thinking": "hm"}]},
    {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]},
]


@pytest.mark.parametrize("delta", TEXTS)
def test_reasoning_text_becomes_summary_if_requested(delta: Json) -> None:
    assert summarized([chunk(delta)]) == [Reasoning("hm", summary=True)]
    assert summarized([chunk(delta)], reasoning_summary="none") == [Reasoning("hm")]
    assert summarized([chunk(delta)], reasoning_summary="generated") == [Reasoning("hm")]


def test_inline_reasoning_becomes_summary_if_requested() -> None:
    chunks = [chunk({"content": "<think>hm</think>a"})]
    assert summarized(chunks, inline_thinking=InlineThinking()) == [Reasoning("hm", summary=True), Text("a")]


def test_signed_reasoning_becomes_summary_if_requested() -> None:
    blocks = [{"type": "thinking", "thinking": "a", "signature": "s"}]
    assert summarized([chunk({"thinking_blocks": blocks})]) == [
        Reasoning("a", summary=True),
        Reasoning("", summary=True, signature="s"),
    ]


@pytest.mark.parametrize("kind", ["text", "generated", "none"])
def test_provider_summary_is_kept_apart_from_reasoning(kind: str) -> None:
    chunks = [
        chunk({"reasoning": "In sh", "reasoning_details": [detail(summary="In sh")]}),
        chunk({"reasoning": "ort.", "reasoning_details": [detail(summary="ort."), {"type": "reasoning.encrypted"}]}),
        chunk({"reasoning_details": [detail(text="All of it.")]}),
        chunk({"reasoning": "And more."}),
    ]
    own = [Reasoning("In sh", summary=True), Reasoning("ort.", summary=True)]
    assert summarized(chunks, reasoning_summary=kind) == [*own, Reasoning("All of it."), Reasoning("And more.")]
    texts = ("In sh", "ort.", "All of it.", "And more.")
    assert read(as_client, chunks) == [Reasoning(each) for each in texts]


def test_first_fragment_decides_whether_provider_summarizes() -> None:
    chunks = [chunk({"reasoning": "hm"}), chunk({"reasoning": "so", "reasoning_details": [detail(summary="short")]})]
    assert summarized(chunks) == [Reasoning("hm", summary=True), Reasoning("so", summary=True)]


def test_summary_in_content_list_is_read() -> None:
    part = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "short", "signature": "s"}]}
    assert summarized([chunk({"content": [part]})]) == [Reasoning("short", True), Reasoning("", True, "s")]
    assert read(as_client, [chunk({"content": [part]})]) == [Reasoning("short"), Reasoning("", signature="s")]


@any_maker
def test_refusal_field_becomes_refusal(make: Maker) -> None:
    assert read(make, [chunk({"refusal": "No"}), chunk({"refusal": "."})]) == [Refusal("No"), Refusal(".")]


@pytest.mark.parametrize(
    "delta",
    [
        {"thinking_blocks": [{"type": "thinking", "thinking": "a", "signature": "s\ud800"}]},
        {"content": [{"type": "reasoning", "summary": [{"text": "a", "signature": "s\ud800"}]}]},
        {"tool_calls": [{"id": "c", "extra_content": {"google": {"thought_signature": "s\ud800"}}}]},
    ],
    ids=["thinking block", "summary", "call"],
)
def test_unpaired_surrogate_in_signature_is_replaced(delta: Json) -> None:
    found = [each.signature for each in read(as_client, [chunk(delta)]) if isinstance(each, Reasoning)]
    assert found[-1] == "s\ufffd"


@pytest.mark.parametrize(("signature", "kept"), [("s" * 100_000, True), ("é" * 1_025, False)])
def test_long_signature_is_kept_if_it_is_ascii(signature: str, kept: bool) -> None:
    blocks = [{"type": "thinking", "thinking": "a", "signature": signature}]
    deltas = read(as_client, [chunk({"thinking_blocks": blocks})])
    assert deltas == [Reasoning("a"), *[Reasoning("", signature=signature)] * kept]


@pytest.mark.parametrize("field", ["title", "url"])
def test_citation_with_long_text_that_is_not_ascii_is_left_out(field: str) -> None:
    places = {"start_index": 0, "end_index": 1}
    cited = [{"url": "u", "title": "t", **places}, {"url": "u", "title": "t", **places, field: "é" * 1_025}]
    annotations = [{"type": "url_citation", "url_citation": each} for each in cited]
    assert len(read(as_client, [chunk({"annotations": annotations})])) == 1


@pytest.mark.parametrize("member", ["function", "custom"])
def test_surrogates_in_large_arguments_are_mended_in_pieces(member: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def mending(text: str) -> str:
        sizes.append(len(text))
        return without_surrogates(text)

    monkeypatch.setattr("llama_stack_responses.chat.split_surrogates.without_surrogates", mending)
    written = "\ud800a" * 50_000
    call = {member: {"name": "f", "arguments" if member == "function" else "input": written}}
    deltas = read(as_client, [chunk({"tool_calls": [call]})])
    whole = "".join(delta.arguments for delta in deltas if isinstance(delta, ToolCall))
    assert whole.count("\ufffda") == 50_000
    assert max(sizes) <= 4_097


def test_unknown_fields_are_ignored() -> None:
    delta = {"content": "a", "audio": {"id": "x"}, "extra_content": {"google": {"thought_signature": "s"}}, "x": 1}
    assert read(as_client, [chunk(delta)]) == [Text("a")]


# Choices


@any_maker
def test_chunks_without_choices_give_no_delta(make: Maker) -> None:
    assert read(make, [envelope([]), chunk({"content": "a"}), envelope([])]) == [Text("a")]


def test_choice_without_delta_gives_no_delta() -> None:
    assert read(as_client, [envelope([{"index": 0, "finish_reason": None, "content_filter_offsets": {}}])]) == []
    assert read(as_client, [envelope([{"index": 0, "delta": None}])]) == []
    assert ended([envelope([{"index": 0, "finish_reason": "length"}])]).reason == "length"


# Tool calls


def fragment(
    index: int | None = 0, call_id: str | None = None, name: str | None = None, arguments: str | None = None
) -> Json:
    return {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calls(deltas: Iterable[Delta]) -> list[tuple[str, str, str]]:
    """Return each call as (id, name, arguments), joined by key, in order of their beginning."""
    created: dict[Any, list[str]] = {}
    for delta in deltas:
        assert isinstance(delta, ToolCall)
        call = created.setdefault(delta.key, ["", "", ""])
        call[0] = call[0] or delta.call_id
        call[1] += delta.name if delta.name != call[1] else ""
        call[2] += delta.arguments
    return [(call[0], call[1], call[2]) for call in created.values()]


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


# Usage


USAGE: Final[Json] = {
    "prompt_tokens": 10,
    "completion_tokens": 5,
    "total_tokens": 15,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 2},
}
COUNTED: Final = Usage(10, 5, cached_tokens=4, reasoning_tokens=2)


@any_maker
def test_usage_in_separate_chunk_is_read(make: Maker) -> None:
    assert ended([chunk({"content": "a"}, finish="stop"), envelope([], usage=USAGE)], make).usage == COUNTED


@any_maker
def test_last_of_cumulative_usages_counts(make: Maker) -> None:
    sofar = USAGE | {"completion_tokens": 1}
    assert ended([chunk({"content": "a"}, usage=sofar), chunk(finish="stop", usage=USAGE)], make).usage == COUNTED


@any_maker
def test_usage_before_last_chunk_is_read(make: Maker) -> None:
    assert ended([chunk({"content": "a"}, usage=USAGE), chunk(finish="stop")], make).usage == COUNTED


@any_maker
def test_missing_usage_is_unknown(make: Maker) -> None:
    assert ended([chunk(finish="stop")], make).usage == UNKNOWN


def test_missing_usage_details_are_zero() -> None:
    bare = {"prompt_tokens": 10, "completion_tokens": 0, "prompt_tokens_details": None}
    assert ended([chunk(finish="stop", usage=bare)]).usage == Usage(10)
    null = USAGE | {"prompt_tokens_details": {"cached_tokens": None}, "completion_tokens_details": {}}
    assert ended([chunk(finish="stop", usage=null)]).usage == Usage(10, 5)


def test_cache_write_tokens_are_read() -> None:
    written = USAGE | {"prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3}}
    usage = ended([chunk(finish="stop", usage=written)]).usage
    assert (usage.cached_tokens, usage.cache_write_tokens) == (4, 3)


# Endings

FINISH_REASONS: Final[dict[str, FinishReason]] = {
    "repetition_truncation": "length",
    "stop": "stop",
    "eos": "stop",
    "end_turn": "stop",
    "COMPLETE": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "tool_use": "tool_calls",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "MAX_TOKENS": "length",
    "FinishReason.MAX_TOKENS": "length",
    "max_output_tokens": "length",
    "model_context_window_exceeded": "length",
    "max-tokens": "length",
    "token_limit": "length",
    "context_length_exceeded": "length",
    "tool-calls": "tool_calls",
    "content-filter": "content_filter",
    "content_filter": "content_filter",
    "safety": "content_filter",
    "sensitive": "content_filter",
    "SAFETY": "content_filter",
    "RECITATION": "content_filter",
    "PROHIBITED_CONTENT": "content_filter",
    "refusal": "content_filter",
    "repetition": "length",
    "maxPredictedTokensReached": "length",
    "REASON_MAX_CONTEXT": "length",
    "output_budget_exhausted": "length",
    "kv_cache_full": "length",
    "successfully_done": "stop",
    "MODEL_ARMOR": "content_filter",
    "policy_violation": "content_filter",
    "eosFound": "stop",
    "normal": "stop",
}


@pytest.mark.parametrize(("reason", "meant"), FINISH_REASONS.items())
def test_finish_reasons_are_mapped(reason: str, meant: FinishReason) -> None:
    assert ended([chunk({"content": "a"}), chunk(finish=reason)]).reason == meant


@any_maker
@pytest.mark.parametrize("reason", ["stop", "length", "tool_calls", "content_filter", "function_call"])
def test_finish_reasons_are_read_from_every_chunk_type(make: Maker, reason: str) -> None:
    assert ended([chunk(CALL), chunk(finish=reason)], make).reason == FINISH_REASONS[reason]


def test_unknown_finish_reason_is_logged_and_counts_as_stop(caplog: pytest.LogCaptureFixture) -> None:
    assert ended([chunk(finish="bored")]).reason == "stop"
    assert "bored" in caplog.text


CALL: Final = {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"a":1}'}}]}
HALF: Final = {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"a":'}}]}


@pytest.mark.parametrize("place", ["choice", "delta", "chunk", "chunk alone"])
@pytest.mark.parametrize("name", ["finishReason", "done_reason", "finish_details", "stop_reason", "finish_reason"])
@pytest.mark.parametrize(("reason", "meant"), [("MAX_TOKENS", "length"), ("length", "length"), ("stop", "stop")])
def test_finish_reason_with_another_name_or_at_another_place_is_read(
    place: str, name: str, reason: str, meant: FinishReason
) -> None:
    value = {"type": reason} if name == "finish_details" else reason
    last = envelope([]) if place == "chunk alone" else chunk({"content": "b"})
    if place in ("choice", "delta"):
        [choice] = last["choices"]
        (choice if place == "choice" else choice["delta"])[name] = value
    else:
        last[name] = value
    reader = ChunkReader(Profile(), MOST)
    reader.read(as_client(chunk({"content": "a"})))
    if place != "delta":
        assert reader.extension(last) is None
    reader.read(as_client(last))
    assert reader.end()[-1] == Finish(meant, UNKNOWN)


def test_stop_sequence_beside_a_finish_reason_is_none() -> None:
    last = chunk(finish="stop")
    last["choices"][0]["stop_reason"] = "length"
    assert ended([chunk({"content": "a"}), last]).reason == "stop"


@pytest.mark.parametrize("place", ["choice", "delta", "chunk", "chunk alone"])
@pytest.mark.parametrize(
    ("more", "meant"),
    [
        ({"stop": True, "stop_type": "limit"}, "length"),
        ({"stop": True, "stop_type": "eos", "truncated": False}, "stop"),
        ({"stop": True, "stop_type": "word", "stopping_word": "Z"}, "stop"),
        ({"stopped_eos": False, "stopped_word": False, "stopped_limit": True}, "length"),
        ({"stopped_eos": True, "stopped_word": False, "stopped_limit": False}, "stop"),
        ({"stopped_limit": 1, "context_full": True}, "length"),
    ],
)
def test_reasons_of_llama_cpps_own_api_are_read(
    place: str, more: Json, meant: FinishReason, caplog: pytest.LogCaptureFixture
) -> None:
    last = envelope([]) if place == "chunk alone" else chunk({"content": "b"})
    (last if "chunk" in place else last["choices"][0] if place == "choice" else last["choices"][0]["delta"]).update(
        more
    )
    assert ended([chunk({"content": "a", "stop_type": "none", "stopped_limit": False}), last]).reason == meant
    assert not caplog.text


@pytest.mark.parametrize("where", ["native_finish_reason", "provider_specific_fields"])
@pytest.mark.parametrize(("native", "meant"), [("MAX_TOKENS", "length"), ("SAFETY", "content_filter"), ("x", "stop")])
def test_reason_of_the_server_behind_a_gateway_counts_if_it_cut_the_answer(
    where: str, native: str, meant: FinishReason
) -> None:
    last = chunk(finish="stop")
    last["choices"][0][where] = native if where == "native_finish_reason" else {"native_finish_reason": native}
    assert ended([chunk({"content": "a"}), last]).reason == meant


@pytest.mark.parametrize("before", [[], [chunk({"reasoning_content": "a"})]])
def test_answer_that_ends_with_calls_without_having_one_is_asked_for_again(before: list[Json]) -> None:
    with pytest.raises(MalformedCallError, match="sent no call"):
        ended([*before, chunk(finish="tool_calls")])
    reader = ChunkReader(Profile(), MOST, only_words=True)
    assert not reader.read(as_client(chunk(finish="tool_calls")))
    assert reader.end() == [Finish("tool_calls", UNKNOWN)]


def test_object_as_finish_reason_is_read() -> None:
    assert ended([chunk(finish={"type": "length", "length": 9})]).reason == "length"  # type: ignore[arg-type]
    aborted = {"type": "abort", "message": "The request has no room.", "status_code": 400}
    with pytest.raises(ApiError, match="no room"):
        ended([chunk(finish=aborted)])  # type: ignore[arg-type]


@pytest.mark.parametrize("later", ["stop", "tool_calls", "eos", "bored"])
@pytest.mark.parametrize(("first", "meant"), [("length", "length"), ("content_filter", "content_filter")])
def test_reason_of_a_cut_answer_stays_whatever_follows(first: str, meant: FinishReason, later: str) -> None:
    assert ended([chunk({"content": "a"}), chunk(finish=first), chunk(finish=later)]).reason == meant
    assert ended([chunk({"content": "a"}), chunk(finish=later), chunk(finish=first)]).reason == meant


@pytest.mark.parametrize("later", ["stop", "length", "content_filter"])
@pytest.mark.parametrize("first", ["error", "network_error", "MALFORMED_FUNCTION_CALL"])
def test_reason_of_a_failed_answer_stays_whatever_follows(first: str, later: str) -> None:
    for reasons in ((first, later), (later, first)):
        with pytest.raises(ApiError, match=first):
            ended([chunk({"content": "a"}), *(chunk(finish=each) for each in reasons)])


def test_filtered_answer_that_reaches_its_length_is_filtered() -> None:
    assert ended([chunk(finish="content_filter"), chunk(finish="length")]).reason == "content_filter"


def test_error_of_a_choice_without_a_reason_ends_the_answer_with_its_words() -> None:
    failed = chunk({"content": ""})
    failed["choices"][0]["error"] = {"code": 502, "message": "Provider hiccup"}
    for rest in ([], [chunk(finish="stop")]):
        with pytest.raises(ApiError, match="Provider hiccup"):
            ended([chunk({"content": "a"}), failed, *rest])


def test_error_of_a_choice_that_says_nothing_is_none() -> None:
    good = chunk({"content": "a"}, finish="stop")
    good["choices"][0]["error"] = {"code": 0, "message": ""}
    assert ended([good]).reason == "stop"


@pytest.mark.parametrize(
    ("reason", "meant"),
    [
        ("incomplete", "length"),
        (["length"], "length"),
        ({"reason": "length"}, "length"),
        (["stop"], "stop"),
        (True, "stop"),
    ],
)
def test_finish_reason_in_any_form_is_read_by_its_words(reason: Any, meant: FinishReason) -> None:
    assert ended([chunk({"content": "a"}), chunk(finish=reason)]).reason == meant


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


def test_word_for_no_finish_reason_does_not_end_the_answer() -> None:
    reader = ChunkReader(Profile(), MOST)
    assert reader.read(as_client(chunk({"content": "a"}, finish="null")))
    assert not reader.is_finished


@pytest.mark.parametrize("delta", [{"content": "a"}, {"refusal": "a"}, CALL])
def test_answer_without_finish_reason_is_complete(delta: Json) -> None:
    reader = ChunkReader(Profile(), MOST)
    assert reader.read(as_client(chunk(delta)))
    assert reader.end() == [Finish("stop", UNKNOWN)]


@pytest.mark.parametrize("finish", [None, "stop", "tool_calls", "bored"])
def test_half_call_is_never_complete(finish: str | None) -> None:
    with pytest.raises(ApiError, match="within the arguments"):
        ended([chunk({"content": "a"}), chunk(HALF), *([chunk(finish=finish)] if finish else [])])


@pytest.mark.parametrize("finish", ["length", "model_length", "SAFETY", "repetition"])
def test_half_call_of_cut_answer_stays_half(finish: str) -> None:
    assert ended([chunk(HALF), chunk(finish=finish)]).reason not in ("stop", "tool_calls")


@pytest.mark.parametrize(
    "reason",
    [
        *("error", "timeout", "network_error", "insufficient_system_resource", "OTHER", "worker_failure"),
        *("abort", "cancelled", "modelUnloaded", "MALFORMED_RESPONSE", "malformed_tool_use"),
        *("MALFORMED_FUNCTION_CALL", "function_call_filter: MALFORMED_FUNCTION_CALL"),
        *("client_disconnect", "disconnected", "out_of_memory", "preempted", "killed", "shutdown"),
        *("oom", "engine_dead", "expired", "load"),
    ],
)
def test_finish_reason_error_is_502(reason: str) -> None:
    with pytest.raises(ApiError, match=reason) as caught:
        ended([chunk({"content": "a"}), chunk(finish=reason)])
    assert caught.value.status == 502


@pytest.mark.parametrize("chunks", [[], [chunk({"reasoning": "a"})], [envelope([], usage=USAGE)]])
def test_stream_without_finish_reason_is_502(chunks: list[Json]) -> None:
    with pytest.raises(ApiError, match="ended before") as caught:
        ended(chunks)
    assert caught.value.status == 502


def test_text_in_finishing_chunk_is_kept() -> None:
    reader = ChunkReader(Profile(), MOST)
    assert reader.read(as_client(chunk({"content": "a"}, finish="stop"))) == [Text("a")]
    assert reader.end() == [Finish("stop", UNKNOWN)]


@any_maker
def test_last_service_tier_counts(make: Maker) -> None:
    reader = ChunkReader(Profile(), MOST)
    reader.read(make(chunk({"content": "a"}, service_tier="default")))
    reader.read(make(chunk(finish="stop", service_tier="flex")))
    assert reader.service_tier == "flex"


# Logprobs


def logprob(token: str, value: Any, encoded: list[int] | None = None, tops: Any = ()) -> Json:
    return {"token": token, "logprob": value, "bytes": encoded, "top_logprobs": tops and list(tops)}


def shown(make: Maker, *entries: Json) -> list[Json] | None:
    [delta] = read(make, [chunk({"content": "a"}, logprobs={"content": list(entries), "refusal": None})])
    assert isinstance(delta, Text)
    return delta.logprobs


@any_maker
def test_logprobs_are_read(make: Maker) -> None:
    top = {"token": "b", "logprob": -1.5, "bytes": [98]}
    assert shown(make, logprob("a", -0.5, [97], [top])) == [
        {"token": "a", "bytes": [97], "logprob": -0.5, "top_logprobs": [top]}
    ]


@any_maker
def test_null_bytes_of_token_are_filled_in(make: Maker) -> None:
    top = {"token": "ü", "logprob": -1.5, "bytes": None}
    [entry] = shown(make, logprob("é", -0.5, None, [top])) or []
    assert entry["bytes"] == [0xC3, 0xA9]
    assert entry["top_logprobs"][0]["bytes"] == [0xC3, 0xBC]


def test_texts_of_tokens_are_bounded() -> None:
    top = {"token": "u", "logprob": -1.5, "bytes": [117] * 1_000}
    [entry] = shown(as_client, logprob("t" * 1_000, -0.5, None, [top])) or []
    assert (len(entry["token"]), len(entry["bytes"]), len(entry["top_logprobs"][0]["bytes"])) == (256, 256, 256)


@pytest.mark.parametrize("value", [-float("inf"), float("nan"), -10_000.0, None])
def test_infinite_and_missing_logprobs_become_finite(value: float | None) -> None:
    top = {"token": "b", "logprob": value, "bytes": None}
    [entry] = shown(as_client, logprob("a", value, None, [top])) or []
    assert entry["logprob"] == entry["top_logprobs"][0]["logprob"] == -9999.0


@any_maker
def test_character_in_several_tokens_keeps_all_logprobs(make: Maker) -> None:
    def chunk_of(text: str, *entries: Json) -> Json:
        return chunk({"content": text}, logprobs={"content": list(entries), "refusal": None})

    first, second = logprob("\ufffd", -0.5, [0xF0, 0x9F]), logprob("\ufffd", -0.25, [0x98, 0x80])
    hidden = logprob("<tool>", -1.0, list(b"<tool>"))
    [delta] = read(make, [chunk_of("", hidden), chunk_of("", first), chunk_of("😀", second)])
    assert isinstance(delta, Text)
    assert [entry["bytes"] for entry in delta.logprobs or ()] == [[0xF0, 0x9F], [0x98, 0x80]]


@openai_maker
@pytest.mark.parametrize(
    ("timings", "cached"),
    [({"cache_n": 7, "prompt_n": 3}, 7), ({"cache_n": 11}, 10), ({"cache_n": None}, 0), ("odd", 0), (None, 0)],
)
def test_cached_tokens_of_llama_cpp_are_read(make: Maker, timings: Any, cached: int) -> None:
    counted = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    last = envelope([], usage=counted, timings=timings)
    assert ended([chunk(finish="stop"), last], make).usage == Usage(10, 5, cached_tokens=cached)


def test_cached_tokens_of_the_usage_count_before_those_of_timings() -> None:
    assert ended([chunk(finish="stop", usage=USAGE, timings={"cache_n": 7})]).usage == COUNTED


@openai_maker
def test_legacy_function_call_is_one_call(make: Maker) -> None:
    begun = chunk({"function_call": {"name": "f", "arguments": ""}})
    deltas = read(make, [begun, chunk({"function_call": {"arguments": "{}"}})], finish="function_call")
    assert [(call.name, call.arguments) for call in deltas if isinstance(call, ToolCall)] == [("f", ""), ("", "{}")]
    assert len({call.key for call in deltas if isinstance(call, ToolCall)}) == 1


def test_logprobs_without_alternatives_are_read() -> None:
    [entry] = shown(as_client, logprob("a", -0.5, None, None)) or []
    assert entry["top_logprobs"] == []


@any_maker
def test_null_logprobs_are_accepted(make: Maker) -> None:
    assert read(make, [chunk({"content": "a"}, logprobs={"content": None, "refusal": None})]) == [Text("a", [])]
    assert read(make, [chunk({"content": "a"}, logprobs=None)]) == [Text("a", None)]


def test_logprobs_of_reasoning_are_dropped() -> None:
    reasoned = chunk({"reasoning_content": "a"}, logprobs={"content": [logprob("a", -0.5)]})
    assert read(as_client, [reasoned]) == [Reasoning("a")]


def test_logprobs_with_inline_thinking_belong_to_text() -> None:
    profile = Profile(inline_thinking=InlineThinking())
    pieces = ["<think>", "a", "</think>b", "c", "d<"]
    chunks = [chunk({"content": piece}, logprobs={"content": [logprob(piece, -0.5)]}) for piece in pieces]
    deltas = read(as_client, chunks, profile)
    assert [(type(delta), delta.text) for delta in deltas if isinstance(delta, Text | Reasoning)] == [
        (Reasoning, "a"),
        *((Text, text) for text in ("b", "c", "d<")),
    ]
    with_logprobs = [delta.text for delta in deltas if isinstance(delta, Text) and delta.logprobs]
    assert with_logprobs == ["c", "d<"]


# Annotations


def test_url_citation_becomes_annotation() -> None:
    citation = {"url": "u", "title": "t", "start_index": 0, "end_index": 1}
    sent = {"type": "url_citation", "url_citation": citation}
    [text, annotation] = read(as_client, [chunk({"content": "a", "annotations": [sent]})])
    assert text == Text("a")
    assert annotation == Annotation({"type": "url_citation", **citation})


@pytest.mark.parametrize(
    "annotation",
    [
        {"type": "file_citation", "file_citation": {}},
        {"type": "url_citation", "url_citation": None},
        {"type": "url_citation", "url_citation": {"url": "u", "title": None, "start_index": 0, "end_index": 1}},
    ],
)
def test_incomplete_annotations_are_dropped(annotation: Json) -> None:
    assert read(as_client, [chunk({"annotations": [annotation]})]) == []


# Inline thinking


@pytest.mark.parametrize(
    ("tags", "text"),
    [
        (InlineThinking(), "<think>hm</think>so"),
        (InlineThinking(starts_open=True), "hm</think>so"),
        (InlineThinking(open="[THINK]", close="[/THINK]"), "[THINK]hm[/THINK]so"),
    ],
)
def test_inline_thinking_is_found_wherever_it_is_cut(tags: InlineThinking, text: str) -> None:
    profile = Profile(inline_thinking=tags)
    for cut in range(len(text) + 1):
        deltas = read(as_client, [chunk({"content": piece}) for piece in (text[:cut], text[cut:])], profile)
        assert joined(deltas) == [Reasoning("hm"), Text("so")]


def test_held_back_text_is_emitted_at_end() -> None:
    reader = ChunkReader(Profile(inline_thinking=InlineThinking()), MOST)
    assert reader.read(as_client(chunk({"content": "a <thi"}, finish="stop"))) == [Text("a ")]
    assert reader.end() == [Text("<thi"), Finish("stop", UNKNOWN)]


def test_thinking_tags_stay_in_text_without_profile() -> None:
    assert read(as_client, [chunk({"content": "<think>a</think>"})]) == [Text("<think>a</think>")]


def joined(deltas: Iterable[Delta]) -> list[Delta]:
    out: list[Delta] = []
    for delta in deltas:
        last = out[-1] if out else None
        if isinstance(delta, Text) and isinstance(last, Text):
            out[-1] = Text(last.text + delta.text)
        elif isinstance(delta, Reasoning) and isinstance(last, Reasoning):
            out[-1] = Reasoning(last.text + delta.text)
        else:
            out.append(delta)
    return out


# Arbitrary chunks

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


@pytest.mark.parametrize(("code", "status"), [(502, 502), (429, 429), ("429", 429), (None, 502)])
def test_error_of_a_choice_keeps_its_words_and_its_status(code: Any, status: int) -> None:
    failed = chunk({"content": ""}, finish="error")
    failed["choices"][0]["error"] = {"code": code, "message": "Provider hiccup"}
    with pytest.raises(ApiError, match="Provider hiccup") as caught:
        ended([chunk({"content": "a"}), failed])
    assert caught.value.status == status


async def test_error_of_a_choice_of_a_whole_answer_keeps_its_words_and_its_status() -> None:
    error = {"code": 429, "message": "Provider hiccup"}
    choice = {"index": 0, "message": {"content": ""}, "finish_reason": "error", "logprobs": None, "error": error}
    reader = ChunkReader(Profile(), MOST)
    async for each in in_one(whole(ChatCompletion, envelope([choice], usage=None))):
        reader.read(each)
    with pytest.raises(ApiError, match="Provider hiccup") as caught:
        reader.end()
    assert caught.value.status == 429


# Forms of usage and reasoning

NONE_WRITTEN: Final = {"prompt_tokens": 9, "completion_tokens": 0}


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 9.0, "completion_tokens": "4"}, Usage(9, 4)),
        ({"input_tokens": 9, "output_tokens": 4}, Usage(9, 4)),
        ({"prompt_tokens": -1, "completion_tokens": 4, "total_tokens": 3}, UNKNOWN),
        (NONE_WRITTEN | {"cached_tokens": 5}, Usage(9, cached_tokens=5)),
        (NONE_WRITTEN | {"prompt_cache_hit_tokens": 5}, Usage(9, cached_tokens=5)),
        (NONE_WRITTEN | {"cache_read_input_tokens": 5}, Usage(9, cached_tokens=5)),
        (NONE_WRITTEN | {"prompt_tokens_details": {"cached_tokens": 50}}, Usage(9, cached_tokens=9)),
        ({"completion_tokens": 4, "total_tokens": 13}, Usage(9, 4)),
        ({"prompt_tokens": 9, "completion_tokens": None, "total_tokens": 13}, Usage(9, 4)),
        ({"completion_tokens": 3}, UNKNOWN),
        ({"prompt_tokens": 9}, UNKNOWN),
        ({"prompt_tokens": 9, "completion_tokens": "n/a"}, UNKNOWN),
        ({"prompt_tokens": 9, "total_tokens": 9}, Usage(9)),
        ({"prompt_tokens": 0, "completion_tokens": 3, "total_tokens": 0}, UNKNOWN),
        ({"completion_tokens": 3, "prompt_tokens": None}, UNKNOWN),
        ({"completion_tokens": 3, "prompt_tokens": "n/a"}, UNKNOWN),
        ({"completion_tokens": -1, "prompt_tokens": 9}, UNKNOWN),
    ],
)
@pytest.mark.parametrize("make", [as_client, chat_chunk])
def test_usage_is_read_in_the_forms_of_vendors(make: Maker, usage: Json, expected: Usage) -> None:
    assert ended([chunk({"content": "a"}, finish="stop", usage=usage)], make).usage == expected


@openai_maker
def test_usage_in_choice_or_of_groq_is_read(make: Maker) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}
    in_choice = chunk(finish="stop")
    in_choice["choices"][0]["usage"] = usage
    for each in (in_choice, chunk(finish="stop", x_groq={"id": "r", "usage": usage})):
        assert ended([each], make).usage == Usage(9, 4)


def test_zeros_after_the_usage_do_not_count() -> None:
    zeros = {"prompt_tokens": 0, "completion_tokens": 0}
    chunks = [chunk({"content": "a"}, finish="stop", usage=USAGE), envelope([], usage=zeros)]
    assert ended(chunks) == ended(chunks[:1])


@pytest.mark.parametrize(
    "reasoning", [{"text": "hm"}, {"content": "hm"}, [{"type": "text", "text": "h"}, {"text": "m"}], ["h", "m"]]
)
def test_reasoning_as_object_or_parts_is_read(reasoning: Any) -> None:
    assert read(as_client, [chunk({"reasoning": reasoning})]) == [Reasoning("hm")]


@pytest.mark.parametrize("contents", [["Hello", "Hello wor", "Hello world"], ["Hello", " world", "Hello world"]])
def test_text_repeated_in_lists_is_passed_on_once(contents: list[str]) -> None:
    chunks = [chunk({"content": [{"type": "text", "text": each}]}) for each in contents]
    deltas = read(as_client, chunks)
    assert "".join(delta.text for delta in deltas if isinstance(delta, Text)) == "Hello world"


# Whole messages


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
