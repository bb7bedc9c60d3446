"""However a response ends, it is stored once, its reader gets the terminal event, and the provider stream closes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from copy import deepcopy
from typing import Any, Final

import pytest

from llama_stack_responses.concurrency.waiting_work import Precedence
from llama_stack_responses.config.limits import ModelServerLimits
from llama_stack_responses.core.errors import ApiError, NotBegunError, OutcomeUnknown
from llama_stack_responses.generation.event_buffer import EventBuffer
from llama_stack_responses.generation.loop import Generation, GenerationLimits
from llama_stack_responses.generation.model_server_queues import ModelServerQueues
from llama_stack_responses.generation.run import ForegroundRun
from llama_stack_responses.items.reasoning_segments import ReasoningSegment
from llama_stack_responses.requests.request import parse_create
from llama_stack_responses.stream.assembler import Assembler
from llama_stack_responses.stream.fragments import Fragments
from llama_stack_responses.stream.response import new_response
from llama_stack_responses.telemetry.instrumentation import Telemetry
from llama_stack_responses.tools.registry import client_tools
from llama_stack_responses.tools.toolset import Toolset
from tests.support.generations import make_generation
from tests.support.inference import FakeInference, Round, call, finish, reasoning, text
from tests.support.strict import check_finished, check_stream, validate_response
from tests.support.waiting import turns

Json = dict[str, Any]

PATIENCE = 60.0
"""Longer than any test here waits for a provider that answers."""

HELLO = [text("Hel"), text("lo"), finish(tokens=2)]


class Harness:
    """A run with its collaborators, and the responses that it stores.

    Args:
        rounds: the provider's answers.
        keep: called after the response was recorded in `kept`.
        drop: called after a refusal was counted in `dropped`.
        refusal_seconds: how long `begin` waits for a refusal.
        seal: seals reasoning.
        queues: the queues of the model servers.
        refuses: whether the server shuts down and accepts no more requests.
    """

    def __init__(
        self,
        *rounds: Round,
        keep: Callable[[], Awaitable[None]] | None = None,
        drop: Callable[[], Awaitable[None]] | None = None,
        accept: asyncio.Event | None = None,
        limit: int = 1024,
        stream: bool = True,
        refusal_seconds: float = PATIENCE,
        seal: Callable[[Sequence[ReasoningSegment]], str] | None = None,
        queues: ModelServerQueues | None = None,
        refuses: bool = False,
        **fields: Any,
    ) -> None:
        request = parse_create({"model": "m", "input": "hi", "stream": stream, **fields})
        self.inference = FakeInference(*rounds, accept=accept)
        self.kept: list[Json] = []
        self.dropped = 0
        self.events: list[Json] = []
        self._keep, self._dropping = keep, drop
        toolset = Toolset(request, client_tools())
        self.assembler = Assembler(new_response(request, id="resp_1", created_at=1), toolset.kind_of, seal=seal)
        self.event_buffer = EventBuffer(wanted=stream, limit=limit)
        turn = make_generation(
            request,
            request.input_items,
            toolset=toolset,
            assembler=self.assembler,
            inference=self.inference,
            event_buffer=self.event_buffer,
            limits=GenerationLimits(rounds=8, idle_seconds=30.0, tool_seconds=30.0),
            queues=queues,
        )
        self.run = ForegroundRun(
            turn, self.assembler, self.event_buffer, self._note, self._drop, refusal_seconds, lambda: refuses
        )

    async def read(self) -> Json:
        """Read all events. Return the final response, after checking the invariants of every finished response."""
        while (batch := await self.event_buffer.get(PATIENCE)) is not None:
            assert batch, "silence"
            self.events += batch
        await self.run.wait_ended()
        final = check_stream(self.events)
        assert self.inference.streaming == 0
        return final

    async def _drop(self) -> None:
        self.dropped += 1
        if self._dropping:
            await self._dropping()

    async def _note(self, response: Json) -> None:
        self.kept.append(deepcopy(response))
        if self._keep:
            await self._keep()


# Large items

THINKS: Final = [reasoning("why " * 500) for _ in range(100)]


@pytest.mark.parametrize(
    ("rest", "status"),
    [
        ([text("So."), finish()], "completed"),
        ([finish()], "completed"),
        ([call("f", "c1"), finish("tool_calls")], "completed"),
        ([ApiError(502, "The provider broke.")], "failed"),
    ],
    ids=["text", "end", "call", "error"],
)
async def test_large_reasoning_is_sealed_once_in_a_thread(rest: list[Any], status: str) -> None:
    threads: list[int] = []

    def seal(segments: Sequence[ReasoningSegment]) -> str:
        threads.append(threading.get_ident())
        return "".join(segment.text for segment in segments)

    tools = [{"type": "function", "name": "f", "parameters": {}}]
    harness = Harness([*THINKS, *rest], seal=seal, tools=tools)
    final = await harness.read()
    assert final["status"] == status
    assert final["output"][0]["encrypted_content"] == "why " * 50_000
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


async def test_small_reasoning_is_sealed_at_once() -> None:
    threads: list[int] = []

    def seal(_: Sequence[ReasoningSegment]) -> str:
        threads.append(threading.get_ident())
        return "sealed"

    harness = Harness([*THINKS[:10], text("So."), finish()], seal=seal)
    assert (await harness.read())["output"][0]["encrypted_content"] == "sealed"
    assert threads == [threading.get_ident()]


async def test_abandoned_response_seals_large_reasoning_in_a_thread() -> None:
    threads: list[int] = []

    def seal(_: Sequence[ReasoningSegment]) -> str:
        threads.append(threading.get_ident())
        return "sealed"

    harness = Harness([*THINKS, asyncio.Event()], seal=seal)
    await turns(500)
    assert harness.assembler.preparation()
    for _ in range(3):
        harness.run.abandon()
        await turns(2)
    final = await harness.read()
    assert (final["status"], final["output"][0]["encrypted_content"]) == ("cancelled", "sealed")
    assert threading.get_ident() not in threads


async def test_text_of_many_deltas_is_joined_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    join = Fragments.join

    def noted(fragments: Fragments) -> None:
        threads.append(threading.get_ident())
        join(fragments)

    monkeypatch.setattr(Fragments, "join", noted)
    final = await Harness([*[text("word " * 800) for _ in range(50)], finish()]).read()
    assert final["output"][0]["content"][0]["text"] == "word " * 40_000
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


async def test_response_whose_work_is_cancelled_by_itself_has_failed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is no response that was cancelled, which would end like one whose client has disconnected."""

    async def run(_: object) -> None:
        cancelled = asyncio.get_running_loop().create_future()
        cancelled.cancel()
        await cancelled

    monkeypatch.setattr(Generation, "run", run)
    harness = Harness(HELLO, stream=False)
    with pytest.raises(ApiError, match="CancelledError") as raised:
        await harness.run.finish()
    assert (raised.value.status, harness.kept) == (500, [])
    assert "could not generate a response: resp_1" in caplog.text


