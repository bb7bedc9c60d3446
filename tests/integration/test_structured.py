"""Structured output through the openai package's helpers, which send a schema and parse the output."""

from collections.abc import Callable
from typing import Any, Final, Literal

import openai
import pydantic
import pytest
from openai.types.responses import ParsedResponse

from tests.support.openai_client import MODEL, NAME, Json, create, function, messages, sent, stored, stream
from tests.support.stack import LiveStack
from tests.support.upstream import Reply, Upstream, finish, reasoning, refusal, reply, text, tool_call

pytestmark = pytest.mark.live


class Step(pydantic.BaseModel):
    """One step of a plan."""

    what: str
    minutes: int


class Plan(pydantic.BaseModel):
    """A plan."""

    title: str = pydantic.Field(description="A few words.")
    mood: Literal["calm", "hasty"]
    steps: list[Step]
    note: str | None


PLAN: Final = Plan(
    title="Tea", mood="calm", steps=[Step(what="Boil", minutes=3), Step(what="Wait", minutes=4)], note=None
)
WRITTEN: Final = PLAN.model_dump_json()
TOOLS: Final = [function("clock", "zone")]
PIECES: Final = text(WRITTEN[:7], WRITTEN[7:40], WRITTEN[40:])

Asker = Callable[[openai.OpenAI], ParsedResponse[Plan]]


def parsed(client: openai.OpenAI) -> ParsedResponse[Plan]:
    """Request a plan with `responses.parse`."""
    return client.responses.parse(model=MODEL, input="Plan!", text_format=Plan, tools=TOOLS)


def streamed(client: openai.OpenAI) -> ParsedResponse[Plan]:
    """Request a plan with `responses.stream`."""
    with client.responses.stream(model=MODEL, input="Plan!", text_format=Plan, tools=TOOLS) as events:
        return events.get_final_response()


