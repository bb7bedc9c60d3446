"""Model rounds wait for a slot of their model server, users take turns, and no slot is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from llama_stack_responses.concurrency.share import Share, working_for
from llama_stack_responses.concurrency.waiting_work import Precedence
from llama_stack_responses.config.limits import ModelServerLimits
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.generation.event_buffer import EventBuffer
from llama_stack_responses.generation.loop import Ending, GenerationLimits
from llama_stack_responses.generation.model_server_queues import WAITED, ModelServerQueues
from llama_stack_responses.requests.request import parse_create
from llama_stack_responses.stream.assembler import Assembler
from llama_stack_responses.stream.response import new_response
from llama_stack_responses.telemetry.instrumentation import RoundOperation, Telemetry
from llama_stack_responses.tools.registry import client_tools
from llama_stack_responses.tools.tool_function import Outcome
from llama_stack_responses.tools.toolset import Toolset
from tests.support.clock import LoopClock
from tests.support.exported_telemetry import ExportedTelemetry
from tests.support.generations import make_generation
from tests.support.inference import FakeInference, Round, call, finish, text
from tests.support.shares import as_user
from tests.support.tools import FakeTools
from tests.support.waiting import turns, until

COMPLETED = Ending("completed")
SEARCH = [{"type": "web_search"}]


def queues(**limits: Any) -> ModelServerQueues:
    return ModelServerQueues({"fake": ModelServerLimits(**limits)}, Telemetry())


def operation(provider: str = "fake") -> RoundOperation:
    """Return a round at the model server of a provider."""
    response = new_response(parse_create({"model": "m", "input": "hi"}), id="resp_1", created_at=1)
    telemetry = Telemetry()
    with telemetry.response(response) as whole, telemetry.round("m", whole) as found:
        found.provider = provider
        return found


class Rounds:
    """Rounds of users that hold their places until they are ended.

    Attributes:
        began: their names, in the order in which they got places.
        tasks: by name.
    """

    def __init__(self, served: ModelServerQueues) -> None:
        self._queues = served
        self.began: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self, *names: str, precedence: Precedence = Precedence.NEW) -> None:
        """Start rounds; the first letter of the name of each is its user."""
        for name in names:
            self._ends[name] = asyncio.Event()
            self.tasks[name] = as_user(name[0], self._run(name, precedence))
            await asyncio.sleep(0)

    async def end(self, name: str) -> None:
        """End a round, and let others begin."""
        self._ends[name].set()
        await self.tasks[name]
        await turns(3)

    async def _run(self, name: str, precedence: Precedence) -> None:
        async with self._queues.slot(precedence, operation()):
            self.began.append(name)
            await self._ends[name].wait()


def generation(inference: FakeInference, served: ModelServerQueues, **fields: Any) -> asyncio.Task[Ending]:
    """Start a response with a hosted tool."""
    request = parse_create({"model": "m", "input": "hi", "tools": SEARCH, **fields})
    toolset = Toolset(request, {**client_tools(), "web_search": FakeTools(Outcome("42")).make})
    generated = make_generation(
        request,
        request.input_items,
        toolset=toolset,
        assembler=Assembler(new_response(request, id="resp_1", created_at=1), toolset.kind_of),
        inference=inference,
        event_buffer=EventBuffer(wanted=False),
        limits=GenerationLimits(8, 30.0, 30.0),
        queues=served,
    )
    return asyncio.create_task(generated.run())


def test_model_servers_without_a_limit_have_no_queue() -> None:
    assert ModelServerQueues({}, Telemetry()).counts() == {}


async def test_user_with_one_round_is_next_however_many_another_has_waiting() -> None:
    rounds = Rounds(queues(concurrency=2, concurrency_per_user=2))
    many = [f"a{number}" for number in range(22)]
    await rounds.start(*many)
    await rounds.start("b")
    assert rounds.began == ["a0", "a1"]
    await rounds.end("a0")
    await rounds.end("a1")
    assert "b" in rounds.began[:4]


async def test_user_has_three_quarters_of_the_places_by_default() -> None:
    served = queues(concurrency=4)
    rounds = Rounds(served)
    await rounds.start("a1", "a2", "a3", "a4", "b1")
    assert rounds.began == ["a1", "a2", "a3", "b1"]
    assert served.counts() == {"fake": (4, 1)}


async def test_round_of_a_response_that_has_begun_goes_first_and_one_of_the_background_last() -> None:
    rounds = Rounds(queues(concurrency=1))
    await rounds.start("a0")
    await rounds.start("a later", precedence=Precedence.LATER)
    await rounds.start("a new")
    await rounds.start("a begun", precedence=Precedence.BEGUN)
    await rounds.start("b later", precedence=Precedence.LATER)
    for name in ("a0", "a begun", "b later", "a new", "a later"):
        assert rounds.began[-1] == name
        await rounds.end(name)


@pytest.mark.parametrize("background", [False, True])
async def test_response_with_priority_goes_before_others_of_its_user(background: bool) -> None:
    served, gate = queues(concurrency=1), asyncio.Event()
    rounds = Rounds(served)
    await rounds.start("a0")
    default, urgent = (FakeInference([text("Hello"), gate, finish()]) for _ in range(2))
    with working_for(Share("a", 1.0)):
        running = [
            generation(default, served, background=background),
            generation(urgent, served, background=background, service_tier="priority"),
        ]
    await until(lambda: served.counts() == {"fake": (1, 2)})
    await rounds.end("a0")
    await until(lambda: urgent.streaming + default.streaming == 1)
    assert (urgent.streaming, default.streaming) == (1, 0)
    gate.set()
    await asyncio.gather(*running)


async def test_rounds_that_leave_while_they_wait_delay_no_others() -> None:
    served = queues(concurrency=1)
    rounds = Rounds(served)
    await rounds.start("a0", "a1", "a2", "b1")
    for name in ("a1", "b1"):
        rounds.tasks[name].cancel()
    await asyncio.wait([rounds.tasks["a1"], rounds.tasks["b1"]])
    assert served.counts() == {"fake": (1, 1)}
    await rounds.end("a0")
    await rounds.end("a2")
    assert served.counts() == {"fake": (0, 0)}


async def test_new_responses_beyond_the_queue_of_a_user_are_refused_and_others_are_not() -> None:
    rounds = Rounds(queues(concurrency=1, waiting_per_user=1))
    await rounds.start("a0", "a1", "a2", "b1")
    with pytest.raises(ApiError, match=r"model_servers\.fake\.waiting_per_user") as refused:
        await rounds.tasks["a2"]
    assert (refused.value.status, refused.value.code) == (429, "rate_limit_exceeded")
    for precedence in (Precedence.BEGUN, Precedence.SOON, Precedence.LATER):
        await rounds.start(f"a {precedence.name}", precedence=precedence)
    await turns(3)
    assert not any(task.done() for name, task in rounds.tasks.items() if name != "a2")


async def test_round_that_is_refused_does_not_count_as_a_wait() -> None:
    """Many refusals would hide the long waits from the alert."""
    watched = ExportedTelemetry()
    limits = ModelServerLimits(concurrency=1, waiting_per_user=1)
    rounds = Rounds(ModelServerQueues({"fake": limits}, watched.telemetry))
    await rounds.start("a0", "a1", "a2")
    with pytest.raises(ApiError, match="waiting_per_user"):
        await rounds.tasks["a2"]
    assert watched.points() == {}
    await rounds.end("a0")
    assert {name: [count for _, count, _ in points] for name, points in watched.points().items()} == {WAITED.name: [1]}


@pytest.mark.parametrize("precedence", Precedence)
async def test_wait_ends_with_503_unless_the_response_runs_in_the_background(
    precedence: Precedence, loop_clock: LoopClock
) -> None:
    served = queues(concurrency=1, wait_seconds=100)
    rounds = Rounds(served)
    await rounds.start("a0")
    await rounds.start("a1", precedence=precedence)
    await loop_clock.passes(90)
    assert not rounds.tasks["a1"].done()
    await loop_clock.passes(20)
    if precedence in (Precedence.SOON, Precedence.LATER):
        assert not rounds.tasks["a1"].done()
        return
    with pytest.raises(ApiError, match="had no free slot for this request within 100 seconds") as late:
        await rounds.tasks["a1"]
    assert (late.value.status, late.value.code, late.value.upstream) == (503, "server_overloaded", None)
    assert served.counts() == {"fake": (1, 0)}


async def test_wait_counts_neither_as_silence_nor_as_time_of_the_model_server(loop_clock: LoopClock) -> None:
    served = queues(concurrency=1)
    rounds = Rounds(served)
    await rounds.start("a0")
    inference = FakeInference([text("Hello"), finish()])
    waiting = generation(inference, served)
    await until(lambda: served.counts() == {"fake": (1, 1)})
    await loop_clock.passes(500)
    assert inference.requests == []
    await rounds.end("a0")
    assert await waiting == COMPLETED


async def test_seconds_of_a_round_begin_after_its_wait() -> None:
    waited = operation()
    waited.waited(1000.0)
    assert waited.seconds < 0


async def test_response_holds_no_place_while_its_tools_run_and_waits_for_the_next_round_first() -> None:
    served = queues(concurrency=1)
    answer: Round = [text("It is 42."), finish()]
    inference = FakeInference([call("lookup", "1", '{"query": "q"}'), finish("tool_calls")], answer)
    rounds = Rounds(served)
    await rounds.start("a0")
    running = as_user("a", _awaited(inference, served))
    await until(lambda: served.counts() == {"fake": (1, 1)})
    await rounds.start("a new 1", "a new 2")
    await rounds.end("a0")
    await until(lambda: len(inference.requests) == 1)
    # Its second round comes before the new ones that have waited for longer, as soon as a slot is free.
    await until(lambda: rounds.began == ["a0", "a new 1"] and served.counts() == {"fake": (1, 2)})
    await rounds.end("a new 1")
    assert await running == COMPLETED
    await until(lambda: rounds.began == ["a0", "a new 1", "a new 2"])
    await rounds.end("a new 2")
    assert served.counts() == {"fake": (0, 0)}


async def _awaited(inference: FakeInference, served: ModelServerQueues) -> Ending:
    return await generation(inference, served)


async def test_failed_and_cancelled_rounds_give_their_places_back() -> None:
    served, held = queues(concurrency=1), asyncio.Event()
    with pytest.raises(ApiError):
        await generation(FakeInference(ApiError(500, "No.")), served)
    assert served.counts() == {"fake": (0, 0)}
    running = generation(FakeInference([text("x"), held, finish()]), served)
    await until(lambda: served.counts() == {"fake": (1, 0)})
    running.cancel()
    await asyncio.wait([running])
    assert served.counts() == {"fake": (0, 0)}


async def test_request_within_a_round_waits_for_no_place_but_counts() -> None:
    served = queues(concurrency=1)
    rounds = Rounds(served)
    await rounds.start("a0")
    async with served.beyond("fake"):
        assert served.counts() == {"fake": (2, 0)}
        await rounds.start("b1")
        await rounds.end("a0")
        assert rounds.began == ["a0"]
    await turns(3)
    assert rounds.began == ["a0", "b1"]