async def test_response_that_a_defect_breaks_off_is_not_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ValueError("defect")

    monkeypatch.setattr(Assembler, "set_outcome", broken)
    harness = Harness(HELLO, stream=False)
    with pytest.raises(ValueError, match="defect"):
        await harness.run.finish()
    assert harness.kept == []


# Completed


async def test_streamed_response_completes() -> None:
    harness = Harness(HELLO)
    await harness.run.begin()
    final = await harness.read()
    assert final["status"] == "completed"
    assert final["completed_at"] >= 1
    assert final["output"][0]["content"][0]["text"] == "Hello"
    assert harness.kept == [final]


async def test_unstreamed_response_completes() -> None:
    harness = Harness(HELLO, stream=False)
    final = await harness.run.finish()
    validate_response(final)
    check_finished(final)
    assert harness.kept == [final]
    assert final["output"][0]["content"][0]["text"] == "Hello"
    assert final["usage"]["output_tokens"] == 2


async def test_response_is_stored_before_terminal_event() -> None:
    kept = asyncio.Event()
    harness = Harness(HELLO, keep=lambda: wait(kept))
    await harness.run.begin()
    await turns(30)
    assert len(harness.kept) == 1
    events = await harness.event_buffer.get(PATIENCE) or []
    assert events[-1]["type"] == "response.output_item.done"
    kept.set()
    [terminal] = await harness.event_buffer.get(PATIENCE) or []
    assert terminal["type"] == "response.completed"


