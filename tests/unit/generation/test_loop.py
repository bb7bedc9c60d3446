"""The generation loop: rounds, hidden calls, limits, silence, and a reader that stalls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from math import inf
from typing import Any

import pytest

from llama_stack_responses.chat.inference import Extender, Receive
from llama_stack_responses.chat.profile import Profile
from llama_stack_responses.concurrency.fair_yield import FairYield
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.generation import chunk_intake
from llama_stack_responses.generation.event_buffer import EventBuffer
from llama_stack_responses.generation.loop import Ending, GenerationLimits
from llama_stack_responses.generation.stop_point import StopPoint
from llama_stack_responses.requests.request import parse_create
from llama_stack_responses.stream.assembler import Assembler
from llama_stack_responses.stream.deltas import Text
from llama_stack_responses.stream.response import new_response
from llama_stack_responses.tools.registry import client_tools
from llama_stack_responses.tools.toolset import Toolset
from tests.support.clock import LoopClock
from tests.support.generations import make_generation
from tests.support.inference import FakeInference, Round, Step, call, finish, reasoning, text
from tests.support.waiting import turns, until

Json = dict[str, Any]

FUNCTIONS = [{"type": "function", "name": name} for name in ("f", "g")]
ONLY_G = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]}
COMPLETED = Ending("completed")


class Harness:
    """A generation with its collaborators."""

    def __init__(
        self,
        *rounds: Round,
        limit: int = 1024,
        at_most: int = 8,
        idle_seconds: float = 30.0,
        accept: asyncio.Event | None = None,
        profile: Profile | None = None,
        fair_yield: FairYield | None = None,
        stop_point: StopPoint | None = None,
        pushes: Callable[[int], bool] = bool,
        inference: FakeInference | None = None,
        **fields: Any,
    ) -> None:
        request = parse_create({"model": "m", "input": "hi", "stream": True, **fields})
        self.inference = inference or FakeInference(*rounds, accept=accept, pushes=pushes)
        self.event_buffer = EventBuffer(wanted=request.stream, limit=limit)
        toolset = Toolset(request, client_tools())
        response = new_response(request, id="resp_1", created_at=1)
        self.assembler = Assembler(response, toolset.kind_of, meant=toolset.meant)
        self.generation = make_generation(
            request,
            request.input_items,
            profile=profile,
            toolset=toolset,
            assembler=self.assembler,
            inference=self.inference,
            event_buffer=self.event_buffer,
            limits=GenerationLimits(at_most, idle_seconds, 30.0),
            fair_yield=fair_yield,
            stop_point=stop_point,
        )

    @property
    def output(self) -> list[str]:
        """The text or the call's name of each output item."""
        items = self.assembler.response["output"]
        return ["".join(part["text"] for part in item.get("content", ())) or item["name"] for item in items]

    async def types(self) -> list[str]:
        """Return the types of the events so far."""
        return [event["type"] for event in await self.event_buffer.get(0.01) or ()]


def messages(request: Json) -> list[Json]:
    return list(request["messages"])


# Rounds


