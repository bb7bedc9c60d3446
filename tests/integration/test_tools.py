"""The model's calls: which ones reach the client, the outputs of refused ones, and the formats of model servers."""

from typing import Any, Final

import openai
import pydantic
import pytest

from tests.support.openai_client import MODEL, NAME, Json, create, function, messages, sent, stream
from tests.support.upstream import Chunk, Reply, Upstream, finish, interleaved_calls, reasoning, reply, text, tool_call

pytestmark = pytest.mark.live

TOOLS: Final = [function("weather", "city"), function("clock", "zone"), function("ping")]
WEATHER: Final = tool_call(0, "c1", "weather", '{"city":', '"Oslo"}')
CLOCK: Final = tool_call(0, "c2", "clock", '{"zone":"CET"}')
SAID: Final = reply(text("Done."))
ONLY_WEATHER: Final[Json] = {
    "type": "allowed_tools",
    "mode": "auto",
    "tools": [{"type": "function", "name": "weather"}],
}
BY_NAME: Final[Json] = {"type": "function", "name": "weather"}


def calls(response: Json) -> list[tuple[str, str, str]]:
    """Return the function calls of a response as `(call_id, name, arguments)`."""
    found = [item for item in response["output"] if item["type"] == "function_call"]
    return [(item["call_id"], item["name"], item["arguments"]) for item in found]


def spoken(response: Json) -> list[str]:
    """Return the texts of a response's messages."""
    return [item["content"][0]["text"] for item in response["output"] if item["type"] == "message"]


# -- refused calls ------------------------------------------------------


