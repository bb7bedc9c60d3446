"""Sealed reasoning that the client carries: from the provider's chunks, through an item, and back to the model."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, Final

import pytest

from llama_stack_responses.chat.profile import Profile
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.items.reasoning_segments import ReasoningSegment
from llama_stack_responses.requests.request import parse_create
from llama_stack_responses.sealing.reasoning import PrivateReasoning
from llama_stack_responses.sealing.sealed_items import Opened, SealedItems
from llama_stack_responses.stream.assembler import Assembler
from llama_stack_responses.stream.call_kinds import FUNCTION
from llama_stack_responses.stream.deltas import Finish, Reasoning, Refusal, Text, ToolCall
from llama_stack_responses.stream.response import new_response
from tests.support.inference import call, chunk, finish, reasoning, text
from tests.unit.sealing.reasoning_harness import ANNA, NEW, OLD, USER, Json, check, output, private, replayed, sent_back


def test_sealed_reasoning_is_restored_for_model() -> None:
    thought, answer = output(reasoning("Let me "), reasoning("see."), text("Hello"), finish())
    assert thought["content"] == [{"type": "reasoning_text", "text": "Let me see."}]
    assert "see" not in thought["encrypted_content"]
    message = replayed([sent_back(thought), answer], Profile())
    assert message == {"role": "assistant", "content": "Hello", "reasoning_content": "Let me see."}


@pytest.mark.parametrize("kept", ["all", "the seal", "the summary"])
def test_reasoning_shown_as_summary_is_restored_completely(kept: str) -> None:
    thought, answer = output(reasoning("Let me "), reasoning("see."), text("Hello"), finish(), summaries=True)
    assert thought["summary"] == [{"type": "summary_text", "text": "Let me see."}]
    assert "content" not in thought
    back = {
        "all": thought,
        "the seal": sent_back(thought) | {"summary": []},
        "the summary": {key: value for key, value in thought.items() if key != "encrypted_content"},
    }[kept]
    assert replayed([back, answer], Profile())["reasoning_content"] == "Let me see."


def test_signatures_of_reasoning_shown_as_summary_are_kept() -> None:
    blocks = [{"type": "thinking", "thinking": each, "signature": f"s{each}"} for each in "ab"]
    thought, answer = output(chunk({"thinking_blocks": blocks}), text("Hello"), finish(), summaries=True)
    assert thought["summary"] == [{"type": "summary_text", "text": "ab"}]
    message = replayed([sent_back(thought), answer], Profile(reasoning_replay="thinking_blocks"))
    assert message["thinking_blocks"] == blocks


def test_provider_summary_does_not_replace_reasoning() -> None:
    summary = {"type": "reasoning.summary", "summary": "Short."}
    own = chunk({"reasoning_details": [summary]})
    thought, answer = output(own, reasoning("Long."), text("Hello"), finish(), summaries=True)
    assert (thought["summary"][0]["text"], thought["content"][0]["text"]) == ("Short.", "Long.")
    message = replayed([sent_back(thought), answer], Profile())
    assert (message["reasoning_content"], message["reasoning_details"]) == ("Long.", [summary])
    thought, answer = output(own, text("Hello"), finish(), summaries=True)
    message = replayed([sent_back(thought), answer], Profile())
    assert message == {"role": "assistant", "content": "Hello", "reasoning_details": [summary]}
    message = replayed([sent_back(thought), answer], Profile(reasoning_replay="reasoning_content"))
    assert message == {"role": "assistant", "content": "Hello", "reasoning_content": "Short."}


def test_sealed_reasoning_overrides_other_content_of_item() -> None:
    thought, answer = output(reasoning("Secret."), text("Hello"), finish())
    forged = thought | {"content": [{"type": "reasoning_text", "text": "Forged."}]}
    assert replayed([forged, answer], Profile())["reasoning_content"] == "Secret."


SIGNED: Final = [
    chunk({"reasoning_content": "One.", "thinking_blocks": [{"type": "thinking", "thinking": "One."}]}),
    chunk({"thinking_blocks": [{"type": "thinking", "thinking": "", "signature": "s1"}]}),
    chunk({"reasoning_content": "Two."}),
    chunk({"reasoning_content": "", "thinking_blocks": [{"type": "thinking", "signature": "s2"}]}),
]


def test_signed_blocks_keep_their_order() -> None:
    thought, answer = output(*SIGNED, text("Hello"), finish())
    assert [part["text"] for part in thought["content"]] == ["One.Two."]
    message = replayed([sent_back(thought), answer], Profile(reasoning_replay="thinking_blocks"))
    assert message["thinking_blocks"] == [
        {"type": "thinking", "thinking": "One.", "signature": "s1"},
        {"type": "thinking", "thinking": "Two.", "signature": "s2"},
    ]
    assert "reasoning_content" not in message
    assert replayed([thought, answer], Profile())["reasoning_content"] == "One.Two."


def test_blocks_in_one_chunk_keep_their_signatures() -> None:
    blocks = [{"thinking": "One.", "signature": "s1"}, {"thinking": "Two.", "signature": "s2"}]
    thought, answer = output(chunk({"reasoning_content": "One.Two.", "thinking_blocks": blocks}), text("a"), finish())
    message = replayed([thought, answer], Profile(reasoning_replay="thinking_blocks"))
    assert [block["signature"] for block in message["thinking_blocks"]] == ["s1", "s2"]
    assert [block["thinking"] for block in message["thinking_blocks"]] == ["One.", "Two."]


def test_reasoning_without_signature_makes_no_thinking_block() -> None:
    items = output(reasoning("Hm."), text("Hello"), finish())
    message = replayed(items, Profile(reasoning_replay="thinking_blocks"))
    assert message == {"role": "assistant", "content": "Hello"}


@pytest.mark.parametrize(
    "extra",
    [
        {"extra_content": {"google": {"thought_signature": "s1"}}},
        {"provider_specific_fields": {"thought_signature": "s1"}},
    ],
)
def test_signature_of_call_is_kept(extra: Json) -> None:
    function = {"name": "f", "arguments": "{}"}
    signed = chunk({"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": function, **extra}]})
    thought, first, second = output(signed, call("f", "c2", index=1), finish("tool_calls"))
    assert thought.keys() == {"id", "type", "status", "summary", "encrypted_content"}
    outputs = [{"type": "function_call_output", "call_id": each, "output": ""} for each in ("c1", "c2")]
    message = replayed([sent_back(thought), first, second, *outputs], Profile())
    [one, other] = message["tool_calls"]
    assert {name: one[name] for name in extra} == extra
    assert other.keys() == {"id", "type", "function"}
    assert message.keys() == {"role", "content", "tool_calls"}


async def test_foreign_or_damaged_seal_is_refused() -> None:
    [thought, _] = output(reasoning("Hm."), text("Hello"), finish(), seals=private(OLD))
    await check(private(NEW, OLD), [thought])
    wrong = [
        (private(OLD, owner=Owner("ben")), thought, "sealed for another user"),
        (private(OLD), thought | {"encrypted_content": thought["encrypted_content"][:-8] + "AAAAAAA="}, "damaged"),
        (private(OLD), {"type": "reasoning", "encrypted_content": "gAAAAABo"}, "not a sealed value"),
    ]
    for seals, item, reason in wrong:
        with pytest.raises(ApiError, match=reason) as caught:
            await check(seals, [USER, item])
        assert (caught.value.status, caught.value.code) == (400, "invalid_encrypted_content")
    assert "The encrypted content for item gAAA...AABo could not be verified." in str(caught.value)


async def test_items_without_seal_pass_check() -> None:
    await check(private(), [USER, {"type": "reasoning", "summary": []}, {"type": "reasoning", "encrypted_content": ""}])


def test_stored_reasoning_survives_loss_of_secret() -> None:
    thought, answer = output(reasoning("Hm."), text("Hello"), finish(), seals=private(OLD))
    assert replayed([thought, answer], Profile(), private(NEW))["reasoning_content"] == "Hm."


@pytest.mark.parametrize("length", [10, 98_303, 98_304, 98_305, 1_000_000])
async def test_reasoning_of_any_length_is_sealed_and_opened(length: int) -> None:
    texts = [
        ReasoningSegment(Random(length).randbytes(length).hex(), "s1"),
        ReasoningSegment("\U0001f9a6" * 9, None, "c1"),
    ]
    seals, opened = private(), Opened()
    item = {"type": "reasoning", "encrypted_content": seals.seal(texts)}
    await SealedItems(seals.sealer, 2**30).open([item], ANNA, opened, verify=True)
    assert opened.content["reasoning", item["encrypted_content"]] == texts
    assert PrivateReasoning(seals.sealer, ANNA).read(item) == texts


SIGNED_PARTS: Final = [
    *[Reasoning("why " * 1_000) for _ in range(30)],
    Reasoning("", signature="s1"),
    *[Reasoning("so " * 1_000) for _ in range(30)],
    Reasoning("In short.", summary=True),
    Reasoning("", signature="s2", call_id="c1"),
]


@pytest.mark.parametrize("closing", [Text("Hello"), ToolCall(0, "f", "c1", "{}"), Finish("stop"), Refusal("No."), None])
def test_large_reasoning_prepared_in_advance_is_sealed_once_with_the_same_content(closing: Any) -> None:
    def seal(thoughts: Sequence[ReasoningSegment]) -> str:
        sealed.append(list(thoughts))
        return f"seal {len(sealed)}"

    found = []
    for prepares in (False, True):
        sealed: list[list[ReasoningSegment]] = []
        created = new_response(parse_create({"model": "m", "input": "hi"}), id="resp_1", created_at=1)
        assembler = Assembler(created, lambda _: FUNCTION, seal=seal)
        for delta in SIGNED_PARTS:
            assert assembler.preparation(delta) is None
            assembler.feed(delta)
        if prepares:
            work = assembler.preparation(closing)
            assert work
            work()
            assert len(sealed) == 1
            assert assembler.preparation(closing) is None
        if closing:
            assembler.feed(closing)
        assembler.close("completed")
        [thoughts] = sealed
        item = {name: value for name, value in assembler.response["output"][0].items() if name != "id"}
        assert item["encrypted_content"] == "seal 1"
        found.append((thoughts, item))
    assert found[0] == found[1]


def test_reasoning_that_continues_after_its_preparation_is_sealed_again() -> None:
    seals = private()
    created = new_response(parse_create({"model": "m", "input": "hi"}), id="resp_1", created_at=1)
    assembler = Assembler(created, lambda _: FUNCTION, seal=seals.seal)
    assembler.feed(Reasoning("why " * 30_000))
    work = assembler.preparation()
    assert work
    work()
    assembler.feed(Reasoning("The end."))
    assembler.feed(Finish("stop"))
    [item] = assembler.response["output"]
    assert seals.read(item) == [ReasoningSegment("why " * 30_000 + "The end.")]


def test_whitespace_before_json_does_not_let_large_reasoning_be_sealed() -> None:
    """The reasoning may continue: sealing it after each piece of whitespace would take quadratic time."""
    created = new_response(parse_create({"model": "m", "input": "hi"}), id="resp_1", created_at=1)
    assembler = Assembler(created, lambda _: FUNCTION, seal=private().seal)
    assembler.structured = True
    assembler.feed(Reasoning("why " * 30_000))
    assert assembler.preparation(Text("\n")) is None
    assert len(assembler.feed(Text("\n"))) == 0
    assert assembler.preparation(Text("{}"))