async def test_text_answer_takes_one_round() -> None:
    harness = Harness([reasoning("hm"), text("Hel"), text("lo"), finish(tokens=3)], instructions="Be kind.")
    assert await harness.generation.run() == COMPLETED
    assert harness.output == ["hm", "Hello"]
    assert harness.assembler.response["usage"]["output_tokens"] == 3
    [request] = harness.inference.requests
    assert messages(request) == [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi"}]
    assert harness.inference.closed == 1
    assert (await harness.types())[-1] == "response.output_item.done"


async def test_client_calls_end_turn() -> None:
    harness = Harness([call("f", "1"), call("g", "2", index=1), finish("tool_calls")], tools=FUNCTIONS)
    assert await harness.generation.run() == COMPLETED
    assert harness.output == ["f", "g"]
    assert [each["function"]["name"] for each in harness.inference.requests[0]["tools"]] == ["f", "g"]


async def test_invalid_calls_are_answered_in_second_round() -> None:
    harness = Harness(
        [reasoning("hm"), text("Wait."), call("f", "1", '{"a": 1}'), call("h", "2", index=1), finish("tool_calls")],
        [text("Done."), finish()],
        tools=FUNCTIONS,
        tool_choice=ONLY_G,
    )
    assert await harness.generation.run() == COMPLETED
    assert harness.output == ["hm", "Wait.", "Done."]
    first, second = harness.inference.requests
    assert messages(first) == [{"role": "user", "content": "hi"}]
    assert messages(second) == [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "Wait.",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
                {"id": "2", "type": "function", "function": {"name": "h", "arguments": "{}"}},
            ],
        },
        {
            "role": "tool",
            "tool_call_id": "1",
            "content": "The tool 'f' cannot be called in this turn. Tools that may be called: g.",
        },
        {
            "role": "tool",
            "tool_call_id": "2",
            "content": "There is no tool named 'h'. Tools that may be called: g.",
        },
    ]
    assert harness.inference.closed == 2


async def test_each_earlier_round_is_sent_once() -> None:
    hidden = [[text(str(number)), call("h", "same id"), finish("tool_calls")] for number in range(3)]
    harness = Harness(*hidden, [text("end"), finish()])
    assert await harness.generation.run() == COMPLETED
    texts = [
        message["content"] for message in messages(harness.inference.requests[-1]) if message["role"] == "assistant"
    ]
    assert texts == ["0", "1", "2"]
    ids = [each["id"] for message in messages(harness.inference.requests[-1]) for each in message.get("tool_calls", ())]
    assert len(set(ids)) == 3


async def test_valid_call_with_invalid_one_ends_turn() -> None:
    harness = Harness([call("h", "1"), call("g", "2", index=1), finish("tool_calls")], tools=FUNCTIONS)
    assert await harness.generation.run() == COMPLETED
    assert harness.output == ["g"]
    assert len(harness.inference.requests) == 1


async def test_round_limit_ends_response_incomplete() -> None:
    hidden = [[call("h", "1"), finish("tool_calls")] for _ in range(5)]
    harness = Harness(*hidden, at_most=3)
    assert await harness.generation.run() == Ending("incomplete", "max_messages")
    assert len(harness.inference.requests) == 3


# Token limits and other ends


async def test_token_limit_covers_all_rounds() -> None:
    hidden = [[call("h", "1"), finish("tool_calls", tokens=tokens)] for tokens in (30, 60, 10)]
    harness = Harness(*hidden, max_output_tokens=100)
    assert await harness.generation.run() == Ending("incomplete", "max_output_tokens")
    assert [request["max_completion_tokens"] for request in harness.inference.requests] == [100, 70, 10]


async def test_exceeded_token_limit_sends_no_further_request() -> None:
    harness = Harness([call("h", "1"), finish("tool_calls", tokens=30)], max_output_tokens=20)
    assert await harness.generation.run() == Ending("incomplete", "max_output_tokens")
    assert len(harness.inference.requests) == 1


async def test_no_token_limit_is_sent_if_none_was_given() -> None:
    harness = Harness([text("a"), finish()], profile=Profile(max_tokens_field="max_tokens"))
    await harness.generation.run()
    assert not harness.inference.requests[0].keys() & {"max_tokens", "max_completion_tokens"}


PREWARM = {"prewarm": True}