def test_call_outside_allowed_tools_is_refused_and_hidden_from_the_client(
    client: openai.OpenAI, upstream: Upstream
) -> None:
    upstream.script(NAME, [reply(reasoning("Hm."), text("Let me look."), CLOCK), reply(WEATHER)])
    streamed = stream(client, model=MODEL, input="Hi", tools=TOOLS, tool_choice=ONLY_WEATHER)
    assert [item["type"] for item in streamed.response["output"]] == ["reasoning", "message", "function_call"]
    assert calls(streamed.response) == [("c1", "weather", '{"city":"Oslo"}')]
    assert spoken(streamed.response) == ["Let me look."]
    first, second = (request.body for request in upstream.requests(NAME))
    refusal = "The tool 'clock' cannot be called in this turn. Tools that may be called: weather."
    assert second["messages"] == [
        *first["messages"],
        {
            "role": "assistant",
            "content": "Let me look.",
            "reasoning_content": "Hm.",
            "tool_calls": [
                {"id": "c2", "type": "function", "function": {"name": "clock", "arguments": '{"zone":"CET"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c2", "content": refusal},
    ]
    assert {**second, "messages": []} == {**first, "messages": []}


def test_call_of_unknown_tool_is_refused(client: openai.OpenAI, upstream: Upstream) -> None:
    made_up = tool_call(0, "c9", "teleport", '{"to":"Oslo"}')
    upstream.script(NAME, [reply(made_up), reply(text("I cannot do that."))])
    response = stream(client, model=MODEL, input="Hi", tools=TOOLS).response
    assert [item["type"] for item in response["output"]] == ["message"]
    assert spoken(response) == ["I cannot do that."]
    assert messages(upstream)[-1] == {
        "role": "tool",
        "tool_call_id": "c9",
        "content": "There is no tool named 'teleport'. Tools that may be called: clock, ping, weather.",
    }


def test_call_without_any_tools_is_refused(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, [reply(WEATHER), SAID])
    assert spoken(create(client, model=MODEL, input="Hi")) == ["Done."]
    assert messages(upstream)[-1]["content"] == "There is no tool named 'weather'. Tools that may be called: none."


def test_allowed_call_next_to_a_refused_one_reaches_the_client(client: openai.OpenAI, upstream: Upstream) -> None:
    both = interleaved_calls(("c2", "clock", '{"zone":', '"CET"}'), ("c1", "weather", '{"city":', '"Oslo"}'))
    upstream.script(NAME, reply(both))
    response = stream(client, model=MODEL, input="Hi", tools=TOOLS, tool_choice=ONLY_WEATHER).response
    assert calls(response) == [("c1", "weather", '{"city":"Oslo"}')]
    assert len(upstream.requests(NAME)) == 1  # the client has to answer the call, so there is no second round


def test_several_refused_calls_are_answered_in_one_round(client: openai.OpenAI, upstream: Upstream) -> None:
    both = interleaved_calls(("c2", "clock", '{"zone":"CET"}'), ("c3", "ping", "{}"))
    upstream.script(NAME, [reply(both), SAID])
    assert spoken(create(client, model=MODEL, input="Hi", tools=TOOLS, tool_choice=ONLY_WEATHER)) == ["Done."]
    called, first, second = messages(upstream)[-3:]
    assert [call["id"] for call in called["tool_calls"]] == ["c2", "c3"]
    assert (first["tool_call_id"], second["tool_call_id"]) == ("c2", "c3")


@pytest.mark.parametrize(
    "choice",
    ["none", BY_NAME, {**ONLY_WEATHER, "mode": "required"}],
    ids=["none", "by name", "allowed and required"],
)
def test_call_against_the_tool_choice_is_refused(client: openai.OpenAI, upstream: Upstream, choice: Any) -> None:
    upstream.script(NAME, [reply(CLOCK), SAID if choice == "none" else reply(WEATHER)])
    response = stream(client, model=MODEL, input="Hi", tools=TOOLS, tool_choice=choice).response
    assert calls(response) == ([] if choice == "none" else [("c1", "weather", '{"city":"Oslo"}')])


def test_call_of_the_chosen_tool_reaches_the_client(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, reply(WEATHER, finish("stop")))  # vLLM's finish reason after a forced call
    for choice in ("auto", "required", BY_NAME, ONLY_WEATHER, {**ONLY_WEATHER, "mode": "required"}):
        response = create(client, model=MODEL, input="Hi", tools=TOOLS, tool_choice=choice)
        assert calls(response) == [("c1", "weather", '{"city":"Oslo"}')]
        assert response["status"] == "completed"


def test_without_parallel_tool_calls_only_the_first_call_is_kept(client: openai.OpenAI, upstream: Upstream) -> None:
    both = interleaved_calls(("c1", "weather", '{"city":', '"Oslo"}'), ("c2", "clock", '{"zone":', '"CET"}'))
    upstream.script(NAME, [reply(both), SAID])
    response = stream(client, model=MODEL, input="Hi", tools=TOOLS, parallel_tool_calls=False).response
    assert calls(response) == [("c1", "weather", '{"city":"Oslo"}')]
    output = {"type": "function_call_output", "call_id": "c1", "output": "Snow."}
    create(client, model=MODEL, input=[output], previous_response_id=response["id"], tools=TOOLS)
    assert [message["role"] for message in messages(upstream)] == ["user", "assistant", "tool"]


def test_tool_chosen_by_name_is_offered_alone_and_called_once(client: openai.OpenAI, upstream: Upstream) -> None:
    twice = interleaved_calls(("c1", "weather", '{"city":"Oslo"}'), ("c4", "weather", '{"city":"Rome"}'))
    upstream.script(NAME, reply(twice))
    response = stream(client, model=MODEL, input="Hi", tools=TOOLS, tool_choice=BY_NAME).response
    assert calls(response) == [("c1", "weather", '{"city":"Oslo"}')]
    chat = sent(upstream)
    assert [tool["function"]["name"] for tool in chat["tools"]] == ["weather"]
    assert chat["tool_choice"] == "required"


def test_tool_choice_of_a_missing_tool_is_400(client: openai.OpenAI, upstream: Upstream) -> None:
    for choice in ({**BY_NAME, "name": "x"}, {**ONLY_WEATHER, "tools": [{"type": "function", "name": "x"}]}):
        with pytest.raises(openai.BadRequestError) as raised:
            client.responses.create(model=MODEL, input="Hi", tools=TOOLS, tool_choice=choice)  # type: ignore[call-overload]
        assert raised.value.param == "tool_choice"
    assert upstream.requests() == []


# -- several model rounds --------------------------------------------------------------------


def test_usage_is_summed_over_model_rounds(client: openai.OpenAI, upstream: Upstream) -> None:
    counted = [
        {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {"reasoning_tokens": thought},
        }
        for prompt, output, cached, thought in ((100, 20, 0, 10), (130, 30, 100, 5))
    ]
    upstream.script(NAME, [reply(CLOCK, usage=counted[0]), reply(text("Done."), usage=counted[1])])
    response = stream(client, model=MODEL, input="Hi", tools=TOOLS, tool_choice=ONLY_WEATHER).response
    assert response["usage"] == {
        "input_tokens": 230,
        "input_tokens_details": {"cached_tokens": 100, "cache_write_tokens": 0},
        "output_tokens": 50,
        "output_tokens_details": {"reasoning_tokens": 15},
        "total_tokens": 280,
    }


def usage(output: int) -> Json:
    """Return a usage with `output` output tokens."""
    return {"prompt_tokens": 1, "completion_tokens": output, "total_tokens": output + 1}


def test_each_model_round_gets_the_remaining_tokens(client: openai.OpenAI, upstream: Upstream) -> None:
    rounds = [reply(CLOCK, usage=usage(30)), reply(CLOCK, usage=usage(50)), reply(text("Done."), usage=usage(5))]
    upstream.script(NAME, rounds)
    response = create(client, model=MODEL, input="Hi", tools=TOOLS, tool_choice=ONLY_WEATHER, max_output_tokens=100)
    assert [request.body["max_completion_tokens"] for request in upstream.requests(NAME)] == [100, 70, 20]
    assert (response["status"], response["max_output_tokens"]) == ("completed", 100)


def test_no_model_round_starts_without_remaining_tokens(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, [reply(text("Let me look."), CLOCK, usage=usage(20)), SAID])
    response = stream(
        client, model=MODEL, input="Hi", tools=TOOLS, tool_choice=ONLY_WEATHER, max_output_tokens=20
    ).response
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert spoken(response) == ["Let me look."]
    assert len(upstream.requests(NAME)) == 1


def test_failure_of_the_second_model_round_fails_the_response(client: openai.OpenAI, upstream: Upstream) -> None:
    broken = Reply(status=400, body={"error": {"message": "The template wants no tool messages."}})
    upstream.script(NAME, [reply(text("Let me look."), CLOCK), broken])
    streamed = stream(client, model=MODEL, input="Hi", tools=TOOLS, tool_choice=ONLY_WEATHER)
    assert streamed.response["status"] == "failed"
    assert spoken(streamed.response) == ["Let me look."]
    assert streamed.response["output"][0]["status"] == "completed"
    assert streamed.events[-2]["message"] == "The template wants no tool messages."


def test_refused_calls_are_left_out_of_the_next_turn(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, [reply(text("Let me look."), CLOCK), SAID])
    first = create(client, model=MODEL, input="Hi", tools=TOOLS, tool_choice=ONLY_WEATHER)
    create(client, model=MODEL, input="Thanks.", previous_response_id=first["id"])
    assert messages(upstream) == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Let me look.\n\nDone."},
        {"role": "user", "content": "Thanks."},
    ]


# -- formats of calls -----------------------------------------------------------


def fragment(index: int | None = 0, call_id: str | None = None, **function: Any) -> Chunk:
    """Return a chunk with one fragment of a call, without the fields that are None."""
    keys = {"index": index, "id": call_id, "function": function or None}
    return {"tool_calls": [{key: value for key, value in keys.items() if value is not None}]}


OSLO: Final = '{"city":"Oslo"}'
CET: Final = '{"zone":"CET"}'
BOTH: Final = [("c1", "weather", OSLO), ("c2", "clock", CET)]
ONE: Final = BOTH[:1]
SPELLINGS: Final[dict[str, tuple[list[Chunk], list[tuple[str | None, str, str]]]]] = {
    "whole in one chunk": ([fragment(0, "c1", name="weather", arguments=OSLO)], [*ONE]),
    "two in one chunk": (
        [
            {
                "tool_calls": [
                    *fragment(0, "c1", name="weather", arguments=OSLO)["tool_calls"],
                    *fragment(1, "c2", name="clock", arguments=CET)["tool_calls"],
                ]
            }
        ],
        [*BOTH],
    ),
    "interleaved": (
        interleaved_calls(("c1", "weather", OSLO[:5], OSLO[5:]), ("c2", "clock", CET[:3], CET[3:])),
        [*BOTH],
    ),
    "an id that comes with the arguments": (
        [fragment(name="weather"), fragment(call_id="c1", arguments=OSLO)],
        [*ONE],
    ),
    "an id that comes too late": (
        [fragment(name="weather", arguments="{"), fragment(call_id="c1", arguments=OSLO[1:])],
        [(None, "weather", OSLO)],
    ),
    "an id that never comes": (
        [fragment(name="weather", arguments="{"), fragment(arguments=OSLO[1:])],
        [(None, "weather", OSLO)],
    ),
    "an empty id": ([fragment(call_id="", name="weather", arguments=OSLO)], [(None, "weather", OSLO)]),
    "the id in every chunk": (
        [fragment(call_id="c1", name="weather"), fragment(call_id="c1", arguments=OSLO)],
        [*ONE],
    ),
    "empty ids and names after the first chunk": (
        [fragment(call_id="c1", name="weather", arguments=""), fragment(call_id="", name="", arguments=OSLO)],
        [*ONE],
    ),
    "the name in every chunk": (
        [
            fragment(call_id="c1", name="weather", arguments=""),
            fragment(name="weather", arguments=OSLO[:4]),
            fragment(name="weather", arguments=OSLO[4:]),
        ],
        [*ONE],
    ),
    "a name in pieces": (
        [fragment(call_id="c1", name="wea"), fragment(name="th"), fragment(name="er"), fragment(arguments=OSLO)],
        [*ONE],
    ),
    "arguments before the name": (
        [fragment(call_id="c1", arguments="{"), fragment(name="weather", arguments=OSLO[1:])],
        [*ONE],
    ),
    "index 0 for all, with ids": (
        [
            fragment(0, "c1", name="weather", arguments=OSLO[:4]),
            fragment(0, arguments=OSLO[4:]),
            fragment(0, "c2", name="clock", arguments=CET[:4]),
            fragment(0, arguments=CET[4:]),
        ],
        [*BOTH],
    ),
    "no index at all": (
        [fragment(None, "c1", name="weather", arguments=OSLO), fragment(None, "c2", name="clock", arguments=CET)],
        [*BOTH],
    ),
    "the same id twice": (
        [fragment(0, "c1", name="weather", arguments=OSLO), fragment(1, "c1", name="clock", arguments=CET)],
        [*ONE, (None, "clock", CET)],
    ),
    "null arguments first": (
        [fragment(call_id="c1", name="weather", arguments=None), fragment(arguments=OSLO)],
        [*ONE],
    ),
    "arguments that are no JSON": (
        [fragment(call_id="c1", name="weather", arguments="Oslo!")],
        [("c1", "weather", "Oslo!")],
    ),
    "indices that begin at 1": (
        [fragment(1, "c1", name="weather", arguments=OSLO), fragment(2, "c2", name="clock", arguments=CET)],
        [*BOTH],
    ),
    "no arguments": ([fragment(call_id="c3", name="ping")], [("c3", "ping", "{}")]),
    "empty arguments": ([fragment(call_id="c3", name="ping", arguments="")], [("c3", "ping", "{}")]),
    "arguments as an object": (
        [fragment(call_id="c1", name="weather", arguments={"city": "Oslo"})],
        [("c1", "weather", OSLO)],
    ),
    "index 0 for all, without ids": (
        [fragment(name="weather", arguments=OSLO), fragment(name="clock", arguments=CET)],
        [(None, "weather", OSLO), (None, "clock", CET)],
    ),
    "an empty fragment": ([fragment(call_id="c1", name="weather", arguments=OSLO), fragment(1)], [*ONE]),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_call_format_of_a_model_server_is_read(client: openai.OpenAI, upstream: Upstream, spelling: str) -> None:
    chunks, expected = SPELLINGS[spelling]
    upstream.script(NAME, [reply(chunks), SAID])
    streamed = stream(client, model=MODEL, input="Hi", tools=TOOLS)
    found = calls(streamed.response)
    assert [(name, arguments) for _, name, arguments in found] == [(name, arguments) for _, name, arguments in expected]
    for (call_id, *_), (wanted, *_) in zip(found, expected, strict=True):
        assert call_id == wanted if wanted else call_id.startswith("call_")
    assert len({call_id for call_id, *_ in found}) == len(found)
    assert len(upstream.requests(NAME)) == 1


def test_call_fragment_without_name_is_ignored(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, reply(text("Hello"), [fragment(0)]))
    assert spoken(create(client, model=MODEL, input="Hi", tools=TOOLS)) == ["Hello"]
    assert len(upstream.requests(NAME)) == 1


@pytest.mark.parametrize(
    ("arguments", "sent_back"),
    [("Oslo!", '{"invalid_arguments": "Oslo!"}'), ('["Oslo"]', '{"invalid_arguments": "[\\"Oslo\\"]"}')],
)
def test_invalid_arguments_reach_the_client_and_are_sent_back_as_an_object(
    client: openai.OpenAI, upstream: Upstream, arguments: str, sent_back: str
) -> None:
    """Model servers parse the arguments of calls in a history, and refuse a request with invalid ones."""
    upstream.script(NAME, [reply(tool_call(0, "c1", "weather", arguments)), SAID])
    first = stream(client, model=MODEL, input="Hi", tools=TOOLS).response
    assert calls(first) == [("c1", "weather", arguments)]
    output = {"type": "function_call_output", "call_id": "c1", "output": "Which city?"}
    second = create(client, model=MODEL, input=[output], previous_response_id=first["id"], tools=TOOLS)
    [called] = messages(upstream)[1]["tool_calls"]
    assert called["function"] == {"name": "weather", "arguments": sent_back}
    kept = client.responses.input_items.list(second["id"], order="asc").data[1].to_dict()
    assert kept["arguments"] == arguments


def test_text_around_calls_is_kept(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, reply(text("Before."), WEATHER, text("After.")))
    response = stream(client, model=MODEL, input="Hi", tools=TOOLS).response
    assert [item["type"] for item in response["output"]] == ["message", "function_call", "message"]
    assert spoken(response) == ["Before.", "After."]
    assert [item.get("phase") for item in response["output"]] == ["commentary", None, "commentary"]


# -- tools of the openai package -----------------------------------------------------------


class Weather(pydantic.BaseModel):
    """The weather in a city."""

    city: str
    days: int = 1


def test_pydantic_function_tool_is_called_and_parsed(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, reply(tool_call(0, "c1", "Weather", '{"city":"Oslo",', '"days":3}')))
    # The package creates such tools in the chat form. The Responses API has the same function unnested.
    created = openai.pydantic_function_tool(Weather)["function"]
    tool: Any = {"type": "function", **created}
    response = client.responses.parse(model=MODEL, input="Hi", tools=[tool])
    [item] = response.output
    assert item.type == "function_call"
    assert item.parsed_arguments == {"city": "Oslo", "days": 3}
    assert sent(upstream)["tools"] == [{"type": "function", "function": created}]
