"""Compaction of a conversation during a response: when it happens, what the model receives, what the client gets."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from llama_stack_responses.chat.context_errors import too_long
from llama_stack_responses.chat.estimate import estimated_tokens
from llama_stack_responses.chat.inference import Extender, Receive
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.generation.loop import Ending, GenerationProgress
from llama_stack_responses.stream.replay import replay
from llama_stack_responses.stream.transcript import Transcript
from tests.support.generation_harness import GenerationHarness
from tests.support.generations import model_servers
from tests.support.inference import FakeInference, Round, Step, call, chunk, finish, reasoning, text
from tests.support.strict import check_stream

Json = dict[str, Any]

LONG = "word " * 80
TURNS = [{"role": "user", "content": f"First {LONG}"}, {"role": "assistant", "content": f"Second {LONG}"}]
QUESTION = {"role": "user", "content": "And now?"}
SUMMARY: list[Step] = [reasoning("Hm."), text("They "), text("spoke."), finish(tokens=7)]
ANSWER: list[Step] = [text("Hello"), finish(tokens=5)]
FUNCTION = {"type": "function", "name": "f"}
DEAR = "This model's maximum context length is 1500 tokens. However, your request has {} input tokens."


def at(threshold: int | None) -> list[Json]:
    return [{"type": "compaction"} | ({"compact_threshold": threshold} if threshold else {})]


class Conversation(GenerationHarness):
    """A question at the end of a conversation that may be compacted."""

    def __init__(self, *rounds: Round, threshold: int | None = 100, length: int | None = None, **fields: Any) -> None:
        request = {
            "input": [*TURNS, QUESTION],
            "instructions": "Be kind.",
            "context_management": at(threshold),
        } | fields
        super().__init__(*rounds, makers={}, **request)
        self.inference.length = length

    async def checked(self) -> Json:
        """Return the final response, after checking that its stream is valid and is replayed exactly."""
        events = await self.end()
        final = check_stream(events)
        transcript = Transcript()
        transcript.note(events)
        assert list(replay(final, transcript.marks())) == events
        return final

    def seen(self, request: int) -> list[str]:
        """Return the contents of the messages of one request to the model."""
        return [message["content"] or "" for message in self.inference.requests[request]["messages"]]


def kinds(response: Json) -> list[str]:
    return [item["type"] for item in response["output"]]


async def test_history_over_threshold_is_replaced_by_summary() -> None:
    harness = Conversation(SUMMARY, ANSWER, tools=[FUNCTION], text={"format": {"type": "json_object"}})
    final = await harness.checked()
    assert kinds(final) == ["compaction", "message"]
    compaction = final["output"][0]
    assert compaction.keys() == {"id", "type", "encrypted_content"}
    assert "spoke" not in str(final)
    request, answered = harness.inference.requests
    assert request.keys() & {"tools", "tool_choice", "response_format"} == set()
    first = harness.seen(0)
    assert first[0] == "Be kind."
    assert [each.split()[0] for each in first[1:3]] == ["First", "Second"]
    assert "summary of this conversation" in first[-1]
    assert "And now?" not in str(first)
    _, summary, question = harness.seen(1)
    assert "They spoke." in summary
    assert question == "And now?"
    assert "First" not in str(answered)
    assert final["usage"]["output_tokens"] == 12


async def test_compaction_emits_its_events_first() -> None:
    harness = Conversation(SUMMARY, ANSWER)
    types = [event["type"].removeprefix("response.") for event in await harness.end()]
    assert types[:6] == [
        "created",
        "in_progress",
        "output_item.added",
        "compaction.compacting",
        "output_item.done",
        "output_item.added",
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"threshold": 1_000},
        {"context_management": []},
        {"input": [QUESTION]},
        {"input": [{"role": "user", "content": LONG}, {"role": "user", "content": LONG}]},
        {"threshold": None},
    ],
)
async def test_compaction_is_skipped_if_not_needed(fields: Json) -> None:
    harness = Conversation(ANSWER, **fields)
    assert kinds(await harness.checked()) == ["message"]


async def test_compaction_starts_at_context_length_of_model() -> None:
    harness = Conversation(SUMMARY, ANSWER, threshold=100_000, length=200)
    assert kinds(await harness.checked()) == ["compaction", "message"]
    harness = Conversation(SUMMARY, ANSWER, threshold=None, length=200)
    assert kinds(await harness.checked()) == ["compaction", "message"]


async def test_request_refused_as_too_long_is_compacted() -> None:
    refusal = too_long("This model's maximum context length is 400 tokens. However, your request has 450 input tokens.")
    harness = Conversation(refusal, SUMMARY, ANSWER, threshold=100_000, input=[*TURNS, *TURNS, QUESTION])
    assert kinds(await harness.checked()) == ["compaction", "message"]
    # The summary leaves out what does not fit; the question is kept.
    assert [str(harness.seen(number)).count("First") for number in range(3)] == [2, 1, 0]
    assert harness.seen(2)[-1] == "And now?"


async def test_compaction_between_rounds_keeps_user_message() -> None:
    """The rounds so far become part of the summary, and the user's own message stays."""
    wordy = [chunk({"content": LONG}), call("h", "1"), finish("tool_calls")]
    harness = Conversation(wordy, SUMMARY, ANSWER, input=[QUESTION])
    final = await harness.checked()
    assert kinds(final) == ["message", "compaction", "message"]
    assert "There is no tool named 'h'" in str(harness.seen(1))
    [_, summary] = harness.seen(2)
    assert "They spoke." in summary
    assert "And now?" in summary
    assert "There is no tool" not in summary


