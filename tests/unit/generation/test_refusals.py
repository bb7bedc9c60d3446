"""Chat requests that model servers refuse: changed, sent again, and what is learned from it."""

from __future__ import annotations

import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from llama_stack_responses.chat.adaptation.adaptation import Step
from llama_stack_responses.chat.adaptation.evidence import Evidence
from llama_stack_responses.chat.adaptation.refusal import Refusal, RefusedError
from llama_stack_responses.chat.inference import ModelServer
from llama_stack_responses.chat.profile import Parameters, Profile
from llama_stack_responses.core.errors import ApiError, ConnectionFailedError, TooLongError
from llama_stack_responses.generation.request_adaptation import ModelServers, OwnChanges
from llama_stack_responses.store.learned_adaptations import (
    LEARNED_SECONDS,
    MAX_EVIDENCE_BYTES,
    MAX_MODELS,
    MAX_OF_KIND,
    LearnedSteps,
)
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.records import Records
from tests.support.exported_telemetry import ExportedTelemetry
from tests.support.generation_harness import GenerationHarness
from tests.support.generations import model_servers
from tests.support.inference import FakeInference, Round, call, finish, text
from tests.support.one_pixel import ONE_PIXEL
from tests.support.records import WatchedRecords
from tests.support.waiting import turns

type Json = dict[str, Any]

ANSWER: Round = [text("Hello"), finish()]
KEY: Json = {"prompt_cache_key": "k"}


def refused(message: str, *places: str) -> RefusedError:
    """Return a model server's refusal."""
    return RefusedError(ApiError(400, message), Refusal(400, message, places=places))


NO_KEY = refused("property 'prompt_cache_key' is unsupported")


class Clock:
    """A clock that is set, in seconds since the epoch."""

    now = time.time()

    def __call__(self) -> float:
        """Return the time."""
        return self.now


class Server:
    """What one process knows of model servers."""

    def __init__(
        self, records: Records, *rounds: Round, version: str = "1", clock: Callable[[], float] = time.time
    ) -> None:
        self.inference = FakeInference(*rounds)
        self.inference.server = ModelServer("p", version=version)
        self.servers = model_servers(self.inference, learned=LearnedSteps(records), clock=clock)

    async def ask(self, **fields: Any) -> Json:
        """Return the response to a request."""
        harness = GenerationHarness(makers={}, inference=self.inference, servers=self.servers, **fields)
        await harness.end()
        return harness.assembler.response

    def sent(self, name: str) -> Sequence[bool]:
        """Return which of the chat requests had a parameter."""
        return [name in each for each in self.inference.requests]


async def test_refused_parameter_is_dropped_and_the_request_sent_again() -> None:
    harness = GenerationHarness(NO_KEY, ANSWER, makers={}, **KEY)
    events = await harness.end()
    assert ["prompt_cache_key" in each for each in harness.inference.requests] == [True, False]
    assert harness.assembler.response["prompt_cache_key"] is None
    assert [each["type"] for each in events].count("response.output_text.delta") == 1
    assert harness.generation.timeline.marks()["adaptations"] == ["drop prompt_cache_key"]


async def test_refusal_within_the_stream_before_any_output_is_answered_too() -> None:
    harness = GenerationHarness([text(""), NO_KEY], ANSWER, makers={}, **KEY)
    await harness.end()
    assert len(harness.inference.requests) == 2


async def test_refusal_after_output_fails_the_response() -> None:
    harness = GenerationHarness([text("Hel"), NO_KEY], ANSWER, makers={}, **KEY)
    with pytest.raises(RefusedError):
        await harness.end()
    assert len(harness.inference.requests) == 1


async def test_refusal_that_no_change_helps_against_is_raised_at_once() -> None:
    harness = GenerationHarness(refused("I do not like you."), ANSWER, makers={}, **KEY)
    with pytest.raises(RefusedError, match="do not like"):
        await harness.end()
    assert len(harness.inference.requests) == 1


async def test_server_that_refuses_everything_is_asked_a_few_times_only() -> None:
    names = [f"x_{n}" for n in range(100)]
    inference = FakeInference(*[refused(f"unknown parameter: '{name}'") for name in names])
    chat = {"model": "m", "messages": [], **dict.fromkeys(names, 1)}
    request = await model_servers(inference).prepare(chat)
    tries = 0
    while await request.adapt(Refusal(400, f"unknown parameter: '{names[tries]}'")):
        tries += 1
    assert tries == 16


@pytest.mark.parametrize("words", ["does not support 0.3", "does not support {}"])
async def test_parameter_of_which_the_named_value_is_refused_too_is_left_out(words: str) -> None:
    servers, chat = model_servers(FakeInference()), {"model": "m", "messages": [], "temperature": 0.3}

    def judge(sent: Json) -> str:
        said = words.format(sent.get("temperature"))
        text = f"Unsupported value: 'temperature' {said} with this model. Only the default (1) value is supported."
        return text if "temperature" in sent else ""

    sent = [await sent_by(servers, chat, judge) for _ in range(4)]
    assert [[each.get("temperature") for each in some] for some in sent] == [[0.3, 1, None]] * 2 + [[None]] * 2


async def test_learned_change_is_made_at_once_the_next_time() -> None:
    server = Server(MemoryRecords(), NO_KEY, ANSWER, ANSWER)
    await server.ask(**KEY)
    response = await server.ask(**KEY)
    assert server.sent("prompt_cache_key") == [True, False, False]
    assert response["prompt_cache_key"] is None


async def test_learned_change_leaves_other_models_alone() -> None:
    server = Server(MemoryRecords(), NO_KEY, ANSWER, ANSWER)
    await server.ask(**KEY)
    await server.ask(**KEY, model="other")
    assert server.sent("prompt_cache_key") == [True, False, True]


async def stored(records: Records) -> list[Any]:
    """Return what was learned by all servers, once background work is done."""
    await turns(20)
    return [learned.steps async for _, learned in LearnedSteps(records).all() if learned.steps]


