"""Summaries that another model writes at the end of the reasoning."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from llama_stack_responses.chat.adaptation.refusal import Refusal, RefusedError
from llama_stack_responses.chat.profile import Profile
from llama_stack_responses.chat.summary import summary_request
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.generation.model_server_queues import ModelServerQueues
from llama_stack_responses.generation.reasoning_summary import ReasoningSummarizer
from llama_stack_responses.generation.shared_timer import SharedTimer
from llama_stack_responses.stream.deltas import Delta, Finish, Reasoning, Text, ToolCall
from llama_stack_responses.stream.usage import Usage
from tests.support.clock import LoopClock
from tests.support.generations import model_servers
from tests.support.inference import FakeInference, Round, finish, reasoning, text
from tests.support.waiting import until

STOP = Finish("stop", Usage(10, 5))
SHORT: Round = [reasoning("Well."), text("In "), text("short."), finish(tokens=7)]
SUMMARY = [Reasoning("In ", summary=True), Reasoning("short.", summary=True)]


class Harness:
    """A summarizer and its model."""

    def __init__(self, *rounds: Round, idle_seconds: float = 30.0) -> None:
        self.inference = FakeInference(*rounds)
        request = partial(summary_request, "small", Profile(), detail="concise")
        self.timer = SharedTimer()
        servers = model_servers(self.inference)
        self.gate = ReasoningSummarizer(
            self.inference, servers, ModelServerQueues(), request, Profile(), idle_seconds, self.timer
        )

    async def shown(self, *deltas: Delta) -> list[Delta]:
        """Return the deltas that come out for `deltas`."""
        return [shown for delta in deltas for shown in [each async for each in self.gate.feed(delta)]]


@pytest.mark.parametrize("behind", [Text("Hello"), ToolCall(0, "f", "c", "{}")])
async def test_summary_follows_reasoning(behind: Delta) -> None:
    harness = Harness(SHORT)
    thoughts: list[Delta] = [Reasoning("Let me "), Reasoning("see."), Reasoning("", signature="s", call_id="c")]
    assert await harness.shown(*thoughts, behind, behind, STOP) == [
        *thoughts,
        *SUMMARY,
        behind,
        behind,
        Finish("stop", Usage(11, 12)),
    ]
    [request] = harness.inference.requests
    assert request["model"] == "small"
    assert request["messages"][1] == {"role": "user", "content": "Let me see."}
    assert request["max_completion_tokens"] == 1024
    assert len(harness.timer._timeouts) == 1, "the timeout is one of the shared timer"
    assert harness.inference.closed == 1


async def test_request_for_a_summary_is_changed_if_it_is_refused() -> None:
    refused = "Unsupported parameter: 'max_completion_tokens'. Use 'max_tokens' instead."
    harness = Harness(RefusedError(ApiError(400, refused), Refusal(400, refused)), SHORT)
    assert SUMMARY[0] in await harness.shown(Reasoning("Hm."), Text("Hello"), STOP)
    assert harness.inference.requests[1]["max_tokens"] == 1024


async def test_each_block_of_reasoning_gets_summary() -> None:
    harness = Harness(SHORT, SHORT, SHORT)
    thought = Reasoning("hm")
    first = await harness.shown(thought, Text("a"), thought, STOP)
    assert first == [thought, *SUMMARY, Text("a"), thought, *SUMMARY, Finish("stop", Usage(12, 19))]
    assert await harness.shown(thought, STOP) == [thought, *SUMMARY, Finish("stop", Usage(11, 12))]


@pytest.mark.parametrize(
    "deltas",
    [
        [Text("a"), STOP],
        [Reasoning(" \n"), Text("a"), STOP],
        [Reasoning("hm"), Reasoning("In short.", summary=True), Text("a"), STOP],
        [Reasoning("hm"), Finish("length")],
        [Reasoning("hm"), Finish("content_filter")],
    ],
)
async def test_summary_is_not_requested_without_need(deltas: list[Delta]) -> None:
    harness = Harness()
    assert await harness.shown(*deltas) == deltas
    assert harness.inference.requests == []


async def test_summary_is_requested_in_round_after_provider_summary() -> None:
    harness = Harness(SHORT)
    await harness.shown(Reasoning("short", summary=True), STOP)
    assert len(await harness.shown(Reasoning("hm"), STOP)) == 4


FAILURES: list[Round] = [
    ApiError(502, "It is gone."),
    [text("In "), RuntimeError("broken")],
    [text("In "), finish("error")],
]


@pytest.mark.parametrize("failure", FAILURES, ids=["refused", "broken", "ended"])
async def test_failed_summary_does_not_fail_answer(failure: Round, caplog: pytest.LogCaptureFixture) -> None:
    harness = Harness(failure)
    shown: list[Any] = await harness.shown(Reasoning("hm"), Text("a"), STOP)
    assert shown[-2:] == [Text("a"), STOP]
    assert "reasoning summary failed" in caplog.text


async def test_silent_summary_model_does_not_fail_answer(
    caplog: pytest.LogCaptureFixture, loop_clock: LoopClock
) -> None:
    harness = Harness([text("In "), asyncio.Event()], idle_seconds=100.0)
    work = asyncio.create_task(harness.shown(Reasoning("hm"), Text("a"), STOP))
    await until(lambda: harness.inference.sent == 1)
    await loop_clock.passes_until(work.done)
    assert await work == [Reasoning("hm"), SUMMARY[0], Text("a"), STOP]
    assert "sent nothing" in caplog.text
