"""A model server that never stops: the output of one response is bounded, and the connection is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any

import pytest

from llama_stack_responses.admission import Admission, Quota, Reservation
from llama_stack_responses.chat.profile import Profile
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import ANONYMOUS
from llama_stack_responses.generation.event_buffer import EventBuffer
from llama_stack_responses.generation.loop import Ending, GenerationLimits
from llama_stack_responses.requests.request import parse_create
from llama_stack_responses.stream.assembler import Assembler
from llama_stack_responses.stream.response import new_response
from llama_stack_responses.stream.transcript import Transcript
from llama_stack_responses.tools.registry import client_tools
from llama_stack_responses.tools.toolset import Toolset
from tests.support.clock import LoopClock
from tests.support.generations import make_generation
from tests.support.inference import FakeInference, Step, call, chunk, finish, reasoning, text

Json = dict[str, Any]

CUT = Ending("incomplete", "max_output_tokens")
KILO = "x" * 1000
LOGPROBS = {"content": [{"token": "a", "bytes": [97], "logprob": -1.0, "top_logprobs": []}] * 10}
CITED = [
    {"type": "url_citation", "url_citation": {"url": "https://a.b", "title": KILO, "start_index": 0, "end_index": 1}}
]


class Endless(Sequence[Step]):
    """Repeat the steps for more chunks than any bound of these tests."""

    def __init__(self, *steps: Step, count: int = 20_000) -> None:
        self._steps = steps
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return self._steps[index % len(self._steps)]

    def __iter__(self) -> Iterator[Step]:
        for steps, _ in zip(repeat(self._steps), range(len(self)), strict=False):
            yield from steps


class RecordingEventBuffer(EventBuffer):
    """Keep all events in a list."""

    def __init__(self, kept: list[Json], transcript: Transcript) -> None:
        super().__init__(wanted=False, transcript=transcript)
        self._kept = kept

    def put(self, events: list[Json]) -> None:
        """Store the events."""
        self._kept += events
        super().put(events)


class Harness:
    """A generation over such a stream."""

    def __init__(
        self,
        *rounds: Any,
        profile: Profile | None = None,
        events: int = 10**6,
        size: int = 100_000,
        held: Reservation | None = None,
        **fields: Any,
    ) -> None:
        request = parse_create({"model": "m", "input": "hi", **fields})
        self.inference = FakeInference(*rounds)
        self.transcript = Transcript()
        self.events: list[Json] = []
        event_buffer = RecordingEventBuffer(self.events, self.transcript)
        toolset = Toolset(request, client_tools())
        self.assembler = Assembler(
            new_response(request, id="resp_1", created_at=1),
            toolset.kind_of,
            show_logprobs=request.wants_logprobs,
        )
        self.assembler.structured = request.wants_json
        self.generation = make_generation(
            request,
            request.input_items,
            profile=profile,
            toolset=toolset,
            assembler=self.assembler,
            inference=self.inference,
            event_buffer=event_buffer,
            limits=GenerationLimits(8, 100.0, 30.0, output_bytes=size, output_events=events),
            held=held,
        )

    @property
    def types(self) -> list[str]:
        """The types of the events."""
        return [event["type"] for event in self.events]


FUNCTIONS = [{"type": "function", "name": "f"}]


async def test_outputs_of_all_running_responses_of_user_are_bounded_together() -> None:
    """The first 256 KiB of each do not count. What a response holds is released when it ends."""
    admission = Admission(Quota("running outputs", 10**7, 10**6))
    other = admission.reserve(ANONYMOUS).add(100_000)
    endless = Harness(Endless(text(KILO)), size=10**8, held=admission.reserve(ANONYMOUS))
    assert await endless.generation.run() == CUT
    said = len(endless.assembler.response["output"][0]["content"][0]["text"])
    assert 500_000 < said < 1_300_000
    assert admission.held == other.units
    short = Harness([*[text(KILO)] * 200, finish()], size=10**8, held=admission.reserve(ANONYMOUS).add(900_000))
    assert (await short.generation.run()).status == "completed"


def growing(index: int) -> Step:
    """Return a fragment of a call's arguments."""
    return chunk({"tool_calls": [{"index": index, "function": {"arguments": KILO}}]})


@pytest.mark.parametrize(
    ("steps", "most"),
    [
        ([text(KILO)], 102),
        ([reasoning(KILO)], 102),
        ([chunk({"refusal": KILO})], 102),
        ([call("f", "1", KILO)], 102),
        ([text("a"), growing(0)], 204),
        ([text("x"), reasoning("x"), chunk({"refusal": KILO})], 303),
        ([chunk({"content": "a"}, logprobs=LOGPROBS)], 160),
        ([text("a"), chunk({"annotations": CITED})], 204),
        ([chunk({"content": [{"type": "text", "text": KILO}]})], 102),
        ([chunk({"thinking_blocks": [{"thinking": "", "signature": KILO}]})], 102),
    ],
    ids=[
        "text",
        "reasoning",
        "refusal",
        "calls",
        "arguments",
        "mixed",
        "logprobs",
        "annotations",
        "parts",
        "signature",
    ],
)
async def test_endless_stream_ends_incomplete_and_is_closed(steps: list[Step], most: int) -> None:
    harness = Harness(Endless(*steps), tools=FUNCTIONS, include=["message.output_text.logprobs"])
    assert await harness.generation.run() == CUT
    assert harness.inference.closed == 1
    # A stream with more chunks buffered is closed at most a thousand chunks later.
    assert harness.inference.sent <= most + 1001
    assert all(item.get("status") == "incomplete" for item in harness.assembler.response["output"][-1:])
    assert harness.types.count("response.output_item.added") == harness.types.count("response.output_item.done")
    assert len(harness.transcript.marks()) <= 6 * most