async def test_learned_change_is_known_to_the_next_process() -> None:
    records = MemoryRecords()
    await Server(records, NO_KEY, ANSWER).ask(**KEY)
    [learned] = await stored(records)
    assert list(learned["m"]) == [Step("drop", "prompt_cache_key")]
    after = Server(records, ANSWER)
    await after.ask(**KEY)
    assert after.sent("prompt_cache_key") == [False]


async def test_server_that_runs_beside_learns_with_its_first_refusal() -> None:
    records = MemoryRecords()
    first, second = Server(records, NO_KEY, NO_USER, ANSWER), Server(records, ANSWER, NO_KEY, ANSWER)
    await second.ask()
    await first.ask(**KEY, user="u")
    await second.ask(**KEY, user="u")
    assert second.sent("prompt_cache_key") == [False, True, False]
    assert second.sent("user") == [False, True, False], "one refusal teaches all that the other server has learned"


NO_USER = refused("Unknown parameter: 'user'.", "user")


async def test_store_is_read_once_and_not_for_each_request() -> None:
    calls: list[str] = []

    async def note(name: str) -> None:
        calls.append(name)

    server = Server(WatchedRecords(MemoryRecords(), before=note), *[ANSWER] * 5)
    for _ in range(5):
        await server.ask(**KEY)
    assert calls.count("get_many") == 1


async def test_learned_change_is_forgotten_after_a_day() -> None:
    clock = Clock()
    server = Server(MemoryRecords(clock=clock), NO_KEY, ANSWER, NO_KEY, ANSWER, clock=clock)
    await server.ask(**KEY)
    clock.now += LEARNED_SECONDS + 1
    await server.ask(**KEY)
    assert server.sent("prompt_cache_key") == [True, False, True, False]


async def test_learned_change_is_forgotten_with_another_configuration_of_the_provider() -> None:
    records = MemoryRecords()
    await Server(records, NO_KEY, ANSWER).ask(**KEY)
    changed = Server(records, ANSWER, version="2")
    await changed.ask(**KEY)
    assert changed.sent("prompt_cache_key") == [True]


async def test_change_is_not_learned_if_the_changed_request_was_refused_too() -> None:
    records = MemoryRecords()
    server = Server(records, NO_KEY, refused("Out of credit."), ANSWER)
    with pytest.raises(RefusedError):
        await server.ask(**KEY)
    await server.ask(**KEY)
    assert server.sent("prompt_cache_key") == [True, False, True]
    assert await stored(records) == []


def look(name: bytes) -> list[Json]:
    """Return the input with an image that has this name."""
    head, _, data = ONE_PIXEL.partition(",")
    named = b64encode(b64decode(data) + name).decode()
    return [{"role": "user", "content": [{"type": "input_image", "image_url": f"{head},{named}"}]}]


@pytest.mark.parametrize("words", ["This model does not support images", "content: str type expected"])
async def test_images_are_kept_from_a_model_once_two_were_refused(words: str) -> None:
    """One image may be broken, whatever the server says of it, and others must not lose theirs."""
    server = Server(MemoryRecords(), *[refused(words), ANSWER] * 2, ANSWER, ANSWER)
    for name in (b"a", b"b", b"c", b"d"):
        await server.ask(input=look(name))
    sent = ["image_url" in str(each["messages"]) for each in server.inference.requests]
    assert sent == [True, False, True, False, False, False]


async def test_image_that_was_refused_twice_is_not_sent_again_and_others_are() -> None:
    """A thread has its images in each turn."""
    no = refused("This model does not support images")
    server = Server(MemoryRecords(), *[no, ANSWER] * 2, *[ANSWER] * 4)
    for names in ((b"a",), (b"a",), (b"a",), (b"a", b"b"), (b"b",)):
        await server.ask(input=[look(name)[0] for name in names])
    sent = ["image_url" in str(each["messages"]) for each in server.inference.requests]
    assert sent == [True, False, True, False, False, False, True]


async def test_image_that_a_server_takes_between_two_that_it_refuses_keeps_images_with_the_model() -> None:
    no = refused("This model does not support images")
    server = Server(MemoryRecords(), no, ANSWER, ANSWER, *[no, ANSWER] * 3, ANSWER)
    for name in (b"a", b"b", b"c", b"d", b"e", b"f"):
        await server.ask(input=look(name))
    sent = ["image_url" in str(each["messages"]) for each in server.inference.requests]
    assert sent == [True, False, True, *[True, False] * 3, True]


async def test_context_that_a_server_names_is_not_shorter_than_what_it_took() -> None:
    server = Server(MemoryRecords(), [text("Hello"), finish(read=5_000)])
    await server.ask()
    await server.servers.learn_context_length("m", 4_000, agrees=True)
    assert await server.servers.context_length("m", Profile()) != 4_000
    await server.servers.learn_context_length("m", 6_000, agrees=True)
    assert await server.servers.context_length("m", Profile()) == 6_000


async def test_context_that_a_server_names_is_forgotten_once_it_takes_a_longer_request() -> None:
    records = MemoryRecords()
    server = Server(records, [text("Hello"), finish(read=5_000)])
    await server.servers.learn_context_length("m", 4_000, agrees=True)
    await turns(20)
    await server.ask()
    assert await server.servers.context_length("m", Profile()) is None
    await turns(20)
    assert await Server(records).servers.context_length("m", Profile()) is None


async def test_number_that_no_count_agrees_with_is_a_context_once_it_was_named_twice() -> None:
    servers = Server(MemoryRecords()).servers
    lengths = list[int | None]()
    for named in (4_000, 5_000, 4_000, 4_000):
        await servers.learn_context_length("m", named, agrees=False)
        lengths.append(await servers.context_length("m", Profile()))
    assert lengths == [None, None, None, 4_000]


NO_OBJECT = refused("'response_format.type' must be 'json_schema' or 'text'")
NO_LONG_LIMIT = refused("Unsupported parameter: 'max_completion_tokens'")
NO_SHORT_LIMIT = refused("Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead.")


def efforts(*known: str) -> RefusedError:
    """Return the refusal of a server that knows these efforts."""
    return refused(f"reasoning_effort: supported values are {list(known)}")


