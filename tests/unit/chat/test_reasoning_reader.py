"""Reasoning becomes a summary where the client asked for one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pytest

from llama_stack_responses.chat.chunks import ChunkReader
from llama_stack_responses.chat.profile import InlineThinking, Profile
from llama_stack_responses.core.surrogates import without_surrogates
from llama_stack_responses.stream.deltas import Delta, Reasoning, Refusal, Text, ToolCall
from tests.support.chunk_reading import MOST, Json, Maker, any_maker, as_client, chunk, read, said


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