@pytest.mark.parametrize("reason", ["length", "stop", "tool_calls", "content_filter"])
async def test_prewarm_has_the_prompt_read_and_drops_what_the_model_writes(reason: str) -> None:
    written = [reasoning("r"), text("a"), call("f", "1", "{"), finish(reason, tokens=1)]
    harness = Harness(written, prompt_cache_options=PREWARM, max_output_tokens=100, tools=FUNCTIONS)
    assert await harness.generation.run() == COMPLETED
    [chat] = harness.inference.requests
    assert (chat["max_completion_tokens"], len(chat["tools"])) == (1, 2)
    assert harness.output == []
    assert await harness.types() == []
    usage = harness.assembler.response["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (1, 0, 1)


async def test_prewarm_ends_with_a_model_server_that_ignores_the_token_limit() -> None:
    endless = [text("x" * 1000) for _ in range(1000)]
    harness = Harness([*endless, finish()], prompt_cache_options=PREWARM)
    assert await harness.generation.run() == COMPLETED
    assert harness.inference.sent < 100


@pytest.mark.parametrize(
    ("reason", "ending"),
    [
        ("length", Ending("incomplete", "max_output_tokens")),
        ("content_filter", Ending("incomplete", "content_filter")),
    ],
)
async def test_finish_reason_sets_ending(reason: str, ending: Ending) -> None:
    harness = Harness([text("a"), call("h", "1", "{"), finish(reason)])
    assert await harness.generation.run() == ending
    assert harness.output == ["a"]
    assert len(harness.inference.requests) == 1


async def test_service_tier_of_provider_is_reported() -> None:
    harness = Harness([text("a"), finish(service_tier="flex")])
    await harness.generation.run()
    assert harness.assembler.response["service_tier"] == "flex"


# Reasoning of earlier turns

THOUGHT = [
    {"role": "user", "content": "a"},
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "old"}]},
    {"role": "assistant", "content": "b"},
    {"role": "user", "content": "c"},
]


@pytest.mark.parametrize(
    ("context", "profile", "replayed"),
    [
        (None, "current_turn", False),
        (None, "all_turns", True),
        ("auto", "all_turns", True),
        ("all_turns", "current_turn", True),
        ("current_turn", "all_turns", False),
    ],
)
async def test_reasoning_context_selects_replayed_reasoning(context: str | None, profile: Any, replayed: bool) -> None:
    model = Profile(reasoning_context=profile)
    harness = Harness([text("a"), finish()], profile=model, input=THOUGHT, reasoning={"context": context})
    await harness.generation.run()
    assert ("reasoning_content" in messages(harness.inference.requests[0])[1]) == replayed


# Errors


async def test_refusal_of_provider_is_raised() -> None:
    harness = Harness(ApiError(429, "Slow down."))
    with pytest.raises(ApiError, match="Slow down") as caught:
        await harness.generation.run()
    assert caught.value.status == 429
    assert not harness.generation.accepted.done()


async def test_stream_error_is_explained_and_closes_stream() -> None:
    harness = Harness([text("a"), ConnectionError("gone")])
    with pytest.raises(ApiError, match="explained: gone"):
        await harness.generation.run()
    assert harness.generation.accepted.done()
    assert harness.inference.closed == 1


@pytest.mark.parametrize("said", [[reasoning("a")], [text("a"), finish("error")]])
async def test_broken_off_stream_raises_error(said: list[Any]) -> None:
    harness = Harness(said)
    with pytest.raises(ApiError, match=r"ended before|aborted"):
        await harness.generation.run()
    assert "response.output_item.added" in await harness.types()


# Silence


async def test_silence_before_acceptance_times_out() -> None:
    harness = Harness([text("a"), finish()], accept=asyncio.Event(), idle_seconds=0.02)
    with pytest.raises(ApiError, match=r"sent nothing for 0\.02") as caught:
        await harness.generation.run()
    assert caught.value.status == 504
    assert not harness.generation.accepted.done()


async def test_silence_between_chunks_times_out(loop_clock: LoopClock) -> None:
    harness = Harness([text("a"), asyncio.Event(), finish()], idle_seconds=100.0)
    work = asyncio.create_task(harness.generation.run())
    await until(lambda: harness.inference.sent == 1)
    await loop_clock.passes_until(work.done)
    with pytest.raises(ApiError, match="sent nothing"):
        await work
    assert harness.inference.closed == 1


async def test_slow_answer_does_not_time_out(loop_clock: LoopClock) -> None:
    filters = [asyncio.Event() for _ in range(8)]
    steps = [step for gate in filters for step in (gate, text("a"))]
    harness = Harness([*steps, finish()], idle_seconds=100.0)
    work = asyncio.create_task(harness.generation.run())
    for gate in filters:
        await loop_clock.passes(30.0)
        gate.set()
    assert await work == COMPLETED


