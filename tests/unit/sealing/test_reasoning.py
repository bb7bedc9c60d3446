"""Reasoning that travels with the client, sealed: from the provider's chunks, through an item, and back to the model."""

from __future__ import annotations

from typing import Any, Final

import pytest
from openai.types.chat import ChatCompletionChunk

from llama_stack_responses.chat.chunks import ChunkReader
from llama_stack_responses.chat.messages import chat_messages
from llama_stack_responses.chat.profile import Profile
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.core.schema.request import parse_create
from llama_stack_responses.core.stream.assembler import Assembler
from llama_stack_responses.core.stream.calls import FUNCTION
from llama_stack_responses.core.stream.replay import replay
from llama_stack_responses.core.stream.response import new_response
from llama_stack_responses.core.stream.transcript import Transcript
from llama_stack_responses.sealing.reasoning import PrivateReasoning, reasoning_sealer
from llama_stack_responses.sealing.sealer import Sealer
from tests.support.inference import call, chunk, finish, reasoning, text
from tests.support.strict import check_stream

Json = dict[str, Any]

OLD: Final = bytes(32)
NEW: Final = bytes(range(32))
ANNA: Final = Owner("anna")
USER: Final[Json] = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}


def private(*secrets: bytes, owner: Owner = ANNA) -> PrivateReasoning:
    """The reasoning of a user."""
    return PrivateReasoning(Sealer(secrets or [NEW]), owner)


def output(*chunks: ChatCompletionChunk, seals: PrivateReasoning | None = None, summaries: bool = False) -> list[Json]:
    """The items that a model's chunks make, which their events make again."""
    reader = ChunkReader(Profile(), 100_000, summaries=summaries)
    request = parse_create({"model": "m", "input": "hi"})
    assembler = Assembler(
        new_response(request, id="resp_1", created_at=1), lambda _: FUNCTION, seal=(seals or private()).seal
    )
    events = assembler.start()
    for delta in [*(delta for each in chunks for delta in reader.read(each)), *reader.end()]:
        events += assembler.feed(delta)
    assembler.settle("completed", completed_at=2)
    events += assembler.end()
    transcript = Transcript()
    transcript.note(events)
    assert list(replay(assembler.response, transcript.marks())) == events
    items: list[Json] = check_stream(events)["output"]
    return items


def sent_back(item: Json) -> Json:
    """The item as a client sends it back that keeps only what is sealed."""
    return {key: item[key] for key in ("type", "summary", "encrypted_content")}


def replayed(items: list[Json], profile: Profile, seals: PrivateReasoning | None = None) -> Json:
    """The assistant's message that the model sees."""
    read = (seals or private()).read
    message: Json = chat_messages([USER, *items], profile, all_reasoning=True, read_reasoning=read)[1]
    return message


def test_reasoning_comes_back_to_the_model() -> None:
    thought, said = output(reasoning("Let me "), reasoning("see."), text("Hello"), finish())
    assert thought["content"] == [{"type": "reasoning_text", "text": "Let me see."}]
    assert "see" not in thought["encrypted_content"]
    message = replayed([sent_back(thought), said], Profile())
    assert message == {"role": "assistant", "content": "Hello", "reasoning_content": "Let me see."}


@pytest.mark.parametrize("kept", ["all", "the seal", "the summary"])
def test_reasoning_that_is_its_own_summary_comes_back_whole(kept: str) -> None:
    thought, said = output(reasoning("Let me "), reasoning("see."), text("Hello"), finish(), summaries=True)
    assert thought["summary"] == [{"type": "summary_text", "text": "Let me see."}]
    assert "content" not in thought
    back = {
        "all": thought,
        "the seal": sent_back(thought) | {"summary": []},
        "the summary": {key: value for key, value in thought.items() if key != "encrypted_content"},
    }[kept]
    assert replayed([back, said], Profile())["reasoning_content"] == "Let me see."


def test_signatures_on_reasoning_that_is_its_own_summary() -> None:
    blocks = [{"type": "thinking", "thinking": each, "signature": f"s{each}"} for each in "ab"]
    thought, said = output(chunk({"thinking_blocks": blocks}), text("Hello"), finish(), summaries=True)
    assert thought["summary"] == [{"type": "summary_text", "text": "ab"}]
    message = replayed([sent_back(thought), said], Profile(reasoning_replay="thinking_blocks"))
    assert message["thinking_blocks"] == blocks