async def test_learned_change_that_the_server_refuses_is_forgotten() -> None:
    records = MemoryRecords()
    server = Server(records, *[NO_SCHEMA, OSLO] * 2, NO_OBJECT, OSLO, OSLO)
    for _ in range(4):
        assert shown(await server.ask(**TEXT)) == '{"city": "Oslo"}'
    kinds = ["json_schema", "json_object"]
    assert formats(server) == [*kinds * 2, "json_object", "json_schema", "json_schema"]
    assert await stored(records) == []
    after = Server(records, OSLO)
    await after.ask(**TEXT)
    assert formats(after) == ["json_schema"]


class ChangingServer(FakeInference):
    """A model server that refuses what it does not take at the time.

    Attributes:
        judge: returns the round that answers a request.
    """

    judge: Callable[[Json], Round]

    async def open_stream(self, request: Json, *args: Any) -> Any:
        """Answer a request."""
        self._rounds = [self.judge(request)]
        return await super().open_stream(request, *args)


async def asked_in_turn(
    fields: Json, judges: Sequence[Callable[[Json], Round]], learned: LearnedSteps | None = None
) -> list[list[Json]]:
    """Return the chat requests of each of several equal requests, for which the model server judges differently."""
    inference, sent = ChangingServer(), list[list[Json]]()
    servers = model_servers(inference, learned=learned)
    for judge in judges:
        before = len(inference.requests)
        inference.judge = judge
        await GenerationHarness(makers={}, inference=inference, servers=servers, **fields).end()
        sent.append(inference.requests[before:])
    return sent


def takes_limit(name: str, refusal: RefusedError) -> Callable[[Json], Round]:
    """Return the judge of a server that takes the limit on tokens by one name alone."""
    return lambda chat: ANSWER if name in chat else refusal


async def test_limit_that_a_server_renames_again_and_again_is_always_taken() -> None:
    short, long = takes_limit("max_tokens", NO_LONG_LIMIT), takes_limit("max_completion_tokens", NO_SHORT_LIMIT)
    sent = await asked_in_turn({"max_output_tokens": 60}, [short, long] * 4)
    assert ["max_tokens" in each[-1] for each in sent] == [True, False] * 4
    assert max(map(len, sent)) <= 4


async def test_effort_of_a_server_that_changes_its_efforts_is_always_taken() -> None:
    def knows(*known: str) -> Callable[[Json], Round]:
        return lambda chat: ANSWER if chat["reasoning_effort"] in known else efforts(*known)

    judges = [knows(*some.split()) for some in ("low medium", "low", "low", "low", "high", *["low medium"] * 3)]
    sent = await asked_in_turn({"reasoning": {"effort": "high"}}, judges)
    efforts_sent = [each[-1]["reasoning_effort"] for each in sent]
    assert efforts_sent == ["medium", "low", "low", "low", "high", "medium", "medium", "medium"]
    assert len(sent[-1]) == 1, "what was learned anew is kept"


async def test_change_of_a_profile_is_never_forgotten() -> None:
    settled = Profile(parameters=Parameters(rename={"max_completion_tokens": "max_tokens"}))
    inference = FakeInference(NO_SHORT_LIMIT, NO_LONG_LIMIT, NO_SHORT_LIMIT)
    servers = model_servers(inference, settled)
    with pytest.raises(ApiError):
        await GenerationHarness(makers={}, inference=inference, servers=servers, max_output_tokens=60).end()
    assert len(inference.requests) <= 3


async def test_value_that_is_out_of_bounds_is_refused_once_whatever_was_learned() -> None:
    server = Server(MemoryRecords(), NO_LONG_LIMIT, ANSWER, refused("max_tokens is too large: at most 4096."), ANSWER)
    await server.ask(max_output_tokens=60)
    with pytest.raises(ApiError, match="too large"):
        await server.ask(max_output_tokens=60_000)
    assert len(server.inference.requests) == 3


HINTS: Json = {
    "user": "u",
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "safety_identifier": "s",
    "service_tier": "flex",
    "text": {"verbosity": "low"},
    "parallel_tool_calls": False,
}


async def test_hints_that_a_server_refuses_one_at_a_time_are_all_dropped() -> None:
    names = [*(name for name in HINTS if name not in ("text", "parallel_tool_calls")), "verbosity", "stream_options"]
    refusals = [refused(f"unknown field `{name}`, expected one of `model`, `messages`") for name in names]
    server = Server(MemoryRecords(), *refusals, ANSWER, ANSWER)
    for _ in range(2):
        await server.ask(**HINTS)
    assert len(names) == 7
    assert len(server.inference.requests) == len(names) + 2
    assert not set(names) & server.inference.requests[-1].keys()


async def test_request_goes_on_from_what_was_learned_when_the_limit_of_changes_was_reached() -> None:
    names = [f"x_{n}" for n in range(19)]
    inference = FakeInference()
    servers = model_servers(inference)
    chat = {"model": "m", "messages": [], **dict.fromkeys(names, 1)}
    for _ in range(2):
        request, left = await servers.prepare(chat), iter(names)
        while await request.adapt(Refusal(400, f"unknown parameter: '{next(left)}'")):
            pass
    after = (await servers.prepare(chat)).chat
    assert after is not None
    assert [name for name in names if name in after] == names[16:]


async def test_store_that_is_away_costs_no_request() -> None:
    records = WatchedRecords(MemoryRecords())
    records.away = True
    server = Server(records, NO_KEY, ANSWER, ANSWER)
    await server.ask(**KEY)
    await server.ask(**KEY)
    assert server.sent("prompt_cache_key") == [True, False, False]


async def test_learned_models_of_one_server_are_bounded() -> None:
    learned = LearnedSteps(MemoryRecords())
    for number in range(MAX_MODELS + 5):
        await learned.add("s", "p", f"m{number}", [Step("drop", "user")])
    known = (await learned.of("s")).steps
    assert len(known) == MAX_MODELS
    assert f"m{MAX_MODELS + 4}" in known


