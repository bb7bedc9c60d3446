"""Reasoning goes back to the model server as it came, also if the client keeps nothing of it but the seal."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_stack_responses.chat.answer_end import OutputLimitReached
from llama_stack_responses.chat.chunks import ChunkReader
from llama_stack_responses.chat.messages import chat_messages
from llama_stack_responses.chat.profile import InlineThinking, Profile
from llama_stack_responses.chat.reasoning_entries import DETAILS, ReasoningEntries, decoded, joined
from tests.support.inference import call, chunk, finish, reasoning, text
from tests.unit.sealing.reasoning_harness import USER, Json, output, private, replayed, sent_back

TEXT: Final = {"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0}
ENCRYPTED: Final = {"type": "reasoning.encrypted", "data": "AAAA", "format": "openai-responses-v1", "id": "rs_1"}
SUMMARY: Final = {"type": "reasoning.summary", "format": "openai-responses-v1", "index": 0}
DATABRICKS: Final = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm.", "signature": "s"}]}


def details(*entries: Json, plain: str | None = None) -> Any:
    """Return a chunk with these entries of `reasoning_details`."""
    return chunk({"reasoning_details": list(entries), **({"reasoning": plain} if plain else {})})


def parts(*contents: Json) -> Any:
    """Return a chunk with content in parts."""
    return chunk({"content": list(contents)})


def thinking(said: str, **more: Any) -> Json:
    return {"type": "thinking", "thinking": [{"type": "text", "text": said}], **more}


# Chunks of the reasoning, and what the message has beside `role` and `content`.
FORMS: Final[dict[str, tuple[list[Any], Json]]] = {
    "reasoning_content": ([reasoning("Hm, "), reasoning("so.")], {"reasoning_content": "Hm, so."}),
    "reasoning": ([chunk({"reasoning": "Hm, "}), chunk({"reasoning": "so."})], {"reasoning": "Hm, so."}),
    "both": (
        [chunk({"reasoning": each, "reasoning_content": each}) for each in ("Hm, ", "so.")],
        {"reasoning": "Hm, so.", "reasoning_content": "Hm, so."},
    ),
    "signed details in fragments": (
        [
            details({**TEXT, "text": "Hm, "}, plain="Hm, "),
            details({**TEXT, "text": "so."}, plain="so."),
            details({**TEXT, "signature": "s"}),
        ],
        {"reasoning": "Hm, so.", "reasoning_details": [{**TEXT, "text": "Hm, so.", "signature": "s"}]},
    ),
    "details alone": (
        [details({**TEXT, "text": "Hm, "}), details({**TEXT, "text": "so."})],
        {"reasoning_details": [{**TEXT, "text": "Hm, so."}]},
    ),
    "details with all that has been thought in each chunk": (
        [details({**TEXT, "text": each}) for each in ("Hm, let me", "Hm, let me see", "Hm, let me see. So.")],
        {"reasoning_details": [{**TEXT, "text": "Hm, let me see. So."}]},
    ),
    "several details at once": (
        [details({**TEXT, "text": "Hm.", "signature": "s"}, {**TEXT, "index": 1, "text": "So."}, ENCRYPTED)],
        {
            "reasoning_details": [
                {**TEXT, "text": "Hm.", "signature": "s"},
                {**TEXT, "index": 1, "text": "So."},
                ENCRYPTED,
            ]
        },
    ),
    "encrypted details alone": ([details(ENCRYPTED)], {"reasoning_details": [ENCRYPTED]}),
    "details behind their text": (
        [
            chunk({"reasoning": "Hm, "}),
            chunk({"reasoning": "so."}),
            details({**TEXT, "text": "Hm, so.", "signature": "s"}),
        ],
        {"reasoning": "Hm, so.", "reasoning_details": [{**TEXT, "text": "Hm, so.", "signature": "s"}]},
    ),
    "details with another text than the reasoning": (
        [details({**TEXT, "text": "Hm, so, well."}, plain="Hm.")],
        {"reasoning": "Hm.", "reasoning_details": [{**TEXT, "text": "Hm, so, well."}]},
    ),
    "a summary and what is encrypted": (
        [details({**SUMMARY, "summary": "In "}), details({**SUMMARY, "summary": "short."}), details(ENCRYPTED)],
        {"reasoning_details": [{**SUMMARY, "summary": "In short."}, ENCRYPTED]},
    ),
    "signed blocks": (
        [
            chunk({"reasoning_content": "Hm.", "thinking_blocks": [{"type": "thinking", "thinking": "Hm."}]}),
            chunk({"thinking_blocks": [{"type": "thinking", "thinking": "", "signature": "s"}]}),
        ],
        {
            "reasoning_content": "Hm.",
            "thinking_blocks": [{"type": "thinking", "thinking": "Hm.", "signature": "s"}],
        },
    ),
    "blocks alone": (
        [
            chunk({"thinking_blocks": [{"type": "thinking", "thinking": "Hm.", "signature": "s"}]}),
            chunk({"thinking_blocks": [{"type": "redacted_thinking", "data": "AAAA"}]}),
        ],
        {
            "thinking_blocks": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "redacted_thinking", "data": "AAAA"},
            ]
        },
    ),
    "parts": (
        [parts(thinking("Hm, ")), parts(thinking("so.", closed=True))],
        {"content": [thinking("Hm, so.", closed=True), {"type": "text", "text": "Hello"}]},
    ),
    "parts whose thinking is text": (
        [parts({"type": "thinking", "thinking": "Hm, "}), parts({"type": "thinking", "thinking": "so."})],
        {"content": [{"type": "thinking", "thinking": "Hm, so."}, {"type": "text", "text": "Hello"}]},
    ),
    "signed parts": ([parts(DATABRICKS)], {"content": [DATABRICKS, {"type": "text", "text": "Hello"}]}),
    "a signature of the message": (
        [chunk({"extra_content": {"google": {"thought_signature": "s", "thought": True}}})],
        {"extra_content": {"google": {"thought_signature": "s"}}},
    ),
    "signatures of the message": (
        [chunk({"provider_specific_fields": {"thought_signatures": ["s"], "citations": None}})],
        {"provider_specific_fields": {"thought_signatures": ["s"]}},
    ),
}


def message_of(items: Sequence[Json], **profile: Any) -> Json:
    """Return the assistant message of items of which the client has kept only the seals."""
    kept = [sent_back(item) if item["type"] == "reasoning" else item for item in items]
    return replayed(kept, Profile(**profile))


@pytest.mark.parametrize("summaries", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_reasoning_before_an_answer_goes_back_as_it_came(form: str, summaries: bool) -> None:
    chunks, expected = FORMS[form]
    items = output(*chunks, text("Hello"), finish(), summaries=summaries)
    assert [item["type"] for item in items] == ["reasoning", "message"]
    assert message_of(items) == {"role": "assistant", "content": "Hello"} | expected


@pytest.mark.parametrize("form", [form for form in FORMS if "parts" not in form])
def test_reasoning_before_a_call_goes_back_as_it_came(form: str) -> None:
    chunks, expected = FORMS[form]
    items = output(*chunks, call("f", "c1"), finish("tool_calls"))
    assert [item["type"] for item in items] == ["reasoning", "function_call"]
    message = message_of([*items, {"type": "function_call_output", "call_id": "c1", "output": ""}])
    assert {name: value for name, value in message.items() if name not in ("role", "tool_calls")} == {
        "content": None
    } | expected


@pytest.mark.parametrize("form", FORMS)
def test_nothing_of_the_reasoning_goes_back_if_the_profile_says_so(form: str) -> None:
    items = output(*FORMS[form][0], text("Hello"), finish())
    assert message_of(items, reasoning_replay="none") == {"role": "assistant", "content": "Hello"}


def test_inline_reasoning_goes_back_between_its_tags() -> None:
    tags = InlineThinking(open="[THINK]", close="[/THINK]")
    profile = Profile(inline_thinking=tags)
    items = output(text("[THINK]Hm.[/THINK]"), text("Hello"), finish(), profile=profile)
    assert replayed(items, profile) == {"role": "assistant", "content": "[THINK]\nHm.\n[/THINK]\n\nHello"}


def test_details_behind_the_answer_leave_its_text_whole() -> None:
    items = output(
        details({**TEXT, "text": "Hm."}),
        text("Hel"),
        details(ENCRYPTED),
        text("lo"),
        details({**TEXT, "signature": "s"}),
        finish(),
    )
    assert [item["type"] for item in items] == ["reasoning", "message", "reasoning"]
    assert items[1]["content"][0]["text"] == "Hello"
    assert message_of(items)["reasoning_details"] == [{**TEXT, "text": "Hm.", "signature": "s"}, ENCRYPTED]


def block(said: str, **more: Any) -> Json:
    return {"type": "thinking", "thinking": said, **more}


FIRST, SECOND, BOTH = "Hm, let me ", "think about it.", "Hm, let me think about it."
SAID: Final[dict[str, list[Any]]] = {
    "details": [details({**TEXT, "text": FIRST}), details({**TEXT, "text": SECOND})],
    "details with text": [details({**TEXT, "text": each}, plain=each) for each in (FIRST, SECOND)],
    "signed details": [
        details({**TEXT, "text": FIRST}),
        details({**TEXT, "text": SECOND}),
        details({**TEXT, "signature": "s"}),
    ],
    "details without an index": [details({"type": "reasoning.text", "text": each}) for each in (FIRST, SECOND)],
    "two details": [details({**TEXT, "text": FIRST}), details({**TEXT, "index": 1, "text": SECOND})],
    "encrypted": [details(ENCRYPTED)],
    "summary": [details({**SUMMARY, "summary": FIRST}), details({**SUMMARY, "summary": SECOND}), details(ENCRYPTED)],
    "blocks": [
        chunk({"thinking_blocks": [block(FIRST)], "reasoning_content": FIRST}),
        chunk({"thinking_blocks": [block(SECOND)], "reasoning_content": SECOND}),
        chunk({"thinking_blocks": [block("", signature="s")]}),
    ],
    "hidden block": [chunk({"thinking_blocks": [{"type": "redacted_thinking", "data": "AAAA"}]})],
    "parts": [parts(thinking(FIRST)), parts(thinking(SECOND, closed=True))],
}
"""Chunks of reasoning, in fragments."""
AGAIN: Final[dict[str, Json]] = {
    "details": {DETAILS: [{**TEXT, "text": BOTH}]},
    "details with text": {DETAILS: [{**TEXT, "text": BOTH}], "reasoning": BOTH},
    "signed details": {DETAILS: [{**TEXT, "text": BOTH, "signature": "s"}]},
    "details without an index": {DETAILS: [{"type": "reasoning.text", "text": BOTH}]},
    "two details": {DETAILS: [{**TEXT, "text": FIRST}, {**TEXT, "index": 1, "text": SECOND}]},
    "encrypted": {DETAILS: [ENCRYPTED]},
    "summary": {DETAILS: [{**SUMMARY, "summary": BOTH}, ENCRYPTED]},
    "blocks": {"thinking_blocks": [block(BOTH, signature="s")], "reasoning_content": BOTH},
    "hidden block": {"thinking_blocks": [{"type": "redacted_thinking", "data": "AAAA"}]},
    "parts": {"content": [thinking(BOTH, closed=True)]},
}
"""The same in one chunk."""


@pytest.mark.parametrize("summaries", [False, True])
@pytest.mark.parametrize("answer", [text("Hello"), call("f", "c1")], ids=["text", "call"])
@pytest.mark.parametrize("form", SAID)
def test_reasoning_that_the_last_chunk_has_once_more_is_there_once(form: str, answer: Any, summaries: bool) -> None:
    last = chunk(AGAIN[form], finish_reason="stop")
    expected = output(*SAID[form], answer, finish(), summaries=summaries)
    items = output(*SAID[form], answer, last, finish(), summaries=summaries)
    assert [item["type"] for item in items] == [item["type"] for item in expected]
    done = [DONE] if items[-1]["type"] == "function_call" else []
    assert message_of([*items, *done]) == message_of([*expected, *done])


def test_signature_that_the_last_chunk_has_with_the_text_once_more_is_added() -> None:
    signed = {**TEXT, "text": BOTH, "signature": "s"}
    items = output(*SAID["details"], text("Hello"), details(signed), finish())
    assert message_of(items)["reasoning_details"] == [signed]


def test_details_that_come_first_behind_the_answer_are_whole() -> None:
    signed = {**TEXT, "text": BOTH, "signature": "s"}
    items = output(reasoning(FIRST), reasoning(SECOND), text("Hello"), details(signed), finish())
    assert message_of(items)["reasoning_details"] == [signed]
    assert message_of(items)["reasoning_content"] == BOTH


def test_other_thoughts_behind_the_answer_are_kept() -> None:
    items = output(*SAID["details"], text("Hello"), details({**TEXT, "text": "So, what else?"}), finish())
    assert [entry["text"] for entry in message_of(items)["reasoning_details"]] == [BOTH, "So, what else?"]


# Signatures of calls


DONE: Final = {"type": "function_call_output", "call_id": "c1", "output": ""}


def fragment(index: int | None = 0, call_id: str | None = None, arguments: str = "", **more: Any) -> Json:
    name = {"name": "f"} if call_id is not None else {}
    place = {} if index is None else {"index": index}
    return {**place, "id": call_id, "type": "function", "function": {**name, "arguments": arguments}, **more}


def calls(*fragments: Json) -> Any:
    return chunk({"tool_calls": list(fragments)})


def signed(value: str, name: str = "google") -> Json:
    return {"extra_content": {name: {"thought_signature": value}}}


CALLS: Final[dict[str, tuple[list[Any], list[Json]]]] = {
    "with the call": ([calls(fragment(0, "c1", "{}", **signed("s")))], [signed("s")]),
    "of Vertex": ([calls(fragment(0, "c1", "{}", **signed("s", "vertex")))], [signed("s", "vertex")]),
    "of LiteLLM": (
        [calls(fragment(0, "c1", "{}", provider_specific_fields={"thought_signature": "s"}))],
        [{"provider_specific_fields": {"thought_signature": "s"}}],
    ),
    "of the function": (
        [calls({"index": 0, "id": "c1", "function": {"name": "f", "arguments": "{}", "thought_signature": "s"}})],
        [{"function": {"name": "f", "arguments": "{}", "thought_signature": "s"}}],
    ),
    "in a later chunk": (
        [calls(fragment(0, "c1", "{")), calls(fragment(0, None, "}")), calls(fragment(0, None, "", **signed("s")))],
        [signed("s")],
    ),
    "between the arguments": (
        [calls(fragment(0, "c1", "{")), calls(fragment(0, None, "", **signed("s"))), calls(fragment(0, None, "}"))],
        [signed("s")],
    ),
    "before the call": ([calls(fragment(0, None, "", **signed("s"))), calls(fragment(0, "c1", "{}"))], [signed("s")]),
    "without an id": ([calls(fragment(0, "", "{}", **signed("s")))], [signed("s")]),
    "without an id, in a later chunk": (
        [calls(fragment(0, "", "{}")), calls(fragment(0, None, "", **signed("s")))],
        [signed("s")],
    ),
    "several without ids": (
        [calls(fragment(None, "", '{"a": 1}', **signed("s")), fragment(None, "", '{"a": 2}', **signed("t")))],
        [signed("s"), signed("t")],
    ),
    "the first of several": (
        [calls(fragment(0, "c1", "{}", **signed("s"))), calls(fragment(1, "c2", "{}"))],
        [signed("s"), {}],
    ),
    "several with one id": (
        [calls(fragment(0, "c", '{"a": 1}', **signed("s"))), calls(fragment(1, "c", '{"a": 2}', **signed("t")))],
        [signed("s"), signed("t")],
    ),
    "twice": (
        [calls(fragment(0, "c1", "{}", **signed("s"))), calls(fragment(0, "c1", "", **signed("s")))],
        [signed("s")],
    ),
}


@pytest.mark.parametrize("form", CALLS)
def test_signature_of_call_goes_back_where_it_was(form: str) -> None:
    chunks, expected = CALLS[form]
    items = output(*chunks, finish("tool_calls"))
    made = [item for item in items if item["type"] == "function_call"]
    outputs = [{"type": "function_call_output", "call_id": each["call_id"], "output": ""} for each in made]
    message = message_of([*items, *outputs])
    assert [each["id"] for each in message["tool_calls"]] == [each["call_id"] for each in made]
    usual = ({"id", "type", "function"} if "function" not in each else {"id", "type"} for each in expected)
    assert [
        {name: value for name, value in each.items() if name not in names}
        for each, names in zip(message["tool_calls"], usual, strict=True)
    ] == expected
    assert message.keys() == {"role", "content", "tool_calls"}
    unsigned = message_of([*items, *outputs], reasoning_replay="none")
    assert all(each.keys() == {"id", "type", "function"} for each in unsigned["tool_calls"])


def test_signature_in_the_id_of_a_call_stays_inside() -> None:
    """LiteLLM; the ids have kilobytes, which clients of OpenAI's API do not take."""
    whole = f"call_1__thought__{'A' * 3_000}"
    items = output(calls(fragment(0, whole, "{}")), finish("tool_calls"))
    assert [item.get("call_id") for item in items] == [None, "call_1"]
    messages = chat_messages([USER, *items, {**DONE, "call_id": "call_1"}], Profile(), read_reasoning=private().read)
    assert (messages[1]["tool_calls"][0]["id"], messages[2]["tool_call_id"]) == (whole, whole)
    assert (
        message_of([*items, {**DONE, "call_id": "call_1"}], reasoning_replay="none")["tool_calls"][0]["id"] == "call_1"
    )


