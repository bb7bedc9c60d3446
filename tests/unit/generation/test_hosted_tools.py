"""Generations with a hosted tool: items and events, what the model receives, and errors."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import pytest

from llama_stack_responses.admission import Admission, Quota
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import ANONYMOUS
from llama_stack_responses.generation.loop import Ending, GenerationLimits
from llama_stack_responses.requests.request import parse_create
from llama_stack_responses.stream.replay import replay
from llama_stack_responses.stream.transcript import Transcript
from llama_stack_responses.tools.registry import client_tools
from llama_stack_responses.tools.tool_function import Outcome, ToolError
from llama_stack_responses.tools.toolset import Toolset
from tests.support.generation_harness import COMPLETED, GenerationHarness
from tests.support.inference import Round, call, finish, text
from tests.support.strict import check_stream
from tests.support.tools import FakeTools
from tests.support.waiting import until

Json = dict[str, Any]

SEARCH: Final[Json] = {"type": "web_search"}
FUNCTION: Final[Json] = {"type": "function", "name": "f"}
CALL: Final = call("lookup", "1", '{"query": "q"}')


class HostedToolsHarness(GenerationHarness):
    """A generation with a hosted tool."""

    def __init__(
        self, *rounds: Round, tools: FakeTools, declared: Sequence[Json] = (SEARCH, FUNCTION), **more: Any
    ) -> None:
        super().__init__(*rounds, makers={"web_search": tools.make}, tools=[*declared], **more)


ANSWER: Final[Round] = [text("It is 42."), finish()]


async def test_hosted_call_is_run_and_model_continues() -> None:
    tools = FakeTools(Outcome("42", {"action": {"type": "search", "query": "q", "sources": []}}))
    harness = HostedToolsHarness([text("Let me see."), CALL, finish("tool_calls")], ANSWER, tools=tools)
    events = await harness.end()
    response = check_stream(events)
    assert [item["type"] for item in response["output"]] == ["message", "web_search_call", "message"]
    search = response["output"][1]
    assert (search["status"], search["action"]["sources"]) == ("completed", [])
    about_it = [event["type"] for event in events if event.get("output_index") == 1]
    assert about_it == [
        "response.output_item.added",
        "response.web_search_call.in_progress",
        "response.web_search_call.searching",
        "response.web_search_call.completed",
        "response.output_item.done",
    ]
    assert harness.tool_outputs() == ["42"]
    assert tools.ran == [{"query": "q"}]
    assert harness.generation.exchanges == {
        search["id"]: {"name": "lookup", "arguments": '{"query": "q"}', "output": "42"},
    }


async def test_events_of_hosted_calls_are_replayed_exactly() -> None:
    tools = FakeTools(Outcome("42", {"action": {"type": "search", "query": "q", "sources": []}}), ToolError("no"))
    harness = HostedToolsHarness([CALL, finish("tool_calls")], [CALL, finish("tool_calls")], ANSWER, tools=tools)
    events = await harness.end()
    transcript = Transcript()
    transcript.note(events)
    assert list(replay(events[-1]["response"], transcript.marks())) == events
    check_stream(list(replay(events[-1]["response"])))


async def test_hosted_calls_of_one_round_run_concurrently() -> None:
    both = asyncio.Event()
    tools = FakeTools(both, both, Outcome("first"), Outcome("second"))
    calls = [CALL, call("lookup", "2", '{"query": "r"}', index=1)]
    harness = HostedToolsHarness([*calls, finish("tool_calls")], ANSWER, tools=tools)
    work = asyncio.create_task(harness.end())
    await tools.begun.acquire()
    await tools.begun.acquire()
    both.set()
    check_stream(await work)
    assert sorted(harness.tool_outputs()) == ["first", "second"]


async def test_concurrent_calls_are_streamed_in_sequence() -> None:
    first = asyncio.Event()
    tools = FakeTools(first, Outcome("late"), Outcome("early"))
    calls = [CALL, call("lookup", "2", '{"query": "r"}', index=1), call("f", "3", index=2)]
    harness = HostedToolsHarness([*calls, finish("tool_calls")], tools=tools)
    work = asyncio.create_task(harness.end())
    await until(lambda: len(harness.steps) == 2)
    shown = harness.event_buffer.ready()
    assert {event["output_index"] for event in shown if "output_index" in event} == {0}
    first.set()
    events = [*shown, *await work]
    response = check_stream(events)
    assert [item["type"] for item in response["output"]] == ["web_search_call", "web_search_call", "function_call"]
    transcript = Transcript()
    transcript.note(events)
    assert list(replay(response, transcript.marks())) == events


@pytest.mark.parametrize(
    ("answer", "expected"),
    [(ToolError("There is nothing."), "There is nothing."), (KeyError("x"), "The tool failed (KeyError).")],
)
async def test_failing_tool_gives_failed_item_and_error_for_model(answer: Exception, expected: str) -> None:
    harness = HostedToolsHarness([CALL, finish("tool_calls")], ANSWER, tools=FakeTools(answer))
    response = check_stream(await harness.end())
    assert [item.get("status") for item in response["output"]] == ["failed", "completed"]
    assert harness.tool_outputs() == [expected]


async def test_slow_tool_is_stopped_after_timeout() -> None:
    limits = GenerationLimits(8, 30.0, 0.01)
    harness = HostedToolsHarness([CALL, finish("tool_calls")], ANSWER, tools=FakeTools(asyncio.Event()), limits=limits)
    response = check_stream(await harness.end())
    assert response["output"][0]["status"] == "failed"
    assert harness.tool_outputs() == ["The tool did not answer within 0.01 seconds."]


@pytest.mark.parametrize("shown", [False, True])
async def test_results_of_all_calls_are_bounded_together(shown: bool) -> None:
    """Past the bound, no further call is run."""
    large = Outcome("", {"results": ["x" * 600]}) if shown else Outcome("x" * 600)
    rounds = [[call("lookup", str(number), '{"query": "q"}'), finish("tool_calls")] for number in range(4)]
    limits = GenerationLimits(8, 30.0, 30.0, tool_output_bytes=1_500)
    tools = FakeTools(large, large, large)
    harness = HostedToolsHarness(*rounds, ANSWER, tools=tools, limits=limits)
    response = check_stream(await harness.end())
    assert [item["status"] for item in response["output"]] == ["completed"] * 2 + ["failed"] * 2 + ["completed"]
    assert [each[:11] for each in harness.tool_outputs()] == [large.output[:11]] * 2 + ["The results"] * 2
    assert len(tools.ran) == 3


async def test_results_of_all_running_responses_of_user_are_bounded_together() -> None:
    """What a response holds is released when it ends."""
    admission = Admission(Quota("running outputs", 2_000, 1_000))
    other = admission.reserve(ANONYMOUS).add(600)
    rounds = [[call("lookup", str(number), '{"query": "q"}'), finish("tool_calls")] for number in range(2)]
    tools = FakeTools(Outcome("x" * 300), Outcome("y" * 300))
    held = admission.reserve(ANONYMOUS)
    harness = HostedToolsHarness(*rounds, ANSWER, tools=tools, held=held)
    response = check_stream(await harness.end())
    assert [item["status"] for item in response["output"]] == ["completed", "failed", "completed"]
    assert [each[:11] for each in harness.tool_outputs()] == ["x" * 11, "The results"]
    assert admission.held == other.units


async def test_second_parallel_call_is_refused_if_disallowed() -> None:
    calls = [CALL, call("lookup", "2", '{"query": "r"}', index=1)]
    tools = FakeTools(Outcome("first"))
    harness = HostedToolsHarness([*calls, finish("tool_calls")], ANSWER, tools=tools, parallel_tool_calls=False)
    check_stream(await harness.end())
    assert tools.ran == [{"query": "q"}]
    assert any(each.startswith("Only one tool may be called at a time.") for each in harness.tool_outputs())


async def test_call_with_invalid_arguments_is_hidden_from_client() -> None:
    harness = HostedToolsHarness([call("lookup", "1", "[]"), finish("tool_calls")], ANSWER, tools=FakeTools())
    response = check_stream(await harness.end())
    assert [item["type"] for item in response["output"]] == ["message"]
    assert harness.tool_outputs() == [
        "The arguments of this call are not valid for 'lookup'. Call again with valid ones."
    ]


async def test_client_call_with_hosted_call_ends_turn_after_hosted_call() -> None:
    tools = FakeTools(Outcome("42"))
    harness = HostedToolsHarness([CALL, call("f", "2", index=1), finish("tool_calls")], tools=tools)
    response = check_stream(await harness.end())
    assert {item["type"]: item["status"] for item in response["output"]} == {
        "web_search_call": "completed",
        "function_call": "completed",
    }
    assert len(harness.inference.requests) == 1
    assert len(harness.generation.exchanges) == 1


async def test_calls_over_max_tool_calls_are_not_run() -> None:
    tools = FakeTools(Outcome("42"))
    harness = HostedToolsHarness(
        [CALL, finish("tool_calls")], [CALL, finish("tool_calls")], ANSWER, tools=tools, max_tool_calls=1
    )
    response = check_stream(await harness.end())
    assert [item["type"] for item in response["output"]] == ["web_search_call", "message"]
    assert harness.tool_outputs()[1] == "No more tools may be called for this response. Answer with what you know."


async def test_no_tools_are_offered_once_max_tool_calls_is_spent() -> None:
    tools = FakeTools(Outcome("42"))
    harness = HostedToolsHarness([CALL, finish("tool_calls")], ANSWER, tools=tools, max_tool_calls=1, declared=[SEARCH])
    check_stream(await harness.end())
    first, last = harness.inference.requests
    assert ("tools" in first, "tools" in last) == (True, False)


async def test_client_functions_stay_offered_once_max_tool_calls_is_spent() -> None:
    tools = FakeTools(Outcome("42"))
    harness = HostedToolsHarness(
        [CALL, finish("tool_calls")], [call("f", "2"), finish("tool_calls")], tools=tools, max_tool_calls=1
    )
    response = check_stream(await harness.end())
    assert [item["type"] for item in response["output"]] == ["web_search_call", "function_call"]
    last = harness.inference.requests[1]
    assert [tool["function"]["name"] for tool in last["tools"]] == ["f"]
    assert last.get("tool_choice") is None


@pytest.mark.parametrize("declared", [[SEARCH], [SEARCH, FUNCTION]])
async def test_model_that_only_calls_gets_two_rounds_after_max_tool_calls(declared: list[Json]) -> None:
    """As a model may that has seen its own calls."""
    tools = FakeTools(Outcome("42"))
    rounds = [[CALL, finish("tool_calls")]] * 8
    harness = HostedToolsHarness(*rounds, tools=tools, max_tool_calls=1, declared=declared)
    assert await harness.generation.run() == Ending("incomplete", "max_messages")
    assert len(harness.inference.requests) == 3
    offered = [tool["function"]["name"] for tool in harness.inference.requests[-1].get("tools", ())]
    assert "lookup" not in offered
    assert tools.ran == [{"query": "q"}]
    assert [item["status"] for item in harness.assembler.response["output"]] == ["completed"]


async def test_last_round_offers_no_hosted_tools() -> None:
    tools = FakeTools(*[Outcome("42")] * 2)
    rounds = [[CALL, finish("tool_calls")]] * 2
    limits = GenerationLimits(3, 30.0, 30.0)
    harness = HostedToolsHarness(*rounds, ANSWER, tools=tools, limits=limits, declared=[SEARCH])
    response = check_stream(await harness.end())
    assert [item["type"] for item in response["output"]] == ["web_search_call", "web_search_call", "message"]
    assert ["tools" in request for request in harness.inference.requests] == [True, True, False]


async def test_model_that_repeats_its_calls_has_to_answer() -> None:
    tools = FakeTools(*[Outcome("42")] * 3)
    rounds = [[CALL, finish("tool_calls")]] * 3
    limits = GenerationLimits(64, 30.0, 30.0, repeated_rounds=3)
    harness = HostedToolsHarness(*rounds, ANSWER, tools=tools, limits=limits, declared=[SEARCH], tool_choice="required")
    response = check_stream(await harness.end())
    assert [item["type"] for item in response["output"]] == ["web_search_call"] * 3 + ["message"]
    assert ["tools" in request for request in harness.inference.requests] == [True, True, True, False]


async def test_model_that_only_ever_repeats_its_calls_ends_as_incomplete() -> None:
    tools = FakeTools(*[Outcome("42")] * 3)
    rounds = [[CALL, finish("tool_calls")]] * 5
    limits = GenerationLimits(64, 30.0, 30.0, repeated_rounds=3)
    harness = HostedToolsHarness(*rounds, tools=tools, limits=limits)
    assert await harness.generation.run() == Ending("incomplete", "max_messages")
    assert len(tools.ran) == 3


@pytest.mark.parametrize("other", ["a call", "a result"])
async def test_calls_that_differ_or_find_something_else_are_no_repetition(other: str) -> None:
    third = call("lookup", "1", '{"query": "r"}') if other == "a call" else CALL
    outcomes = [Outcome("42"), Outcome("42"), Outcome("42" if other == "a call" else "43"), *[Outcome("44")] * 2]
    rounds = [[each, finish("tool_calls")] for each in (CALL, CALL, third, CALL, CALL)]
    tools = FakeTools(*outcomes)
    limits = GenerationLimits(64, 30.0, 30.0, repeated_rounds=3)
    harness = HostedToolsHarness(*rounds, ANSWER, tools=tools, limits=limits)
    check_stream(await harness.end())
    assert len(tools.ran) == 5


async def test_call_in_the_last_round_is_not_run() -> None:
    tools = FakeTools(Outcome("42"))
    rounds = [[CALL, finish("tool_calls")]] * 2
    harness = HostedToolsHarness(*rounds, tools=tools, limits=GenerationLimits(2, 30.0, 30.0))
    assert await harness.generation.run() == Ending("incomplete", "max_messages")
    assert tools.ran == [{"query": "q"}]
    assert [item["type"] for item in harness.assembler.response["output"]] == ["web_search_call"]


@pytest.mark.parametrize("choice", ["required", {"type": "web_search_preview"}])
async def test_tool_choice_becomes_auto_after_first_call(choice: str | Json) -> None:
    tools = FakeTools(Outcome("42"))
    harness = HostedToolsHarness([CALL, finish("tool_calls")], ANSWER, tools=tools, tool_choice=choice)
    await harness.end()
    assert [request["tool_choice"] for request in harness.inference.requests] == ["required", "auto"]


async def test_cancelled_generation_closes_running_calls() -> None:
    tools = FakeTools(asyncio.Event())
    harness = HostedToolsHarness([CALL, finish("tool_calls")], tools=tools)
    work = asyncio.create_task(harness.generation.run())
    await tools.begun.acquire()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    harness.event_buffer.put(harness.assembler.close("incomplete"))
    harness.assembler.set_outcome("cancelled")
    harness.event_buffer.put(harness.assembler.end())
    response = check_stream(harness.event_buffer.ready())
    assert [item["status"] for item in response["output"]] == ["incomplete"]


async def test_each_tool_output_is_step() -> None:
    tools = FakeTools(Outcome("42"), Outcome("43"))
    calls = [CALL, call("lookup", "2", '{"query": "r"}', index=1)]
    harness = HostedToolsHarness([*calls, finish("tool_calls")], ANSWER, tools=tools)
    await harness.end()
    assert [(len(step.waiting), len(step.new_items)) for step in harness.steps] == [(2, 2), (1, 3), (0, 4)]


@pytest.mark.parametrize(
    ("repeatable", "expected", "status"), [(True, "42", "completed"), (False, "interrupted", "failed")]
)
async def test_interrupted_call_is_repeated_only_if_repeatable(repeatable: bool, expected: str, status: str) -> None:
    cut_off = FakeTools(asyncio.Event())
    first = HostedToolsHarness([CALL, finish("tool_calls")], tools=cut_off)
    work = asyncio.create_task(first.generation.run())
    await cut_off.begun.acquire()
    work.cancel()
    tools = FakeTools(Outcome("42"), repeatable=repeatable)
    second = HostedToolsHarness(ANSWER, tools=tools, progress=first.steps[-1])
    second.assembler.response["output"][:] = first.assembler.response["output"]
    number = first.assembler.numbered
    second.assembler.resume(number, second.assembler.used, first.steps[-1].new_items, first.steps[-1].waiting)
    assert await second.generation.run() == COMPLETED
    assert expected in second.tool_outputs()[0]
    assert second.assembler.response["output"][0]["status"] == status
    assert len(tools.ran) == repeatable


async def test_tool_without_provider_is_refused() -> None:
    request = parse_create({"model": "m", "input": "hi", "tools": [SEARCH]})
    with pytest.raises(ApiError, match="no provider for tools of the type 'web_search'") as caught:
        Toolset(request, client_tools())
    assert (caught.value.status, caught.value.param) == (400, "tools[0].type")


async def test_many_calls_of_a_round_run_some_at_a_time() -> None:
    gate = asyncio.Event()
    tools = FakeTools(*[gate] * 40, *[Outcome("found")] * 40)
    calls = [call("lookup", str(number), '{"query": "q"}', index=number) for number in range(40)]
    generation = HostedToolsHarness([*calls, finish("tool_calls")], ANSWER, tools=tools)
    running = asyncio.create_task(generation.generation.run())
    await until(lambda: len(tools.ran) >= 32)
    assert len(tools.ran) < 40
    gate.set()
    assert await running == COMPLETED
    assert len(tools.ran) == 40