async def test_changes_after_refusals_are_counted_by_provider_and_kind() -> None:
    watched = ExportedTelemetry()
    inference = FakeInference(NO_KEY, NO_USER, ANSWER, ANSWER)
    servers = model_servers(inference, telemetry=watched.telemetry)
    for _ in range(2):
        await GenerationHarness(makers={}, inference=inference, servers=servers, user="u", **KEY).end()
    labels = {"gen_ai.provider.name": "fake", "llama_stack_responses.adaptation": "drop"}
    assert watched.points()["llama_stack_responses.model_server.adaptations"] == [(labels, 1, 2)]


async def test_profile_changes_requests_without_a_refusal() -> None:
    parameters = Parameters(
        drop=["prompt_cache_key"],
        rename={"max_completion_tokens": "max_tokens"},
        map={"reasoning_effort": {"minimal": "low"}},
        add={"top_k": 7, "temperature": 0.5},
    )
    inference = FakeInference(ANSWER)
    servers: ModelServers = model_servers(inference, Profile(parameters=parameters))
    fields: dict[str, Any] = {**KEY, "max_output_tokens": 16, "reasoning": {"effort": "minimal"}}
    harness = GenerationHarness(makers={}, inference=inference, servers=servers, **fields)
    await harness.end()
    [chat] = inference.requests
    assert "prompt_cache_key" not in chat
    assert (chat["max_tokens"], chat["reasoning_effort"], chat["top_k"]) == (16, "low", 7)
    assert harness.assembler.response["reasoning"]["effort"] == "low"
    assert harness.assembler.response["temperature"] == 0.5


# Demands that a model server does not enforce

CITY: Json = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TEXT: Json = {"text": {"format": {"type": "json_schema", "name": "n", "schema": CITY, "strict": False}}}
NO_SCHEMA = refused("This response_format type is unavailable now")
OSLO: Round = [text('{"city":'), text(' "Oslo"}'), finish(tokens=5)]
PROSE: Round = [text("It is Oslo."), finish(tokens=5)]


def shown(response: Json) -> str:
    """Return the text of a response."""
    return "".join(part["text"] for item in response["output"] for part in item.get("content", ()))


async def test_schema_that_is_refused_is_asked_for_in_words_and_checked() -> None:
    server = Server(MemoryRecords(), *[NO_SCHEMA, OSLO] * 2, OSLO)
    for _ in range(3):
        assert shown(await server.ask(**TEXT)) == '{"city": "Oslo"}'
    assert formats(server) == [*["json_schema", "json_object"] * 2, "json_object"]


BAD_SCHEMA = refused("Invalid schema for response_format 'n': 'pattern' is not permitted.")
OTHER: Json = {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}}}


def formats(server: Server) -> list[str]:
    """Return the type of the format of each chat request."""
    return [each["response_format"]["type"] for each in server.inference.requests]


@pytest.mark.parametrize("refusal", [NO_SCHEMA, BAD_SCHEMA], ids=["all schemas", "one schema"])
async def test_refused_schema_is_remembered_by_other_processes_for_a_day(refusal: RefusedError) -> None:
    clock = Clock()
    records = MemoryRecords(clock=clock)
    first = Server(records, *[refusal, OSLO] * 3, clock=clock)
    beside = Server(records, ANSWER, refusal, OSLO, OSLO, clock=clock)
    await beside.ask()
    for _ in range(2):
        await first.ask(**TEXT)
    assert await changes_stored(records) == ["schema_in_words"]
    later = Server(records, OSLO, clock=clock)
    await later.ask(**TEXT)
    assert formats(later) == ["json_object"]
    for _ in range(2):
        await beside.ask(**TEXT)
    assert [each.get("response_format", {}).get("type") for each in beside.inference.requests] == [
        None,
        "json_schema",
        "json_object",
        "json_object",
    ]
    clock.now += LEARNED_SECONDS + 1
    await first.ask(**TEXT)
    assert formats(first) == ["json_schema", "json_object"] * 3


async def changes_stored(records: Records) -> list[str]:
    """Return the kinds of the changes of the model's requests that the store has."""
    await turns(20)
    [learned] = [learned async for _, learned in LearnedSteps(records).all()]
    return [step.kind for step in learned.changes("m", 0.0)]


async def test_refusal_of_one_schema_leaves_other_schemas_alone() -> None:
    server = Server(MemoryRecords(), *[BAD_SCHEMA, OSLO] * 2, OSLO, OSLO)
    for each in (TEXT, TEXT, OTHER, TEXT):
        await server.ask(**each)
    assert formats(server) == [*["json_schema", "json_object"] * 2, "json_schema", "json_object"]


async def test_refused_schema_is_remembered_even_if_no_answer_fits_it() -> None:
    records = MemoryRecords()
    server = Server(records, *[NO_SCHEMA, PROSE, PROSE, PROSE] * 2, OSLO)
    for _ in range(2):
        with pytest.raises(ApiError, match="not valid against the schema"):
            await server.ask(**TEXT)
    await server.ask(**TEXT)
    assert formats(server) == [*["json_schema", *["json_object"] * 3] * 2, "json_object"]


async def test_refused_schemas_push_out_no_other_change() -> None:
    learned = LearnedSteps(MemoryRecords())
    await learned.add("s", "p", "m", [Step("drop", "user")])
    for number in range(MAX_OF_KIND + 3):
        await learned.add("s", "p", "m", [Step("schema_in_words", str(number))])
    [of_model] = (await learned.of("s")).steps.values()
    assert list(of_model) == [
        Step("drop", "user"),
        *(Step("schema_in_words", str(n)) for n in range(3, MAX_OF_KIND + 3)),
    ]


async def test_invalid_answer_is_dropped_and_asked_for_again() -> None:
    harness = GenerationHarness(NO_SCHEMA, PROSE, OSLO, makers={}, **TEXT)
    events = await harness.end()
    assert "".join(each["delta"] for each in events if each["type"].endswith("text.delta")) == '{"city": "Oslo"}'
    *_, said, asked = harness.inference.requests[-1]["messages"]
    assert said == {"role": "assistant", "content": "It is Oslo."}
    assert "it is not JSON" in asked["content"]
    assert harness.assembler.response["usage"]["output_tokens"] == 10, "the dropped answer was paid for"