async def test_output_limit_covers_all_rounds() -> None:
    rounds = [[text(KILO * 30), call("h", str(number)), finish("tool_calls")] for number in range(6)]
    harness = Harness(*rounds, tools=FUNCTIONS)
    assert await harness.generation.run() == CUT
    assert len(harness.inference.requests) <= 4


async def test_stream_of_tiny_deltas_is_bounded_in_events() -> None:
    harness = Harness(Endless(text("a"), reasoning("b")), events=3000)
    assert await harness.generation.run() == CUT
    assert harness.assembler.numbered < 3200
    assert harness.types.count("response.output_item.added") == harness.types.count("response.output_item.done")


async def test_endless_calls_are_bounded_in_number() -> None:
    calls = [call("f", str(number), "{}", index=number) for number in range(1000)]
    harness = Harness(calls, tools=FUNCTIONS)
    assert await harness.generation.run() == CUT
    assert len(harness.assembler.response["output"]) < 20


async def test_endless_whitespace_before_json_is_bounded() -> None:
    harness = Harness(Endless(text("\n" * 1000)), text={"format": {"type": "json_object"}})
    assert await harness.generation.run() == CUT
    assert harness.inference.closed == 1


@pytest.mark.parametrize(
    "empty",
    [
        pytest.param(lambda: chunk({}), id="nothing"),
        pytest.param(lambda: chunk({"content": ""}), id="empty text", marks=pytest.mark.extended),
        pytest.param(lambda: chunk({"role": "assistant"}), id="role", marks=pytest.mark.extended),
        pytest.param(lambda: finish(tokens=1), id="usage", marks=pytest.mark.extended),
    ],
)
async def test_endless_empty_chunks_are_refused(empty: Callable[[], Step]) -> None:
    harness = Harness(Endless(empty(), count=110_000))
    with pytest.raises(ApiError, match="chunks without content") as raised:
        await harness.generation.run()
    assert raised.value.status == 502
    assert harness.inference.closed == 1
    assert harness.inference.sent <= 16 * 6_252


async def test_empty_chunks_do_not_reset_idle_timeout(loop_clock: LoopClock) -> None:
    filters = [asyncio.Event() for _ in range(8)]
    harness = Harness([step for gate in filters for step in (gate, chunk({}))])
    work = asyncio.create_task(harness.generation.run())
    for gate in filters:
        await loop_clock.passes(30.0)
        gate.set()
    await loop_clock.passes_until(work.done)
    with pytest.raises(ApiError, match="sent nothing for 100 seconds") as raised:
        await work
    assert raised.value.status == 504
    assert harness.inference.closed == 1


async def test_chunk_that_is_kept_restarts_idle_timeout(loop_clock: LoopClock) -> None:
    """It may be the whole text once more: nothing is passed on until the next chunk decides."""
    gates = [asyncio.Event() for _ in range(2)]
    same = chunk({"content": "la la"})
    harness = Harness([same, gates[0], same, gates[1], chunk({"content": " la"}), finish()])
    work = asyncio.create_task(harness.generation.run())
    await loop_clock.passes(0.0)
    for gate in gates:
        await loop_clock.passes(80.0)
        gate.set()
        await loop_clock.passes(0.0)
    await loop_clock.passes_until(work.done)
    assert (await work).status == "completed"


async def test_call_with_endless_name_is_refused() -> None:
    nameless = chunk({"tool_calls": [{"index": 0, "function": {"name": "x" * 100}}]})
    named = chunk({"tool_calls": [{"index": 0, "function": {"name": "y" * 100}}]})
    harness = Harness(Endless(nameless, named), tools=FUNCTIONS)
    with pytest.raises(ApiError, match="a name or an id of over 1024 characters"):
        await harness.generation.run()


async def test_call_with_long_id_is_refused() -> None:
    call = chunk({"tool_calls": [{"index": 0, "id": "x" * 1_025, "function": {"name": "f"}}]})
    with pytest.raises(ApiError, match="a name or an id of over 1024 characters"):
        await Harness(Endless(call), tools=FUNCTIONS).generation.run()


async def test_logprobs_of_incomplete_characters_are_bounded() -> None:
    half = {"content": [{"token": "?", "bytes": [0xF0], "logprob": -1.0, "top_logprobs": []}]}
    steps = [chunk({"content": ""}, logprobs=half) for _ in range(100)]
    whole = {"content": [{"token": "a", "bytes": [97], "logprob": -1.0, "top_logprobs": []}]}
    harness = Harness(
        [*steps, chunk({"content": "a"}, logprobs=whole), finish()], include=["message.output_text.logprobs"]
    )
    await harness.generation.run()
    [part] = harness.assembler.response["output"][0]["content"]
    assert len(part["logprobs"]) == 17


async def test_endless_compaction_fails_and_is_closed() -> None:
    items = [{"type": "message", "role": "user", "content": KILO}, {"type": "compaction_trigger"}]
    harness = Harness(Endless(reasoning(KILO)), input=items)
    with pytest.raises(ApiError, match="wrote no summary"):
        await harness.generation.run()
    assert harness.inference.closed == 1
    assert harness.inference.sent < 1200
