"""A chunk that is taken as JSON, since it only extends the last delta, makes the same events as one that is built."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest

from llama_stack_responses.chat.profile import InlineThinking, Profile
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.generation.event_buffer import EventBuffer
from llama_stack_responses.generation.loop import GenerationLimits
from llama_stack_responses.requests.request import parse_create
from llama_stack_responses.stream.assembler import Assembler
from llama_stack_responses.stream.response import new_response
from llama_stack_responses.stream.transcript import Transcript
from llama_stack_responses.tools.registry import client_tools
from llama_stack_responses.tools.toolset import Toolset
from tests.support.generations import make_generation
from tests.support.inference import FakeInference, Step, chunk, finish, text

type Json = dict[str, Any]

TOOLS: Final = [{"type": "function", "name": "f"}, {"type": "custom", "name": "c"}]
TOKEN: Final = {"token": "a", "bytes": [97], "logprob": -1.0, "top_logprobs": []}
_ID: Final = re.compile(r"\b(?:msg|rs|fc|ctc|call)_[0-9a-f]{8,}")


def arguments(output: str, index: int = 0, **more: Any) -> Json:
    return {"tool_calls": [{"index": index, "function": {"arguments": output}, **more}]}


def named(name: str, index: int = 0, output: str = "") -> Json:
    function = {"name": name, "arguments": output}
    return {"tool_calls": [{"index": index, "id": f"id_{index}", "type": "function", "function": function}]}


PLAIN: Final[Sequence[Json]] = (
    {"content": "word "},
    {"content": "größer 語 "},
    {"reasoning": "hm "},
    {"reasoning_content": "hm "},
    arguments("1"),
)
DELTAS: Final[Sequence[Json]] = (
    *PLAIN,
    {"content": "word ", "role": "assistant", "reasoning_content": None, "tool_calls": None},
    {"content": "\ud83d"},
    {"content": "\ude00 "},
    {"content": ""},
    {"content": "   "},
    {"content": "{"},
    {"content": "<think>"},
    {"content": "</think>"},
    {"content": "x" * 5000},
    {"content": "word ", "refusal": "no"},
    {"content": "word ", "reasoning": "hm "},
    {"reasoning_content": "hm ", "reasoning": "hm "},
    {"reasoning_details": [{"summary": "in short "}]},
    {"refusal": "I cannot "},
    {"annotations": [{"url_citation": {"url": "http://a", "title": "A", "start_index": 0, "end_index": 1}}]},
    named("f"),
    named("f", 1, '{"a": '),
    named("c", 2),
    named("hidden", 3),
    arguments('{"input": '),
    arguments('"a"'),
    arguments("}"),
    arguments("1", 1),
    arguments('"b', 2),
    arguments("1", 3),
    arguments("1", type="function", id=None),
    arguments("1", id="id_9"),
    arguments("1", extra_content={"google": {"thought_signature": "s"}}),
)
PIECES: Final = ('{"', 'input": ', '"a', " b", "\\n", " c", '"}', " ")
REQUESTS: Final[Sequence[Json]] = (
    {},
    {"text": {"format": {"type": "json_object"}}},
    {"include": ["message.output_text.logprobs"]},
    {"reasoning": {"summary": "auto"}},
)
PROFILES: Final = (Profile(), Profile(inline_thinking=InlineThinking(open="<think>", close="</think>")))

BEGUN: Final = "The beginning of an answer, with which chunks are compared. "


def some_chunk(chance: random.Random, likely: Json) -> Step:
    """Return a chunk: often the likely delta, sometimes with more fields."""
    choice: Json = {}
    more: Json = {}
    if chance.random() < 0.1:
        choice["logprobs"] = chance.choice([{"content": [TOKEN]}, None, {"content": None}])
    if chance.random() < 0.1:
        more["usage"] = chance.choice([None, {"prompt_tokens": 1, "completion_tokens": 2}])
    delta = likely if chance.random() < 0.9 else chance.choice(DELTAS)
    return chunk(delta, **choice, **more)


def some_calls(chance: random.Random) -> list[Step]:
    """Return two calls, of which the second one can begin before the first one ends."""
    first, second = chance.sample(range(10, 20), 2)
    begun = [named(chance.choice("fc"), first), *(arguments(piece, first) for piece in PIECES)]
    other = [named(chance.choice("fc"), second), *(arguments(piece, second) for piece in PIECES)]
    place = chance.randrange(1, len(begun) + 1)
    mixed = [*begun[:place], *other[: chance.randrange(8)], *begun[place:]]
    return [chunk(each) for each in mixed]


def some_stream(chance: random.Random) -> list[Step]:
    """Return a stream that mostly repeats itself for a while."""
    chunks: list[Step] = []
    for _ in range(chance.randrange(1, 6)):
        if chance.random() < 0.3:
            chunks += some_calls(chance)
        likely = chance.choice(PLAIN if chance.random() < 0.7 else DELTAS)
        chunks += [some_chunk(chance, likely) for _ in range(chance.randrange(1, 12))]
    return [*chunks, finish(chance.choice(["stop", "tool_calls", "length"]), 7)]


async def outcome_of(
    chunks: Sequence[Step], extends: Callable[[int], bool], profile: Profile, limits: GenerationLimits, **fields: Any
) -> tuple[str, int]:
    """Return everything that a stream makes, with its ids numbered, and how many chunks were taken as JSON."""
    request = parse_create({"model": "m", "input": "hi", "stream": True, "tools": TOOLS, **fields})
    inference = FakeInference(chunks, extends=extends)
    transcript = Transcript()
    event_buffer = EventBuffer(wanted=True, transcript=transcript, limit=100_000)
    toolset = Toolset(request, client_tools())
    assembler = Assembler(
        new_response(request, id="resp_1", created_at=1),
        toolset.kind_of,
        show_logprobs=request.wants_logprobs,
    )
    assembler.structured = "text" in fields
    generation = make_generation(
        request,
        request.input_items,
        profile=profile,
        toolset=toolset,
        assembler=assembler,
        inference=inference,
        event_buffer=event_buffer,
        limits=limits,
    )
    try:
        ended = str(await generation.run())
    except ApiError as error:
        ended = error.message
        event_buffer.put(assembler.close("incomplete"))
    state = json.dumps([event_buffer.ready(), assembler.response, transcript.marks(), ended])
    ids = {each: f"id{number}" for number, each in enumerate(dict.fromkeys(_ID.findall(state)))}
    return _ID.sub(lambda found: ids[found[0]], state), inference.extended


@pytest.mark.parametrize("seeds", [range(25), pytest.param(range(100), marks=pytest.mark.extended)], ids=str)
@pytest.mark.parametrize("profile", PROFILES, ids=["plain", "tags"])
@pytest.mark.parametrize("fields", REQUESTS, ids=["plain", "json", "logprobs", "summary"])
async def test_streams_make_same_events_as_json_and_as_chunks(fields: Json, profile: Profile, seeds: range) -> None:
    taken = 0
    for seed in seeds:
        chance = random.Random(seed)
        chunks = some_stream(chance)
        limits = GenerationLimits(
            1, 30, 30, output_bytes=chance.choice([60, 100_000, 100_000, 100_000]), output_events=100_000
        )
        built, none = await outcome_of(chunks, lambda _: False, profile, limits, **fields)
        for extends in (bool, lambda number: number % 3 > 0):
            extended, count = await outcome_of(chunks, extends, profile, limits, **fields)
            assert extended == built, f"seed {seed}"
            taken += count
        assert none == 0
    assert taken > len(seeds)


@pytest.mark.parametrize(
    ("deltas", "taken"),
    [
        ([{"content": BEGUN}, {"content": "b"}, {"content": "ç"}], 2),
        ([{"content": "a beginning"}, {"content": "b"}, {"content": "c"}], 2),
        ([{"content": BEGUN}, {"content": BEGUN}, {"content": "b"}], 0),
        ([{"role": "assistant"}, {"content": BEGUN}, {"role": "assistant", "content": "b", "tool_calls": None}], 1),
        ([{"reasoning_content": BEGUN}, {"reasoning_content": "b"}], 1),
        ([{"reasoning": BEGUN}, {"reasoning": "b"}, {"content": BEGUN}, {"content": "b"}], 2),
        ([named("f"), *map(arguments, ('{"a": ', "1", " ", "}"))], 2),
        ([named("f"), arguments('{"a": '), arguments("[", type="function", id=None), arguments("]")], 2),
        ([{"content": BEGUN}, {"content": "b", "refusal": "no"}, {"content": "c", "reasoning": "d"}], 0),
    ],
    ids=[
        "text",
        "beginning",
        "as long as the text",
        "role",
        "reasoning",
        "reasoning, text",
        "arguments",
        "nested arguments",
        "others",
    ],
)
async def test_chunk_that_only_extends_is_taken_as_json(deltas: Sequence[Json], taken: int) -> None:
    chunks = [*map(chunk, deltas), finish("tool_calls")]
    _, count = await outcome_of(chunks, bool, Profile(), GenerationLimits(1, 30, 30))
    assert count == taken


async def test_fragment_behind_complete_call_does_not_extend_words_that_call_held_back() -> None:
    deltas = [named("f"), arguments('{"a": '), {"content": "word "}, arguments("1}"), arguments(" "), {"content": "b"}]
    chunks = [*map(chunk, deltas), finish("tool_calls")]
    built, _ = await outcome_of(chunks, lambda _: False, Profile(), GenerationLimits(1, 30, 30))
    extended, _ = await outcome_of(chunks, bool, Profile(), GenerationLimits(1, 30, 30))
    assert extended == built


async def test_chunks_as_json_yield_to_other_streams_and_are_limited() -> None:
    limits = GenerationLimits(1, 30, 30, output_events=100)
    chunks = [*(text("word ") for _ in range(400)), finish()]
    state, count = await outcome_of(chunks, bool, Profile(), limits)
    assert 80 < count < 150, "every sixteenth chunk at full speed lets the others run"
    assert '"max_output_tokens"' in state


async def test_full_buffer_refuses_chunk_as_json() -> None:
    request = parse_create({"model": "m", "input": "hi", "stream": True})
    inference = FakeInference([text(BEGUN), *(text("word ") for _ in range(100)), finish()])
    event_buffer = EventBuffer(wanted=True, limit=8)
    assembler = Assembler(new_response(request, id="resp_1", created_at=1), lambda _: None)
    generation = make_generation(
        request,
        request.input_items,
        toolset=Toolset(request, {}),
        assembler=assembler,
        inference=inference,
        event_buffer=event_buffer,
        limits=GenerationLimits(1, 30, 30),
    )
    work = asyncio.create_task(generation.run())
    for _ in range(50):
        await asyncio.sleep(0)
    assert assembler.numbered < 12, "a reader that stalls stalls the stream"
    while not work.done():
        event_buffer.ready()
        await asyncio.sleep(0)
    assert assembler.response["output"][0]["content"][0]["text"] == BEGUN + "word " * 100