async def test_answer_that_stays_invalid_fails_the_response_after_two_repairs() -> None:
    harness = GenerationHarness(NO_SCHEMA, PROSE, PROSE, PROSE, OSLO, makers={}, **TEXT)
    with pytest.raises(ApiError, match=r"not valid against the schema of 'text.format' \(it is not JSON"):
        await harness.end()
    assert len(harness.inference.requests) == 4
    assert harness.assembler.response["output"] == []


async def test_answer_that_is_cut_off_is_not_checked() -> None:
    harness = GenerationHarness(NO_SCHEMA, [text('{"ci'), finish("length")], makers={}, **TEXT)
    assert (await harness.generation.run()).status == "incomplete"
    assert shown(harness.assembler.response) == '{"ci'


TOOLS: Json = {"tools": [{"type": "function", "name": "weather", "parameters": {}}], "tool_choice": "required"}
NO_CHOICE = refused("Thinking mode does not support this tool_choice")
CALL: list[Any] = [call("weather", "c1"), finish("tool_calls")]


async def test_required_call_that_is_refused_is_asked_for_once_more() -> None:
    harness = GenerationHarness(NO_CHOICE, PROSE, CALL, makers={}, **TOOLS)
    events = await harness.end()
    assert [item["type"] for item in harness.assembler.response["output"]] == ["function_call"]
    assert not [each for each in events if each["type"].endswith("text.delta")]
    assert ["tool_choice" in each for each in harness.inference.requests] == [True, False, False]


async def test_text_beside_a_required_call_is_kept() -> None:
    harness = GenerationHarness(NO_CHOICE, [text("Let me see."), *CALL], makers={}, **TOOLS)
    await harness.end()
    assert [item["type"] for item in harness.assembler.response["output"]] == ["message", "function_call"]


async def test_required_call_that_never_comes_fails_the_response() -> None:
    harness = GenerationHarness(NO_CHOICE, PROSE, PROSE, CALL, makers={}, **TOOLS)
    with pytest.raises(ApiError, match="did not call a tool"):
        await harness.end()
    assert len(harness.inference.requests) == 3


DATED: Json = {"type": "object", "properties": {"day": {"type": "string", "format": "date", "pattern": "^2"}}}
GRAMMAR = refused("Failed to initialize samplers: failed to parse grammar")


async def test_simplified_schemas_of_functions_are_remembered_like_other_changes() -> None:
    """In the store, for the next process, for one that runs beside, and for a day."""
    clock = Clock()
    records = MemoryRecords(clock=clock)
    tools: Json = {"tools": [{"type": "function", "name": "weather", "parameters": DATED}]}
    first = Server(records, *[GRAMMAR, ANSWER] * 2, ANSWER, GRAMMAR, ANSWER, clock=clock)
    for _ in range(3):
        await first.ask(**tools)
    assert await changes_stored(records) == ["plain_schemas"]
    sibling = Server(records, ANSWER, clock=clock)
    await sibling.ask(**tools)
    clock.now += LEARNED_SECONDS + 1
    await first.ask(**tools)
    schemas = [
        [each["tools"][0]["function"]["parameters"] == DATED for each in server.inference.requests]
        for server in (first, sibling)
    ]
    assert schemas == [[True, False, True, False, False, True, False], [False]]


# What servers report of the sizes of prompts


async def corrections(records: Records) -> list[dict[str, float]]:
    """Return the stored corrections of all servers, once background work is done."""
    await turns(20)
    found = [learned.corrections async for _, learned in LearnedSteps(records).all()]
    return [{model: value for model, (value, _) in each.items()} for each in found]


async def test_correction_of_estimates_is_shared_with_other_processes_for_a_day() -> None:
    clock = Clock()
    records = MemoryRecords(clock=clock)
    first, beside = (Server(records, clock=clock).servers for _ in range(2))
    assert [await each.correction("m") for each in (first, beside)] == [1, 1]
    first.correct("m", 3.0)
    assert await corrections(records) == [{"m": 3.0}]
    assert await Server(records, clock=clock).servers.correction("m") == 3
    assert await beside.correction("m") == 1, "no request reads the store"
    clock.now += 301
    assert await beside.correction("m") == 3, "but from time to time"
    clock.now += LEARNED_SECONDS + 1
    assert await beside.correction("m") == 1


async def test_correction_is_stored_only_if_it_changes_and_seldom() -> None:
    clock = Clock()
    writes: list[str] = []

    async def note(name: str) -> None:
        writes.extend([name] if name == "commit" else [])

    records = WatchedRecords(MemoryRecords(clock=clock), before=note)
    servers = Server(records, clock=clock).servers
    counts = list[int]()
    for reported, seconds in [(1.05, 0), (3.0, 0), (3.1, 0), (2.0, 0), (2.0, 301), (1.95, 301)]:
        clock.now += seconds
        await servers.correction("m")
        servers.correct("m", reported)
        assert await servers.correction("m") == reported
        await turns(20)
        counts.append(len(writes))
    assert counts == [0, 1, 1, 1, 2, 2]
    assert await corrections(records) == [{"m": 2.0}]


async def test_correction_and_changes_of_a_model_are_kept_side_by_side() -> None:
    records = MemoryRecords()
    server = Server(records, NO_KEY, ANSWER)
    await server.ask(**KEY)
    await stored(records)
    server.servers.correct("m", 2.5)
    assert await corrections(records) == [{"m": 2.5}]
    after = Server(records, ANSWER)
    await after.ask(**KEY)
    assert after.sent("prompt_cache_key") == [False]
    assert await after.servers.correction("m") == 2.5


async def test_correction_costs_no_request_while_the_store_is_away() -> None:
    records = WatchedRecords(MemoryRecords())
    records.away = True
    servers = Server(records).servers
    assert await servers.correction("m") == 1
    servers.correct("m", 2.0)
    await turns(20)
    assert await servers.correction("m") == 2


# Learned context lengths