async def wait(event: asyncio.Event) -> None:
    await event.wait()


async def test_response_cut_by_length_ends_incomplete() -> None:
    harness = Harness([text("a"), finish("length")])
    await harness.run.begin()
    final = await harness.read()
    assert (final["status"], final["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert (await harness.run.finish())["status"] == "incomplete"
    assert harness.kept == [final]


async def test_abort_of_provider_fails_the_response_with_its_words() -> None:
    harness = Harness([text("a"), finish("abort")])
    await harness.run.begin()
    final = await harness.read()
    assert (final["status"], harness.events[-1]["type"]) == ("failed", "response.failed")
    assert "aborted the answer: abort" in final["error"]["message"]
    assert harness.kept == [final]


# Errors


async def test_refusal_is_raised_and_nothing_is_stored() -> None:
    harness = Harness(ApiError(429, "Slow down.", retry_after=3))
    with pytest.raises(ApiError, match="Slow down") as caught:
        await harness.run.begin()
    assert caught.value.retry_after == 3
    with pytest.raises(ApiError, match="Slow down"):
        await harness.run.finish()
    assert (harness.kept, harness.dropped) == ([], 1)
    await harness.run.wait_ended()


async def test_client_that_leaves_during_refusal_leaves_nothing_stored() -> None:
    dropped = asyncio.Event()
    harness = Harness(ApiError(429, "Slow down."), drop=lambda: wait(dropped))
    while not harness.dropped:
        await turns(1)
    harness.run.abandon()
    await turns(5)
    dropped.set()
    with pytest.raises(ApiError, match="Slow down"):
        await harness.run.finish()
    assert (harness.kept, harness.run.refused) == ([], True)


async def test_late_refusal_fails_stream() -> None:
    accept = asyncio.Event()
    harness = Harness(ApiError(429, "Slow down."), accept=accept, refusal_seconds=0.01)
    await harness.run.begin()
    accept.set()
    final = await harness.read()
    assert final["error"] == {"code": "rate_limit_exceeded", "message": "Slow down."}
    assert harness.events[-2]["message"] == "Slow down."
    assert harness.kept == [final]


async def test_refusal_in_later_round_fails_response() -> None:
    harness = Harness([text("a"), call("h", "1"), finish("tool_calls")], ApiError(502, "Gone."))
    await harness.run.begin()
    final = await harness.read()
    assert (final["status"], len(final["output"])) == ("failed", 1)
    assert harness.kept == [final]


@pytest.mark.parametrize("stream", [True, False])
async def test_error_during_stream_closes_open_items(stream: bool) -> None:
    harness = Harness([text("Hel"), ConnectionError("gone")], stream=stream)
    if stream:
        await harness.run.begin()
        await harness.read()
    with pytest.raises(ApiError, match="explained: gone"):
        await harness.run.finish()
    [kept] = harness.kept
    validate_response(kept)
    assert (kept["status"], kept["error"]["code"]) == ("failed", "server_error")
    assert kept["output"][0]["status"] == "incomplete"
    assert kept["output"][0]["content"][0]["text"] == "Hel"


async def test_internal_error_fails_response(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    harness = Harness(HELLO)

    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Generation, "_add_output", broken)
    await harness.run.begin()
    final = await harness.read()
    assert final["error"]["message"] == "The server failed while it generated the response (ZeroDivisionError)."
    assert harness.kept == [final]
    assert "ZeroDivisionError" in caplog.text


# Store errors

STORE_ERRORS = [ApiError(503, "The store is down."), OSError("disk full")]


def failing(error: Exception) -> Callable[[], Awaitable[None]]:
    async def keep() -> None:
        await asyncio.sleep(0)
        raise error

    return keep


async def test_unknown_store_outcome_ends_stream_without_terminal_event() -> None:
    harness = Harness(HELLO, keep=failing(OutcomeUnknown("Nobody knows.")))
    await harness.run.begin()
    events: list[Json] = []
    while batch := await harness.event_buffer.get(PATIENCE):
        events += batch
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-2]["type"] == "response.output_item.done"
    last = {"code": "outcome_unknown", "message": "Nobody knows.", "param": None}
    assert events[-1] == {"type": "error", "sequence_number": len(events) - 1, **last}
    assert harness.run.unknown
    with pytest.raises(OutcomeUnknown):
        await harness.run.finish()


@pytest.mark.parametrize("error", STORE_ERRORS)
@pytest.mark.parametrize("steps", [HELLO, [text("a"), ConnectionError("gone")], [finish("length")]])
async def test_response_that_cannot_be_stored_fails(error: Exception, steps: Round) -> None:
    harness = Harness(steps, keep=failing(error))
    await harness.run.begin()
    final = await harness.read()
    assert final["status"] == "failed"
    assert "stor" in final["error"]["message"]
    assert "disk full" not in str(harness.events)
    assert len(harness.kept) == 1
    with pytest.raises(ApiError, match="stor"):
        await harness.run.finish()


@pytest.mark.parametrize("error", STORE_ERRORS)
async def test_abandoned_response_that_cannot_be_stored_fails(error: Exception) -> None:
    harness = Harness([text("a"), asyncio.Event()], keep=failing(error))
    await harness.run.begin()
    await turns(5)
    harness.run.abandon()
    assert (await harness.read())["status"] == "failed"
    assert len(harness.kept) == 1


# Abandoning


async def slowly() -> None:
    await turns(3)


def busy(*, stream: bool = True) -> Harness:
    """Return a run of two rounds with a reader that stalls after a few events and a slow store."""
    return Harness(
        [text("a"), call("h", "1"), finish("tool_calls")],
        [text("b"), *HELLO],
        keep=slowly,
        limit=4 if stream else 1024,
        stream=stream,
    )


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("steps", range(40))
async def test_abandon_at_any_step_settles_response_once(steps: int, stream: bool, times: int) -> None:
    harness = busy(stream=stream)
    await turns(steps)
    for _ in range(times):
        harness.run.abandon()
    async with asyncio.timeout(PATIENCE):
        final = await (harness.read() if stream else harness.run.finish())
    [kept] = harness.kept
    assert kept == final
    validate_response(kept)
    check_finished(kept)
    assert kept["status"] in ("cancelled", "completed")
    assert all(item["status"] != "in_progress" for item in kept["output"])
    assert harness.inference.streaming == 0


@pytest.mark.parametrize("steps", range(40))
async def test_shutdown_at_any_step_ends_stream_and_stores_output(steps: int) -> None:
    harness = busy()
    await harness.run.begin()
    await turns(steps)
    harness.run.shut_down()
    async with asyncio.timeout(PATIENCE):
        final = await harness.read()
    assert harness.kept == [final]
    assert final["status"] in ("failed", "completed")
    if final["status"] == "failed":
        assert final["error"]["message"] == "The server is shutting down. Try again."
        with pytest.raises(ApiError) as error:
            await harness.run.finish()
        assert (error.value.status, error.value.retry_after) == (503, 1)


@asynccontextmanager
async def busy_server(**limits: Any) -> AsyncIterator[ModelServerQueues]:
    """Return the queues of a model server whose only slot another response holds."""
    queues = ModelServerQueues({"fake": ModelServerLimits(concurrency=1, **limits)})
    telemetry, response = Telemetry(), new_response(parse_create({"model": "m", "input": "x"}), id="r", created_at=1)
    with telemetry.response(response) as whole, telemetry.round("m", whole) as operation:
        operation.provider = "fake"
        async with queues.slot(Precedence.NEW, operation):
            yield queues


@pytest.mark.parametrize("stream", [True, False])
async def test_response_that_only_waits_for_its_model_server_goes_to_another_server_at_shutdown(
    *, stream: bool
) -> None:
    async with busy_server() as queues:
        harness = Harness(HELLO, queues=queues, stream=stream)
        answer = asyncio.ensure_future(harness.run.begin() if stream else harness.run.finish())
        await turns(10)
        harness.run.shut_down()
        with pytest.raises(NotBegunError) as refused:
            await answer
        assert (refused.value.status, refused.value.headers) == (421, {"x-should-retry": "true"})
    assert (harness.kept, harness.dropped, harness.run.refused, harness.inference.requests) == ([], 1, True, [])


async def test_waiting_stream_is_not_begun_by_a_server_that_accepts_no_more_requests() -> None:
    async with busy_server() as queues:
        harness = Harness(HELLO, queues=queues, refuses=True, refusal_seconds=0.001)
        with pytest.raises(NotBegunError):
            await harness.run.begin()
    await harness.run.wait_ended()
    assert (harness.kept, harness.dropped, harness.inference.requests) == ([], 1, [])


async def test_stream_that_waits_too_long_says_so_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """OpenAI's list of codes of a failed response has none for it."""
    caplog.set_level("INFO")
    async with busy_server(wait_seconds=0.01) as queues:
        harness = Harness(HELLO, queues=queues, refusal_seconds=0.001)
        await harness.run.begin()
        final = await harness.read()
    assert (final["error"]["code"], harness.events[-2]["code"]) == ("server_error", "server_error")
    assert "had no free slot for this request" in harness.events[-2]["message"]
    [line] = [record for record in caplog.records if record.getMessage() == "response failed"]
    assert line.__dict__["error"] == "server_overloaded"


async def test_stream_whose_head_was_sent_fails_at_shutdown_while_it_waits() -> None:
    async with busy_server() as queues:
        harness = Harness(HELLO, queues=queues, refusal_seconds=0.001)
        await harness.run.begin()
        harness.run.shut_down()
        final = await harness.read()
    assert (final["status"], final["error"]["code"]) == ("failed", "server_error")
    assert harness.kept == [final]


@pytest.mark.parametrize("refuses", [True, False])
async def test_response_that_the_model_server_was_asked_for_is_not_given_to_another_server(*, refuses: bool) -> None:
    """It would run twice, although the model server has not said yet that it takes the request."""
    harness = Harness(HELLO, accept=asyncio.Event(), refuses=refuses, refusal_seconds=0.001, stream=refuses)
    if refuses:
        await harness.run.begin()
    else:
        await turns(10)
    assert len(harness.inference.requests) == 1
    harness.run.shut_down()
    with pytest.raises(ApiError, match="shutting down") as stopped:
        await harness.run.finish()
    assert stopped.value.status == 503


async def test_repeated_abandon_cancels_once() -> None:
    harness = busy(stream=False)
    await turns(6)
    for _ in range(3):
        harness.run.abandon()
        await turns(1)
    assert (await harness.run.finish())["status"] == "cancelled"
    assert len(harness.kept) == 1


async def test_abandon_during_store_changes_nothing() -> None:
    gate = asyncio.Event()
    harness = Harness(HELLO, keep=lambda: wait(gate))
    await turns(20)
    assert harness.kept
    harness.run.abandon()
    await turns(3)
    gate.set()
    assert (await harness.read())["status"] == "completed"
    assert [kept["status"] for kept in harness.kept] == ["completed"]


async def test_abandon_after_end_changes_nothing() -> None:
    harness = Harness(HELLO)
    final = await harness.run.finish()
    harness.run.abandon()
    assert await harness.read() == final
    assert len(harness.kept) == 1


async def test_abandoned_response_keeps_output_as_cancelled() -> None:
    harness = Harness([text("Hel"), asyncio.Event()])
    await harness.run.begin()
    await turns(5)
    harness.run.abandon()
    final = await harness.read()
    assert final["status"] == "cancelled"
    assert final["output"][0]["status"] == "incomplete"
    assert final["output"][0]["content"][0]["text"] == "Hel"


async def test_response_with_stalled_reader_can_be_abandoned() -> None:
    harness = Harness([*(text("a") for _ in range(50)), finish()], limit=5)
    await harness.run.begin()
    await turns(100)
    assert harness.inference.sent < 8
    harness.run.abandon()
    assert (await harness.read())["status"] == "cancelled"