def test_signature_that_comes_with_the_arguments_is_one_item() -> None:
    items = output(*CALLS["twice"][0], finish("tool_calls"))
    assert [item["type"] for item in items] == ["reasoning", "function_call"]


@pytest.mark.parametrize("runs_here", [False, True])
def test_details_behind_a_call_belong_to_its_message(runs_here: bool) -> None:
    made, late = output(calls(fragment(0, "c1", "{}")), details(ENCRYPTED), finish("tool_calls"))
    # A hosted tool's call and output are one item, before the reasoning behind the call.
    items = [made, DONE, late] if runs_here else [made, late, DONE]
    assert message_of([*items])["reasoning_details"] == [ENCRYPTED]


def test_signatures_belong_to_the_calls_of_their_round_if_ids_repeat() -> None:
    rounds = [
        output(calls(fragment(0, "c1", "{}")), calls(fragment(0, None, "", **signed("s"))), finish("tool_calls")),
        output(calls(fragment(0, "c1", "{}", **signed("t"))), finish("tool_calls")),
    ]
    assert [item["type"] for each in rounds for item in each] == [
        *("function_call", "reasoning"),
        *("reasoning", "function_call"),
    ]
    messages = chat_messages([USER, *rounds[0], DONE, *rounds[1], DONE], Profile(), read_reasoning=private().read)
    assert [messages[place]["tool_calls"][0]["extra_content"]["google"] for place in (1, 3)] == [
        {"thought_signature": "s"},
        {"thought_signature": "t"},
    ]