async def test_learned_context_length_expires_after_hour() -> None:
    clock = Clock()
    inference = FakeInference()
    servers = model_servers(inference, clock=clock)
    profile = Profile(context_length=8_000)
    assert await servers.context_length("m", profile) == 8_000
    await servers.learn_context_length("m", 4_000, agrees=True)
    assert await servers.context_length("m", profile) == 4_000
    assert await servers.context_length("other", Profile()) is None
    clock.now += 3_601
    assert await servers.context_length("m", profile) == 8_000
    inference.length = 2_000
    assert await servers.context_length("m", Profile()) == 2_000


async def test_learned_context_length_reaches_other_processes_for_an_hour() -> None:
    clock = Clock()
    records = MemoryRecords(clock=clock)
    first, beside = (model_servers(FakeInference(), learned=LearnedSteps(records), clock=clock) for _ in range(2))
    assert await beside.context_length("m", Profile()) is None
    await first.learn_context_length("m", 4_000, agrees=True)
    first.correct("m", 2.0)
    await turns(20)
    later = model_servers(FakeInference(), learned=LearnedSteps(records), clock=clock)
    assert await later.context_length("m", Profile()) == 4_000
    clock.now += 301
    assert await beside.context_length("m", Profile()) == 4_000
    clock.now += 3_301
    assert await beside.context_length("m", Profile()) is None


# Evidence for changes and against them

COOL: Json = {"temperature": 0.5}
NO_TEMPERATURE = refused("Unsupported parameter: 'temperature' is not supported with this model.")


def takes_without(refusal: RefusedError, *names: str) -> Callable[[Json], Round]:
    """Return the judge of a server that refuses requests with all of these parameters."""
    return lambda chat: refusal if chat.keys() >= set(names) else ANSWER


PASSING = (
    "streaming is not supported: upstream closed",
    "Model is loading, streaming not yet supported",
    "reasoning_effort: GPU pool for high effort unavailable",
    "You have exceeded your spend limit; reasoning_effort is not permitted",
    "strict mode is unavailable while the grammar cache is rebuilding",
    "parallel_tool_calls rejected: concurrency limit reached",
    "temperature sensor unexpected value",
    "Safety filter: system message not allowed",
    # Of the same manner
    "Streaming is not supported during failover",
    "the stream is disabled until the queue has drained",
    "system messages are not supported by the standby replica",
    "reasoning_effort is not available: node draining",
    "temperature is not supported in degraded mode",
    "top_p is unsupported on the canary",
    "parallel_tool_calls is not allowed before your invoice is paid",
    "tools.0.function.strict is not permitted while weights are swapped",
    "tool_choice is not supported by the cached plan",
    "The response_format is unavailable: compiler cold",
    "images are not supported: encoder restarted",
    "This model does not support images at 3 am",
    "temperature is disabled by the incident switch",
    "developer messages are not supported until the rollout is done",
)


async def sent_by(servers: ModelServers, chat: Json, judge: Callable[[Json], str]) -> list[Json]:
    """Return what a model server gets for a chat request of a response of its own; `judge` returns why it refuses."""
    request, sent = await servers.prepare(chat), list[Json]()
    while request.chat is not None:
        sent.append(request.chat)
        if not (words := judge(request.chat)):
            request.begun()
            break
        if not await request.adapt(Refusal(400, words)):
            break
    return sent


FORM: Json = {"type": "json_schema", "json_schema": {"name": "n", "schema": CITY, "strict": True}}
TOOL: Json = {"type": "function", "function": {"name": "f", "parameters": CITY, "strict": True}}
HI: list[Json] = [{"role": "user", "content": "Hi"}]