async def test_compaction_between_rounds_keeps_image() -> None:
    """The image is kept in this turn, and in later turns that continue from the compaction alone."""
    image = {"type": "input_image", "image_url": "https://a.b/c.png"}
    question = {"role": "user", "content": [{"type": "input_text", "text": "What is it?"}, image]}
    wordy = [chunk({"content": LONG}), call("h", "1"), finish("tool_calls")]
    harness = Conversation(wordy, SUMMARY, [call("f", "2"), finish("tool_calls")], input=[question], tools=[FUNCTION])
    final = await harness.checked()
    assert kinds(final) == ["message", "compaction", "function_call"]
    shown = {"type": "image_url", "image_url": {"url": image["image_url"]}}
    [_, message] = harness.inference.requests[2]["messages"]
    assert message["content"][1:] == [{"type": "text", "text": "What is it?"}, shown]
    result = {"type": "function_call_output", "call_id": "2", "output": "x"}
    again = Conversation(ANSWER, input=[*final["output"][1:], result], threshold=2_000)
    await again.checked()
    assert again.inference.requests[0]["messages"][1] == message


async def test_summary_alone_is_not_compacted_again() -> None:
    """A threshold below the size of a summary does not cause repeated compactions."""
    harness = Conversation(SUMMARY, ANSWER, threshold=1)
    assert kinds(await harness.checked()) == ["compaction", "message"]


async def test_resumed_generation_keeps_earlier_compaction() -> None:
    harness = Conversation(SUMMARY, ANSWER)
    await harness.end()
    [step] = harness.steps
    assert [item["type"] for item in step.new_items] == ["compaction", "message"]
    again = GenerationHarness(
        ANSWER,
        makers={},
        progress=GenerationProgress(0, step.new_items),
        input=[*TURNS, QUESTION],
        context_management=at(100),
    )
    await again.end()
    messages = again.inference.requests[0]["messages"]
    assert "They spoke." in messages[0]["content"]
    assert messages[1]["content"] == "And now?"


async def test_compaction_trigger_only_compacts() -> None:
    harness = Conversation(SUMMARY, input=[*TURNS, {"type": "compaction_trigger"}], context_management=[])
    harness.items.pop()
    final = await harness.checked()
    assert kinds(final) == ["compaction"]
    assert [each.split()[0] for each in harness.seen(0)] == ["Be", "First", "Second", "Stop"]