def test_what_providers_signed_goes_back_of_all_turns_and_other_reasoning_of_the_last() -> None:
    turns = [
        output(reasoning("One."), text("a"), finish()),
        output(*FORMS["signed details in fragments"][0], text("b"), finish()),
        output(chunk({"reasoning": "Three."}), calls(fragment(0, "c1", "{}", **signed("s"))), finish("tool_calls")),
    ]
    items = [USER, *turns[0], USER, *turns[1], USER, *turns[2], DONE]
    read = private().read

    def said(*more: Json, **options: Any) -> list[list[str]]:
        messages = chat_messages([*items, *more], Profile(), read_reasoning=read, **options)
        return [sorted(message.keys() - {"role", "content"}) for message in messages if message["role"] == "assistant"]

    assert said() == [[], ["reasoning_details"], ["reasoning", "tool_calls"]]
    assert said(USER) == [[], ["reasoning_details"], ["tool_calls"]]
    assert said(USER, signed_reasoning=False) == [[], [], ["tool_calls"]]
    assert said(all_reasoning=True) == [
        ["reasoning_content"],
        ["reasoning", "reasoning_details"],
        ["reasoning", "tool_calls"],
    ]
    messages = chat_messages([*items, USER], Profile(), read_reasoning=read)
    [signed_call] = messages[5]["tool_calls"]
    assert signed_call["extra_content"] == {"google": {"thought_signature": "s"}}