def seeing(name: str) -> list[Json]:
    """Return messages with an image of this name."""
    return [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": name}}]}]


EVERYTHING: Json = {
    "model": "m",
    "messages": [*({"role": role, "content": "Be kind."} for role in ("system", "developer")), *seeing("a")],
    "response_format": FORM,
    "tools": [TOOL],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "temperature": 0.3,
    "top_p": 0.4,
    "reasoning_effort": "low",
    "stream": True,
}


@pytest.mark.parametrize("words", PASSING)
async def test_state_of_a_server_that_passes_takes_nothing_from_the_next_request(words: str) -> None:
    """Whatever its words are: the server refuses once, and then takes all."""
    servers, refusals = model_servers(FakeInference()), [words]
    await sent_by(servers, EVERYTHING, lambda _: refusals.pop() if refusals else "")
    assert await sent_by(servers, EVERYTHING, lambda _: "") == [EVERYTHING]


@pytest.mark.parametrize("words", PASSING)
async def test_state_of_a_server_takes_something_for_a_minute_even_if_two_requests_were_refused(words: str) -> None:
    clock = Clock()
    servers, refusals = model_servers(FakeInference(), clock=clock), list[str]()
    for _ in range(2):
        refusals.append(words)
        await sent_by(servers, EVERYTHING, lambda _: refusals.pop() if refusals else "")
    clock.now += 60
    sent = [await sent_by(servers, EVERYTHING, lambda _: "") for _ in range(8)]
    assert sent[-1] == [EVERYTHING]


PLAIN: Json = {"model": "m", "messages": HI}
EFFORT: Json = {"reasoning_effort": "low"}
CHOICE: Json = {"tools": [TOOL], "tool_choice": "required"}
SEEN: Json = {"messages": seeing("a")}
COMBINED: tuple[tuple[str, Json, Json], ...] = (
    # Words, what a request has beside the part, the part
    ("Structured outputs aren't available for requests containing images", SEEN, {"response_format": FORM}),
    ("guided_json is not supported for requests that use tools", {"tools": [TOOL]}, {"response_format": FORM}),
    ("reasoning_effort is not supported by tools of type function", {"tools": [TOOL]}, EFFORT),
    ("system messages are not supported for image inputs", SEEN, {"system": "Be kind."}),
    ("temperature is not supported with reasoning models", EFFORT, {"temperature": 0.3}),
    ("Kimi: tool_choice 'required' is incompatible with thinking enabled", EFFORT, CHOICE),
    # Of the same manner
    ("top_p: unsupported as soon as an effort is there", EFFORT, {"top_p": 0.3}),
    ("response_format is unsupported next to pictures", SEEN, {"response_format": FORM}),
    ("parallel_tool_calls: not accepted by thinkers", EFFORT, {"tools": [TOOL], "parallel_tool_calls": False}),
    ("logprobs is not supported once tools are declared", {"tools": [TOOL]}, {"logprobs": True}),
    ("presence_penalty unsupported given a response format", {"response_format": FORM}, {"presence_penalty": 0.5}),
    ("temperature is not allowed amid tool use", {"tools": [TOOL]}, {"temperature": 0.3}),
)


@pytest.mark.parametrize(("words", "beside", "part"), COMBINED, ids=[each[0] for each in COMBINED])
async def test_two_parts_that_are_refused_together_are_remembered_together(
    words: str, beside: Json, part: Json
) -> None:
    """Each of them alone is sent, and a thread with both pays twice, not in each turn."""
    servers, both = model_servers(FakeInference()), whole(PLAIN | beside, part)
    one, other = whole(PLAIN, part), PLAIN | beside

    def judge(chat: Json) -> str:
        return words if chat == both else ""

    counts = list[int]()
    for _ in range(4):
        counts.append(len(await sent_by(servers, both, judge)))
        assert await sent_by(servers, one, judge) == [one]
        assert await sent_by(servers, other, judge) == [other]
    assert counts == [2, 2, 1, 1]


def whole(chat: Json, part: Json) -> Json:
    """Return a chat request with another part."""
    if "system" in part:
        return chat | {"messages": [{"role": "system", "content": part["system"]}, *chat["messages"]]}
    return chat | part


async def test_parameter_that_is_always_refused_costs_a_refused_request_an_hour() -> None:
    clock, records = Clock(), None
    records = MemoryRecords(clock=clock)
    inference = ChangingServer()
    inference.judge = takes_without(NO_TEMPERATURE, "temperature")
    servers = model_servers(inference, learned=LearnedSteps(records), clock=clock)
    while clock.now < Clock.now + LEARNED_SECONDS - 1_000:
        await GenerationHarness(makers={}, inference=inference, servers=servers, **COOL).end()
        clock.now += 500
    assert 20 < sum("temperature" in each for each in inference.requests) < 30


async def test_server_that_takes_again_what_it_has_refused_gets_it_after_a_minute() -> None:
    clock = Clock()
    server = Server(MemoryRecords(clock=clock), *[NO_TEMPERATURE, ANSWER] * 2, *[ANSWER] * 4, clock=clock)
    for seconds in (0, 0, 1, 60, 0, 0):
        clock.now += seconds
        await server.ask(**COOL)
    assert server.sent("temperature") == [True, False, True, False, False, True, True, True]


@pytest.mark.parametrize(
    "failure",
    [
        refused("I do not like you."),
        refused("Unsupported parameter: 'top_p'"),
        ApiError(429, "Rate limit reached"),
        ApiError(500, "Internal server error"),
        ApiError(503, "no worker for that"),
        ConnectionFailedError("closed"),
        TooLongError("The maximum context length is 9 tokens."),
        [],
        [text(""), ApiError(502, "Bad gateway")],
    ],
    ids=lambda each: type(each).__name__,
)
async def test_request_that_tries_a_change_anew_gets_it_after_any_failure(failure: Round) -> None:
    clock = Clock()
    rounds = (*[NO_TEMPERATURE, ANSWER] * 2, failure, *[ANSWER] * 4)
    server = Server(MemoryRecords(clock=clock), *rounds, clock=clock)
    for seconds in (0, 0, 61, 1, 70, 600):
        clock.now += seconds
        assert (await server.ask(**COOL))["status"] == "completed"
    expected = [True, False, True, False, True, False, False, False, True]
    assert server.sent("temperature") == expected, "it is tried again after ten minutes, and is taken"


async def test_failure_of_a_request_that_tries_nothing_is_not_asked_again() -> None:
    clock = Clock()
    server = Server(MemoryRecords(clock=clock), *[NO_TEMPERATURE, ANSWER] * 2, ApiError(500, "oh"), clock=clock)
    for _ in range(2):
        await server.ask(**COOL)
    with pytest.raises(ApiError, match="oh"):
        await server.ask(**COOL)


async def test_response_with_several_requests_pays_and_counts_once() -> None:
    inference = FakeInference(NO_TEMPERATURE, *[ANSWER] * 5)
    servers = model_servers(inference)
    own = OwnChanges()
    chat: Json = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], **COOL}
    for number in range(3):
        request = await servers.prepare(chat, own)
        if not number:
            assert await request.adapt(NO_TEMPERATURE.refusal)
        assert request.chat is not None
        assert "temperature" not in request.chat
        request.begun()
    assert "temperature" in ((await servers.prepare(chat)).chat or {})


async def test_evidence_survives_a_restart_and_reaches_processes_beside() -> None:
    records = MemoryRecords()
    beside = Server(records, ANSWER, NO_TEMPERATURE, ANSWER, ANSWER)
    await beside.ask()
    await Server(records, NO_TEMPERATURE, ANSWER).ask(**COOL)
    await turns(20)
    for _ in range(2):
        await beside.ask(**COOL)
    assert beside.sent("temperature") == [False, True, False, False], "the refusals of both count"
    await turns(20)
    later = Server(records, ANSWER)
    await later.ask(**COOL)
    assert later.sent("temperature") == [False]