# Chunks that are pushed

MANY_DELTAS = call("f", "1", '{"x": "' + "y" * 100_000 + '"}')


@pytest.mark.parametrize(
    "chunks",
    [
        [*(text(f"{number} ") for number in range(40)), finish(tokens=3)],
        [reasoning("hm"), text("Hel"), text(""), text("lo"), finish()],
        [text("a"), MANY_DELTAS, finish("tool_calls")],
    ],
    ids=["many", "few", "large"],
)
@pytest.mark.parametrize("limit", [4, 1024])
async def test_pushed_and_read_chunks_make_same_events(chunks: list[Any], limit: int) -> None:
    created = []
    for pushes in (bool, lambda _: False, lambda number: number % 2 == 0, lambda number: number % 3 > 0):
        setting = Harness(chunks, tools=FUNCTIONS, limit=limit, pushes=pushes)
        work = asyncio.create_task(setting.generation.run())
        types: list[str] = []
        while not work.done():
            types += await setting.types()
            await asyncio.sleep(0)
        assert await work == COMPLETED
        created.append((setting.output, types + await setting.types()))
    assert all(each == created[0] for each in created)


class BufferedInference(FakeInference):
    """A model whose chunks have all arrived already."""

    async def _stream(self, steps: Sequence[Step], receive: Receive | None, _: Extender | None) -> AsyncGenerator[Any]:
        assert receive
        for step in steps:
            if not receive(step):
                yield step
        await asyncio.Event().wait()


async def test_chunks_at_hand_after_end_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_point = StopPoint()
    chunks = [text("a"), call("f", "1"), text("never"), *(reasoning("never") for _ in range(40))]
    setting = Harness(
        stop_point=stop_point, tools=FUNCTIONS, inference=BufferedInference([text("a"), reasoning("b"), *chunks])
    )
    monkeypatch.setattr(StopPoint, "begin_round", lambda self: setattr(self, "wanted", True))
    stop_point._kind = Text
    assert await setting.generation.run() == STEERED
    assert setting.output == ["a"]


# Readers that stall


async def test_stalled_reader_stalls_provider_without_timeout(loop_clock: LoopClock) -> None:
    harness = Harness([*(text("a") for _ in range(50)), finish()], limit=10, idle_seconds=100.0)
    work = asyncio.create_task(harness.generation.run())
    await until(lambda: harness.event_buffer.full)
    await loop_clock.passes(0.0)
    await loop_clock.passes(300.0)
    assert not work.done()
    assert harness.inference.sent < 12
    taken = 0
    while not work.done():
        batch = await harness.event_buffer.get(0.01) or []
        assert len(batch) <= 12
        taken += len(batch)
        await asyncio.sleep(0)
    assert await work == COMPLETED
    assert harness.inference.sent == 51
    assert taken + len(await harness.types()) == 50 + 2 + 3


@pytest.mark.parametrize(("chunks", "waits"), [(10, False), (20, True)])
async def test_first_delta_does_not_wait_for_busy_streams(
    chunks: int, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_intake, "_SLOW_SECONDS", inf)  # a burst may take long on a busy machine
    fair_yield, passed = FairYield(), 0

    async def others() -> None:
        nonlocal passed
        while True:
            await fair_yield.wait_turn()
            passed += 1

    running = [asyncio.ensure_future(others()) for _ in range(50)]
    await asyncio.sleep(0)
    harness = Harness([text("word ")] * chunks + [finish()], fair_yield=fair_yield)
    assert await harness.generation.run() == COMPLETED
    assert (passed >= len(running)) is waits
    for task in running:
        task.cancel()


async def test_unstreamed_response_never_stalls_provider() -> None:
    harness = Harness([*(text("a") for _ in range(50)), finish()], limit=10, stream=False)
    assert await harness.generation.run() == COMPLETED
    assert harness.output == ["a" * 50]