@pytest.mark.parametrize(
    "round_", [[finish()], [reasoning("Hm."), finish("length")], [text("a"), finish("content_filter")]]
)
async def test_missing_summary_fails_response(round_: list[Step]) -> None:
    harness = Conversation(round_)
    with pytest.raises(ApiError, match="wrote no summary") as raised:
        await harness.generation.run()
    assert raised.value.status == 502
    harness.event_buffer.put(harness.assembler.close("incomplete"))
    harness.assembler.set_outcome("failed", error=raised.value)
    harness.event_buffer.put(harness.assembler.end())
    check_stream(harness.event_buffer.ready())


async def test_token_limit_includes_summary() -> None:
    harness = Conversation([*SUMMARY[:-1], finish(tokens=16)], max_output_tokens=16)
    assert await harness.generation.run() == Ending("incomplete", "max_output_tokens")
    assert harness.inference.requests[0]["max_completion_tokens"] == 16


async def test_context_length_is_not_requested_without_compaction() -> None:
    class NoContextLength(FakeInference):
        async def context_length(self, model: str) -> int | None:
            raise AssertionError("must not be called")

    await GenerationHarness(makers={}, inference=NoContextLength(ANSWER), input=[*TURNS, QUESTION]).end()


class SmallContextInference(FakeInference):
    """A model with a context of 1,500 tokens, counted a quarter above the estimate, that makes one call per turn."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    async def open_stream(
        self, request: Json, receive: Receive | None = None, extender: Extender | None = None
    ) -> AsyncGenerator[Any]:
        """Refuse a request that is too long; otherwise call, answer or summarise depending on the last message."""
        tokens = estimated_tokens(request) * 5 // 4
        if tokens > 1_500:
            raise too_long(DEAR.format(tokens))
        self.largest = max(self.largest, tokens)
        last = request["messages"][-1]["content"]
        calls = request.get("tools") and last.startswith("Question")
        self._rounds.append([call("f", "1"), finish("tool_calls")] if calls else [text(f"So {last[:12]}"), finish()])
        return await super().open_stream(request, receive, extender)


@pytest.mark.parametrize("threshold", [800, 100_000])
async def test_long_conversation_with_small_context_never_exceeds_it(threshold: int) -> None:
    """Run fifty turns, each with a call that the client answers with a long text."""
    model, history, compactions = SmallContextInference(), list[Json](), 0
    for number in range(50):
        result = {"type": "function_call_output", "call_id": "1", "output": f"{number} {LONG}"}
        for asked in ({"role": "user", "content": f"Question {number}"}, result):
            harness = Conversation(
                history=history, input=[asked], tools=[FUNCTION], threshold=threshold, inference=model
            )
            final = await harness.checked()
            history = [*harness.items, *final["output"]]
            compactions += kinds(final).count("compaction")
    assert model.largest <= 1_500
    assert compactions >= 4
    answers = [item for item in history if item.get("role") == "assistant"]
    assert len(answers) == 50


WORDY = [{"role": role, "content": "word " * 400} for role in ("user", "assistant")]
"""About 1,000 estimated tokens."""


async def test_reported_usage_corrects_the_estimate_of_the_next_response() -> None:
    """A model server whose tokenizer makes three times as many tokens as estimated."""
    inference = FakeInference([text("Hello"), finish(read=3_000)], SUMMARY, ANSWER)
    servers = model_servers(inference)
    for expected in (["message"], ["compaction", "message"]):
        harness = Conversation(input=[*WORDY, QUESTION], threshold=2_000, inference=inference, servers=servers)
        assert kinds(await harness.checked()) == expected


@pytest.mark.parametrize("read", [0, 10, 499])
async def test_small_reported_usage_corrects_nothing(read: int) -> None:
    inference = FakeInference([text("Hello"), finish(read=read)], ANSWER)
    servers = model_servers(inference)
    for _ in range(2):
        harness = Conversation(input=[*WORDY, QUESTION], threshold=2_000, inference=inference, servers=servers)
        assert kinds(await harness.checked()) == ["message"]
    assert await servers.correction("m") == 1


async def test_reported_usage_is_bounded() -> None:
    inference = FakeInference([text("Hello"), finish(read=10**9)])
    servers = model_servers(inference)
    await Conversation(input=[*WORDY, QUESTION], threshold=2_000, inference=inference, servers=servers).checked()
    assert await servers.correction("m") == 4
