"""Items of the input that change the reasoning effort or the format of the responses after them."""

from typing import Any, Final

import openai
import pydantic
import pytest

from tests.support.openai_client import MODEL, NAME, Json, create, function, messages, stored, stream
from tests.support.upstream import Upstream, reply, text, tool_call

# The updates are read above the host.
pytestmark = [pytest.mark.live, pytest.mark.one_host]


class Person(pydantic.BaseModel):
    """A person."""

    age: int


SCHEMA: Final[Json] = {"type": "json_schema", "name": "person", "schema": Person.model_json_schema()}
QUESTION: Final[Any] = {"role": "user", "content": "Hi"}
SAID: Final = reply(text("Hello"))


def effort(value: str) -> Any:
    """Return an item that sets the reasoning effort."""
    return {"type": "configuration_update", "reasoning": {"effort": value}}


def answer_format(value: Json) -> Any:
    """Return an item that sets the format."""
    return {"type": "configuration_update", "text": {"format": value}}


def settings(upstream: Upstream) -> list[Any]:
    """Return the reasoning effort and the format of each chat request."""
    bodies = [request.body for request in upstream.requests(NAME)]
    return [(body.get("reasoning_effort"), (body.get("response_format") or {}).get("type")) for body in bodies]


def test_update_holds_for_later_responses_until_the_next_one(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, [SAID, SAID, SAID])
    first = create(client, model=MODEL, input=[effort("high"), QUESTION], reasoning={"effort": "low"})
    second = create(client, model=MODEL, input="And?", previous_response_id=first["id"], reasoning={"effort": "low"})
    create(client, model=MODEL, input=[effort("none"), QUESTION], previous_response_id=second["id"])
    assert settings(upstream) == [("high", None), ("high", None), ("none", None)]
    assert {message["role"] for message in messages(upstream)} == {"user", "assistant"}
    assert len(messages(upstream)) == 5
    # The response has the request's own effort.
    assert [first["reasoning"]["effort"], second["reasoning"]["effort"]] == ["low", "low"]
    assert stored(client, first["id"]) == first


def test_update_after_the_question_holds_for_its_answer(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, SAID)
    streamed = stream(client, model=MODEL, input=[QUESTION, effort("minimal")])
    assert streamed.response["status"] == "completed"
    assert settings(upstream) == [("minimal", None)]


def test_update_is_listed_with_an_id(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, SAID)
    created = create(client, model=MODEL, input=[effort("high"), QUESTION])
    update = next(iter(client.responses.input_items.list(created["id"], order="asc")))
    assert update.type == "configuration_update"
    assert update.id.startswith("cfg_")
    assert update.to_dict() == {"id": update.id, **effort("high")}


def test_update_of_the_format_is_parsed_by_the_sdk(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, [reply(text('{"age":', "36}")), SAID])
    parsed = client.responses.parse(model=MODEL, input=[answer_format(SCHEMA), QUESTION], parse_as=Person)
    assert parsed.output_parsed == Person(age=36)
    create(client, model=MODEL, input=[answer_format({"type": "text"}), QUESTION], previous_response_id=parsed.id)
    assert settings(upstream) == [(None, "json_schema"), (None, None)]


def test_preamble_to_json_of_an_updated_format_is_commentary(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, [reply(text("I look."), tool_call(0, "c1", "clock", "{}"))])
    streamed = stream(client, model=MODEL, input=[answer_format(SCHEMA), QUESTION], tools=[function("clock")])
    # The SDK does not parse a message that begins as commentary.
    [message, _] = [event["item"] for event in streamed.events if event["type"] == "response.output_item.added"]
    assert message["phase"] == "commentary"


def test_update_in_a_conversation_holds_for_background_responses(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, SAID)
    conversation = client.conversations.create(items=[effort("high")]).id
    begun = client.responses.create(model=MODEL, input="Hi", conversation=conversation, background=True)
    for _ in client.responses.retrieve(begun.id, stream=True):
        pass
    assert client.responses.retrieve(begun.id).status == "completed"
    assert settings(upstream) == [("high", None)]
    kinds = [item.type for item in client.conversations.items.list(conversation, order="asc")]
    assert kinds == ["configuration_update", "message", "message"]


def test_compacted_conversation_answered_before_an_update_has_no_open_question(
    client: openai.OpenAI, upstream: Upstream
) -> None:
    upstream.script(NAME, [SAID, reply(text("A greeting.")), SAID])
    answered = create(client, model=MODEL, input="Hi")
    fields: Json = {"model": MODEL, "input": [effort("high")], "previous_response_id": answered["id"]}
    output = client.responses.with_raw_response.compact(**fields).http_response.json()["output"]
    assert [item["type"] for item in output] == ["message", "compaction"]
    client.responses.create(model=MODEL, input=output)
    assert "The user's latest message" not in str(messages(upstream))


def test_update_before_instructions_and_a_compaction_holds(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, [SAID, reply(text("A greeting.")), SAID])
    instructions = {"role": "developer", "content": "Be brief."}
    first = create(client, model=MODEL, input=[effort("high"), instructions, QUESTION])
    trigger: Json = {"type": "compaction_trigger"}
    compacted = create(client, model=MODEL, input=[trigger], previous_response_id=first["id"])
    create(client, model=MODEL, input="And?", previous_response_id=compacted["id"])
    assert settings(upstream)[-1] == ("high", None)
    shown = [message["content"] for message in messages(upstream)]
    assert (shown[0], "A greeting." in str(shown)) == ("Be brief.", True)


def test_update_without_settings_is_400(client: openai.OpenAI, upstream: Upstream) -> None:
    item: Any = {"type": "configuration_update"}
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model=MODEL, input=[item, QUESTION])
    assert caught.value.param == "input[0]"
    assert upstream.requests(NAME) == []