# Cancelling


@pytest.mark.parametrize("steps", range(12))
async def test_cancel_at_any_step_closes_provider_stream(steps: int) -> None:
    harness = Harness([text("a"), text("b"), finish()], limit=3)
    work = asyncio.create_task(harness.generation.run())
    for _ in range(steps):
        await asyncio.sleep(0)
    work.cancel()
    await asyncio.wait([work])
    assert work.cancelled()
    assert harness.inference.streaming == 0
    assert steps < 3 or harness.inference.closed == 1


# Steering


STEERED = Ending("incomplete", "steered")


async def test_steered_generation_ends_between_items() -> None:
    stop_point, gate = StopPoint(), asyncio.Event()
    harness = Harness([reasoning("hm"), gate, text("never"), finish()], stop_point=stop_point)
    running = asyncio.create_task(harness.generation.run())
    await turns(20)
    stop_point.wanted = True
    gate.set()
    assert await running == STEERED
    assert harness.output == ["hm"]
    assert harness.assembler.response["output"][0]["status"] == "completed"
    assert harness.inference.streaming == 0


async def test_steered_generation_ends_between_rounds() -> None:
    """Calls of the earlier round are answered: no call is left open for the next response."""
    stop_point, gate = StopPoint(), asyncio.Event()
    harness = Harness(
        [call("h", "1"), gate, finish("tool_calls")],
        [text("never"), finish()],
        stop_point=stop_point,
        tools=FUNCTIONS,
        tool_choice=ONLY_G,
    )
    running = asyncio.create_task(harness.generation.run())
    await turns(20)
    stop_point.wanted = True
    gate.set()
    assert await running == STEERED
    assert len(harness.inference.requests) == 1


async def test_steered_generation_finishes_last_item() -> None:
    stop_point, gate = StopPoint(), asyncio.Event()
    harness = Harness([text("To the "), gate, text("end."), finish()], stop_point=stop_point)
    running = asyncio.create_task(harness.generation.run())
    await turns(20)
    stop_point.wanted = True
    gate.set()
    assert await running == COMPLETED
    assert harness.output == ["To the end."]


# Tools that do not exist


async def test_model_that_only_calls_unknown_tools_ends_the_response() -> None:
    rounds = [[call("h", f"{number}"), finish("tool_calls")] for number in range(9)]
    harness = Harness(*rounds, at_most=64, tools=FUNCTIONS)
    with pytest.raises(ApiError, match="keeps calling a tool that does not exist: 'h'"):
        await harness.generation.run()
    assert len(harness.inference.requests) == 4


@pytest.mark.parametrize("choice", [{"type": "function", "name": "g"}, ONLY_G | {"mode": "required"}])
@pytest.mark.parametrize("name", ["f", "h"])
async def test_model_that_calls_other_tools_than_the_chosen_one_is_asked_once_more(choice: Json, name: str) -> None:
    rounds = [[call(name, f"{number}"), finish("tool_calls")] for number in range(9)]
    harness = Harness(*rounds, at_most=64, tools=FUNCTIONS, tool_choice=choice)
    with pytest.raises(ApiError, match=f"The model calls '{name}', not a tool that 'tool_choice' requires"):
        await harness.generation.run()
    assert len(harness.inference.requests) == 2


async def test_model_that_calls_the_chosen_tool_when_asked_once_more_goes_on() -> None:
    rounds = [[call(name, name), finish("tool_calls")] for name in ("f", "g")]
    harness = Harness(*rounds, at_most=64, tools=FUNCTIONS, tool_choice={"type": "function", "name": "g"})
    assert await harness.generation.run() == COMPLETED
    assert len(harness.inference.requests) == 2


async def test_name_with_marks_calls_the_tool_that_it_means() -> None:
    harness = Harness([call("functions.f<|channel|>commentary", "1"), finish("tool_calls")], tools=FUNCTIONS)
    assert await harness.generation.run() == COMPLETED
    assert harness.output == ["f"]