def test_entries_count_towards_the_limit_of_a_round() -> None:
    reader = ChunkReader(Profile(), 50_000)
    entries = ({**ENCRYPTED, "data": "A" * 1_000, "id": f"rs_{number}"} for number in range(100))
    with pytest.raises(OutputLimitReached):
        deque((delta for entry in entries for delta in reader.read(details(entry))), maxlen=0)


def test_entry_that_is_too_large_is_left_out() -> None:
    items = output(
        details({**ENCRYPTED, "data": "A" * (1 << 20)}), details({**ENCRYPTED, "id": "rs_2"}), text("a"), finish()
    )
    assert message_of(items)["reasoning_details"] == [{**ENCRYPTED, "id": "rs_2"}]


@pytest.mark.parametrize(
    "entry", [3, "a", None, ["a"], {}, {"type": 3}, {"text": 3}, {"type": "reasoning.text", "text": {}}]
)
def test_odd_entry_does_no_harm(entry: Any) -> None:
    assert output(details(entry, {**TEXT, "text": "Hm."}), text("a"), finish())[-1]["content"][0]["text"] == "a"


PIECES: Final = st.lists(
    st.tuples(st.integers(0, 2), st.text(st.characters(exclude_categories=["Cs"]), max_size=5), st.booleans()),
    min_size=1,
)


@given(PIECES)
def test_texts_of_entries_are_whole_however_they_are_cut(pieces: list[tuple[int, str, bool]]) -> None:
    entries, ended = ReasoningEntries(), list[str | None]()
    for index, said, ends in pieces:
        fragment = {**TEXT, "index": index, "text": said} | ({"signature": "s"} if ends else {})
        if entries.is_open and not entries.continues(DETAILS, fragment):
            ended.append(entries.end())
        entries.take(DETAILS, fragment, said, said=False)
    found = [value for entry in [*ended, entries.end()] if (both := decoded(entry or "", "")) for value in both[1:]]
    assert "".join(entry["text"] for entry in found) == "".join(said for _, said, _ in pieces)
    assert all(one["index"] != other["index"] for one, other in pairwise(found))
    whole = joined(found)
    assert sorted("".join(entry["text"] for entry in whole)) == sorted("".join(entry["text"] for entry in found))
    assert joined(whole) == whole