def test_a_summary_of_the_providers_own_does_not_replace_the_reasoning() -> None:
    own = chunk({"reasoning_details": [{"type": "reasoning.summary", "summary": "Short."}]})
    thought, said = output(own, reasoning("Long."), text("Hello"), finish(), summaries=True)
    assert (thought["summary"][0]["text"], thought["content"][0]["text"]) == ("Short.", "Long.")
    assert replayed([sent_back(thought), said], Profile())["reasoning_content"] == "Long."
    thought, said = output(own, text("Hello"), finish(), summaries=True)
    assert replayed([sent_back(thought), said], Profile())["reasoning_content"] == "Short."


def test_what_was_sealed_counts_whatever_else_the_item_says() -> None:
    thought, said = output(reasoning("Secret."), text("Hello"), finish())
    forged = thought | {"content": [{"type": "reasoning_text", "text": "Forged."}]}
    assert replayed([forged, said], Profile())["reasoning_content"] == "Secret."


SIGNED: Final = [
    chunk({"reasoning_content": "One.", "thinking_blocks": [{"type": "thinking", "thinking": "One."}]}),
    chunk({"thinking_blocks": [{"type": "thinking", "thinking": "", "signature": "s1"}]}),
    chunk({"reasoning_content": "Two."}),
    chunk({"reasoning_content": "", "thinking_blocks": [{"type": "thinking", "signature": "s2"}]}),
]


def test_signed_blocks_keep_their_order() -> None:
    thought, said = output(*SIGNED, text("Hello"), finish())
    assert [part["text"] for part in thought["content"]] == ["One.Two."]
    message = replayed([sent_back(thought), said], Profile(reasoning_replay="thinking_blocks"))
    assert message["thinking_blocks"] == [
        {"type": "thinking", "thinking": "One.", "signature": "s1"},
        {"type": "thinking", "thinking": "Two.", "signature": "s2"},
    ]
    assert "reasoning_content" not in message
    assert replayed([thought, said], Profile())["reasoning_content"] == "One.Two."


def test_blocks_that_come_whole() -> None:
    blocks = [{"thinking": "One.", "signature": "s1"}, {"thinking": "Two.", "signature": "s2"}]
    thought, said = output(chunk({"reasoning_content": "One.Two.", "thinking_blocks": blocks}), text("a"), finish())
    message = replayed([thought, said], Profile(reasoning_replay="thinking_blocks"))
    assert [block["signature"] for block in message["thinking_blocks"]] == ["s1", "s2"]
    assert [block["thinking"] for block in message["thinking_blocks"]] == ["One.", "Two."]


def test_reasoning_without_a_signature_is_no_thinking_block() -> None:
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
def test_a_signature_on_a_call(extra: Json) -> None:
    function = {"name": "f", "arguments": "{}"}
    signed = chunk({"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": function, **extra}]})
    thought, first, second = output(signed, call("f", "c2", index=1), finish("tool_calls"))
    assert thought.keys() == {"id", "type", "status", "summary", "encrypted_content"}
    outputs = [{"type": "function_call_output", "call_id": each, "output": ""} for each in ("c1", "c2")]
    message = replayed([sent_back(thought), first, second, *outputs], Profile())
    assert [each.get("extra_content") for each in message["tool_calls"]] == [
        {"google": {"thought_signature": "s1"}},
        None,
    ]
    assert "reasoning_content" not in message


def test_what_others_sealed_is_refused() -> None:
    [thought, _] = output(reasoning("Hm."), text("Hello"), finish(), seals=private(OLD))
    private(NEW, OLD).check([thought])
    wrong = [
        (private(NEW), thought, "a secret that this server does not have"),
        (private(OLD, owner=Owner("ben")), thought, "sealed for somebody"),
        (private(OLD), thought | {"encrypted_content": thought["encrypted_content"][:-8] + "AAAAAAA="}, "damaged"),
        (private(OLD), {"type": "reasoning", "encrypted_content": "gAAAAABo"}, "no sealed value"),
    ]
    for seals, item, reason in wrong:
        with pytest.raises(ApiError, match=reason) as caught:
            seals.check([USER, item])
        assert (caught.value.status, caught.value.code) == (400, "invalid_encrypted_content")
    assert "The encrypted content for item gAAA...AABo could not be verified." in str(caught.value)


def test_nothing_sealed_is_nothing_to_check() -> None:
    private().check([USER, {"type": "reasoning", "summary": []}, {"type": "reasoning", "encrypted_content": ""}])


def test_stored_reasoning_outlives_its_secret() -> None:
    thought, said = output(reasoning("Hm."), text("Hello"), finish(), seals=private(OLD))
    assert replayed([thought, said], Profile(), private(NEW))["reasoning_content"] == "Hm."


def test_a_process_without_a_secret_makes_one_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    sealer = reasoning_sealer(Sealer([]))
    assert sealer.ready
    assert "No 'secrets' are configured" in caplog.text
    configured = Sealer([NEW])
    assert reasoning_sealer(configured) is configured