@pytest.mark.parametrize("ask", [parsed, streamed])
def test_pydantic_model_is_sent_as_schema_and_parsed(client: openai.OpenAI, upstream: Upstream, ask: Asker) -> None:
    upstream.script(NAME, reply(PIECES))
    response = ask(client)
    assert response.output_parsed == PLAN
    wanted = sent(upstream)["response_format"]
    assert wanted["type"] == "json_schema"
    assert set(wanted["json_schema"]) == {"name", "schema", "strict"}
    assert (wanted["json_schema"]["name"], wanted["json_schema"]["strict"]) == ("Plan", True)
    schema = wanted["json_schema"]["schema"]
    assert schema["required"] == ["title", "mood", "steps", "note"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["title"]["description"] == "A few words."
    form = stored(client, response.id)["text"]["format"]
    assert form == {"type": "json_schema", "name": "Plan", "schema": schema, "strict": True}


@pytest.mark.parametrize("ask", [parsed, streamed])
def test_reasoning_before_the_structured_answer_is_not_parsed(
    client: openai.OpenAI, upstream: Upstream, ask: Asker
) -> None:
    upstream.script(NAME, reply(reasoning("A plan, then."), PIECES))
    assert ask(client).output_parsed == PLAN


@pytest.mark.parametrize("ask", [parsed, streamed])
def test_refusal_is_not_parsed_as_structured_output(client: openai.OpenAI, upstream: Upstream, ask: Asker) -> None:
    upstream.script(NAME, reply(refusal("I do not", " plan.")))
    response = ask(client)
    assert response.output_parsed is None
    [item] = response.output
    assert item.type == "message"
    [part] = item.content
    assert part.type == "refusal"
    assert part.refusal == "I do not plan."


BEFORE: Final[dict[str, tuple[Reply, Plan | None]]] = {
    "a call": (reply(text("Let me see."), tool_call(0, "c1", "clock", '{"zone":"CET"}')), None),
    "more reasoning": (reply(text("Hm."), reasoning("So"), PIECES), PLAN),
}


@pytest.mark.parametrize("what", BEFORE)
@pytest.mark.parametrize("ask", [parsed, streamed])
def test_text_before_other_items_is_not_parsed(
    client: openai.OpenAI, upstream: Upstream, ask: Asker, what: str
) -> None:
    script, plan = BEFORE[what]
    upstream.script(NAME, script)
    assert ask(client).output_parsed == plan


def test_structured_answer_after_a_call_is_parsed(client: openai.OpenAI, upstream: Upstream) -> None:
    call = tool_call(0, "c1", "clock", '{"zone":', '"CET"}')
    upstream.script(NAME, [reply(text("One moment."), call), reply(PIECES)])
    first = client.responses.parse(model=MODEL, input="Plan!", text_format=Plan, tools=TOOLS)
    item = next(each for each in first.output if each.type == "function_call")
    assert item.parsed_arguments == {"zone": "CET"}
    # The helpers' items have additional keys (`parsed_arguments`), and are sent back unchanged.
    output = {"type": "function_call_output", "call_id": item.call_id, "output": "8:00"}
    conversation: Any = [{"role": "user", "content": "Plan!"}, *first.output, output]
    second = client.responses.parse(model=MODEL, input=conversation, text_format=Plan, tools=TOOLS)
    assert second.output_parsed == PLAN
    assert messages(upstream)[1]["tool_calls"][0]["function"] == {"name": "clock", "arguments": '{"zone":"CET"}'}


async def test_async_sdk_parses_structured_output(stack: LiveStack, upstream: Upstream) -> None:
    upstream.script(NAME, reply(PIECES))
    url = f"{stack.base_url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        response = await client.responses.parse(model=MODEL, input="Plan!", text_format=Plan)
        async with client.responses.stream(model=MODEL, input="Plan!", text_format=Plan) as events:
            final = await events.get_final_response()
    assert response.output_parsed == final.output_parsed == PLAN


def test_sdk_stream_helper_parses_the_text_done_event(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, reply(PIECES))
    with client.responses.stream(model=MODEL, input="Plan!", text_format=Plan) as events:
        done = [event for event in events if event.type == "response.output_text.done"]
    assert [event.parsed for event in done] == [PLAN]


def test_truncated_structured_answer_is_incomplete(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, reply(PIECES[:2], finish("length")))
    form: Any = {"type": "json_schema", "name": "Plan", "schema": Plan.model_json_schema()}
    response = create(client, model=MODEL, input="Plan!", text={"format": form}, max_output_tokens=16)
    assert response["status"] == "incomplete"
    assert response["output"][0]["content"][0]["text"] == WRITTEN[:40]


FORMATS: Final[dict[str, tuple[Json, Json]]] = {
    "all of a schema": (
        {"type": "json_schema", "name": "n", "description": "d", "schema": {"type": "object"}, "strict": False},
        {
            "type": "json_schema",
            "json_schema": {"name": "n", "description": "d", "schema": {"type": "object"}, "strict": False},
        },
    ),
    "the least of a schema": (
        {"type": "json_schema", "name": "n", "schema": {}},
        {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}},
    ),
    "nulls": (
        {"type": "json_schema", "name": "n", "schema": {"enum": [None, 1]}, "description": None, "strict": None},
        {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [None, 1]}}},
    ),
    "json_object": ({"type": "json_object"}, {"type": "json_object"}),
}


@pytest.mark.parametrize("case", FORMATS)
def test_text_format_reaches_the_model_server_and_is_echoed(
    client: openai.OpenAI, upstream: Upstream, case: str
) -> None:
    upstream.script(NAME, reply(text("{}")))
    form, expected = FORMATS[case]
    response = stream(client, model=MODEL, input="JSON!", text={"format": form}).response
    assert sent(upstream)["response_format"] == expected
    kept = {name: value for name, value in form.items() if value is not None}
    assert response["text"] == {"format": kept, "verbosity": "medium"}


WRONG: Final[dict[str, tuple[Json, str]]] = {
    "an unknown type": ({"type": "yaml"}, "text.format.type"),
    "no name": ({"type": "json_schema", "schema": {}}, "text.format.name"),
    "a name with blanks": ({"type": "json_schema", "name": "a b", "schema": {}}, "text.format.name"),
    "no schema": ({"type": "json_schema", "name": "n"}, "text.format.schema"),
    "a schema that is none": ({"type": "json_schema", "name": "n", "schema": "x"}, "text.format.schema"),
}


@pytest.mark.parametrize("case", WRONG)
def test_invalid_text_format_is_400_with_its_field(client: openai.OpenAI, upstream: Upstream, case: str) -> None:
    form: Any
    form, param = WRONG[case]
    with pytest.raises(openai.BadRequestError) as raised:
        client.responses.create(model=MODEL, input="JSON!", text={"format": form})
    assert raised.value.param == param
    assert upstream.requests() == []