async def test_learned_and_contradicted_changes_are_logged_in_one_line_each(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    server = Server(MemoryRecords(clock=clock), *[NO_TEMPERATURE, ANSWER] * 2, ANSWER, clock=clock)
    lines = list[int]()
    for seconds in (0, 0, 61):
        clock.now += seconds
        await server.ask(**COOL)
        lines.append(len(caplog.records))
    assert lines == [0, 1, 2]
    assert "drop temperature, for requests with stream, temperature" in caplog.text
    assert "they are not changed any more: drop temperature" in caplog.text


# A server that names one part at a time

MANY: Json = {
    "model": "m",
    "messages": [{"role": "user", "content": "Hi"}],
    "reasoning_effort": "low",
    "temperature": 0.3,
    "top_p": 0.4,
    "parallel_tool_calls": False,
    "logprobs": True,
    "presence_penalty": 0.5,
    "response_format": FORM,
}
MANY_HINTS: Json = {
    "user": "u",
    "service_tier": "flex",
    "safety_identifier": "s",
    "prompt_cache_key": "k",
    "stream_options": {"include_usage": True},
    "verbosity": "low",
}


def names_first(*names: str) -> Callable[[Json], str]:
    """Return the judge of a server that refuses all of these parameters, and names the first one."""

    def judge(chat: Json) -> str:
        return next((f"Unsupported parameter: '{name}'" for name in names if name in chat), "")

    return judge


@pytest.mark.parametrize("last", ["response_format", "reasoning_effort"])
async def test_server_that_names_one_part_at_a_time_takes_the_request_in_the_end(last: str) -> None:
    names = [name for name in MANY if name not in ("model", "messages", last)]
    servers, judge = model_servers(FakeInference()), names_first(*names, last)
    sent = [await sent_by(servers, MANY, judge) for _ in range(4)]
    assert [judge(each[-1]) for each in sent] == [""] * 4
    assert [len(each) for each in sent] == [9, 9, 1, 1], "a schema is first asked for in words, then JSON too"


@pytest.mark.parametrize("hints_first", [True, False])
async def test_hints_do_not_count_beside_many_other_refused_parts(hints_first: bool) -> None:
    parts = [name for name in MANY if name not in ("model", "messages")]
    parts += [f"x_{n}" for n in range(15 - len(parts))]
    names = [*MANY_HINTS, *parts] if hints_first else [*parts, *MANY_HINTS]
    servers, judge = model_servers(FakeInference()), names_first(*names)
    chat = MANY | MANY_HINTS | dict.fromkeys(parts[len(MANY) - 2 :], 1)
    sent = [await sent_by(servers, chat, judge) for _ in range(3)]
    assert [judge(each[-1]) for each in sent] == [""] * 3
    assert [len(each) for each in sent] == [23, 17, 1]


async def test_change_with_which_a_request_begins_stays_when_another_part_is_refused() -> None:
    servers = model_servers(FakeInference())
    chat = {name: MANY[name] for name in ("model", "messages", "temperature", "response_format")}
    for _ in range(2):
        await sent_by(servers, chat, names_first("temperature"))
    sent = await sent_by(servers, chat, names_first("temperature", "response_format"))
    assert [["temperature" in each, "response_format" in each] for each in sent] == [
        *[[False, True]] * 2,
        [False, False],
    ]


async def test_part_that_is_taken_again_beside_other_refused_ones_is_sent_after_its_trial() -> None:
    clock = Clock()
    servers = model_servers(FakeInference(), clock=clock)
    for _ in range(2):
        await sent_by(servers, MANY, names_first("temperature", "top_p", "response_format"))
    for _ in range(6):
        clock.now += 61
        sent = await sent_by(servers, MANY, names_first("top_p"))
    assert sent == [{name: value for name, value in MANY.items() if name != "top_p"}]


# Many models, and several servers of a store


@pytest.mark.parametrize("models", [24, MAX_MODELS])
async def test_each_of_many_models_keeps_what_it_needs(models: int) -> None:
    servers, counts = model_servers(FakeInference(), learned=LearnedSteps(MemoryRecords())), list[int]()
    for _ in range(4):
        counts.append(0)
        for number in range(models):
            sent = await sent_by(servers, MANY | {"model": f"m{number}"}, names_first("temperature"))
            await turns(10)
            counts[-1] += len(sent) - 1
    assert counts == [models, models, 0, 0]


async def test_models_of_which_most_was_seen_last_are_kept() -> None:
    learned = LearnedSteps(MemoryRecords())
    for number in range(MAX_MODELS + 5):
        parts = frozenset(f"{number} {part}" for part in range(MAX_EVIDENCE_BYTES // 400))
        await learned.judge(
            "s", "p", f"m{number}", {Step("drop", "top_p"): partial(Evidence.refused, parts=parts, now=1e12)}
        )
    known = (await learned.of("s")).evidence
    assert f"m{MAX_MODELS + 4}" in known
    assert 50 < len(known) < MAX_MODELS
    assert sum(each.size for of in known.values() for each in of.values()) <= MAX_EVIDENCE_BYTES


async def test_model_of_which_nothing_is_left_takes_no_place() -> None:
    learned, step = LearnedSteps(MemoryRecords()), Step("drop", "top_p")
    await learned.judge("s", "p", "m", {step: lambda each: each.refused(frozenset({"top_p"}), 1e12)})
    await learned.add("s", "p", "m", [], [step])
    assert (await learned.of("s")).evidence == {}


async def test_trial_that_another_server_made_ends_the_change_once_the_row_is_read_for_another_model() -> None:
    clock = Clock()
    records, judge = MemoryRecords(clock=clock), names_first("temperature")
    first, second = (model_servers(FakeInference(), learned=LearnedSteps(records), clock=clock) for _ in range(2))
    for each in (first, first, second):
        await sent_by(each, MANY, judge)
        await turns(20)
    clock.now += 61
    await sent_by(first, MANY, lambda _: "")
    await turns(20)
    await sent_by(second, MANY | {"model": "other"}, names_first("top_p"))
    assert [await sent_by(second, MANY, lambda _: "") for _ in range(3)] == [[MANY]] * 3


async def test_image_that_was_refused_before_takes_no_trial_from_others() -> None:
    """A thread has a bad image in each turn; the images of others are tried at their time."""
    clock = Clock()
    servers = model_servers(FakeInference(), clock=clock)
    bad = ("'one'", "'two'")

    def judge(chat: Json) -> str:
        return "This model does not support images" if any(each in str(chat) for each in bad) else ""

    for each in ("one", "two"):
        await sent_by(servers, PLAIN | {"messages": seeing(each)}, judge)
    clock.now += 61
    for _ in range(3):
        await sent_by(servers, PLAIN | {"messages": seeing("one")}, judge)
    good = PLAIN | {"messages": seeing("three")}
    assert await sent_by(servers, good, judge) == [good]
    clock.now += 30
    assert await sent_by(servers, good, judge) == [good]
