"""Text, refusals, annotations and inline reasoning, in all forms of servers, become the same deltas."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from llama_stack_responses.chat.chunks import ChunkReader
from llama_stack_responses.chat.profile import InlineThinking, Profile
from llama_stack_responses.stream.deltas import Annotation, Delta, Finish, Reasoning, Text
from llama_stack_responses.stream.usage import UNKNOWN
from tests.support.chunk_reading import MOST, Json, Maker, any_maker, as_client, chunk, openai_maker, read


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
