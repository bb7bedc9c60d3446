"""Reasoning: read from any field of the model server, returned as items, and sent back to the model."""

from typing import Any, Final

import openai
import pytest

from tests.support.openai_client import (
    MODEL,
    NAME,
    Json,
    ValidatedStream,
    create,
    function,
    messages,
    sent,
    stored,
    stream,
)
from tests.support.upstream import Chunk, Upstream, finish, reasoning, reply, text, tool_call
from tests.support.wire import Wire

pytestmark = pytest.mark.live

SAID: Final = reply(text("Hello"))
TOOLS: Final = [function("weather", "city")]
CALL: Final[Json] = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"}
OUTPUT: Final[Json] = {"type": "function_call_output", "call_id": "c1", "output": "Snow."}
QUESTION: Final[Json] = {"role": "user", "content": "Hi"}


def thoughts(response: Json) -> list[str]:
    """Return the texts of the reasoning items."""
    items = [item for item in response["output"] if item["type"] == "reasoning"]
    assert all(item["summary"] == [] for item in items)
    return ["".join(part["text"] for part in item["content"]) for item in items]


def thinking(*fragments: str) -> list[Chunk]:
    """Return reasoning chunks as blocks with signatures."""
    return [{"thinking_blocks": [{"type": "thinking", "thinking": each, "signature": "s"}]} for each in fragments]


FIELDS: Final[dict[str, list[Chunk]]] = {
    "reasoning_content": reasoning("Let me ", "see."),
    "reasoning": reasoning("Let me ", "see.", field="reasoning"),
    "both": [{"reasoning": each, "reasoning_content": each} for each in ("Let me ", "see.")],
    "one null": [{"reasoning": each, "reasoning_content": None} for each in ("Let me ", "see.")],
    "with empty text": [{"reasoning_content": each, "content": ""} for each in ("Let me ", "see.")],
    "with null text": [{"reasoning": each, "content": None, "tool_calls": None} for each in ("Let me ", "see.")],
    "thinking_blocks": thinking("Let me ", "see."),
    "a list of parts": [{"content": [{"type": "thinking", "thinking": each}]} for each in ("Let me ", "see.")],
    "empty first": [{"reasoning_content": ""}, *reasoning("Let me ", "see.")],
}


@pytest.mark.parametrize("field", FIELDS)
def test_reasoning_in_any_chunk_field_becomes_an_item(client: openai.OpenAI, upstream: Upstream, field: str) -> None:
    upstream.script(NAME, reply(FIELDS[field], text("Hello")))
    streamed = stream(client, model=MODEL, input="Hi")
    assert streamed.response["status"] == "completed"
    assert [item["type"] for item in streamed.response["output"]] == ["reasoning", "message"]
    assert thoughts(streamed.response) == ["Let me see."]
    assert streamed.texts("reasoning_text") == ["Let me ", "see."]
    assert streamed.texts("output_text") == ["Hello"]
    assert stored(client, streamed.response["id"]) == streamed.response


def test_content_as_list_of_parts_is_split_into_reasoning_and_text(client: openai.OpenAI, upstream: Upstream) -> None:
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "see."}]}, {"type": "text", "text": "Hel"}]
    upstream.script(NAME, reply([{"content": parts}, {"content": [{"type": "text", "text": "lo"}]}]))
    response = stream(client, model=MODEL, input="Hi").response
    assert response["status"] == "completed"
    assert thoughts(response) == ["see."]
    assert response["output"][1]["content"][0]["text"] == "Hello"


def test_reasoning_and_text_in_one_chunk_become_two_items(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, reply([{"reasoning_content": "see.", "content": "Hello"}]))
    response = stream(client, model=MODEL, input="Hi").response
    assert thoughts(response) == ["see."]
    assert response["output"][1]["content"][0]["text"] == "Hello"


def test_reasoning_between_texts_keeps_its_position(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(
        NAME, reply(reasoning("a"), text("b"), reasoning("c"), text("d"), tool_call(0, "c1", "weather", "{}"))
    )
    response = stream(client, model=MODEL, input="Hi", tools=TOOLS).response
    types = ["reasoning", "message", "reasoning", "message", "function_call"]
    assert [item["type"] for item in response["output"]] == types
    assert all(item["status"] == "completed" for item in response["output"])
    assert thoughts(response) == ["a", "c"]


def test_reasoning_after_the_text_is_the_last_item(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, reply(text("Hello"), reasoning("was that right?")))
    response = stream(client, model=MODEL, input="Hi").response
    assert [item["type"] for item in response["output"]] == ["message", "reasoning"]


def test_truncated_reasoning_is_incomplete_and_not_sent_back(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, [reply(reasoning("Let me"), finish("length")), SAID])
    response = stream(client, model=MODEL, input="Hi", max_output_tokens=16).response
    [item] = response["output"]
    assert (response["status"], item["status"]) == ("incomplete", "incomplete")
    assert thoughts(response) == ["Let me"]
    create(client, model=MODEL, input="Go on.", previous_response_id=response["id"])
    assert [message["role"] for message in messages(upstream)] == ["user", "user"]


def test_model_without_reasoning_gives_no_reasoning_item(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, SAID)
    wanted: Any = {"effort": "high", "summary": "detailed"}
    response = stream(
        client, model=MODEL, input="Hi", reasoning=wanted, include=["reasoning.encrypted_content"]
    ).response
    assert [item["type"] for item in response["output"]] == ["message"]
    assert sent(upstream)["reasoning_effort"] == "high"


# -- summaries ---------------------------------------------------------------------------

PARTS: Final = ["added", "delta", "delta", "text.done", "done"]


def summaries(streamed: ValidatedStream) -> list[str]:
    """Return the short names of the summary's events."""
    types = [name for name in streamed.types if "summary" in name]
    return [
        name.removeprefix("reasoning_summary_").removeprefix("part.").replace("text.delta", "delta") for name in types
    ]


@pytest.mark.parametrize("requested", ["summary", "generate_summary"])
def test_reasoning_text_is_streamed_as_its_summary(
    client: openai.OpenAI, wire: Wire, upstream: Upstream, requested: str
) -> None:
    wanted: Json = {"model": MODEL, "tools": TOOLS, "reasoning": {requested: "detailed"}}
    upstream.script(NAME, [reply(reasoning("Let ", "me."), tool_call(0, "c1", "weather", "{}")), SAID])
    streamed = stream(client, input=[QUESTION], **wanted)
    item = streamed.response["output"][0]
    assert item["summary"] == [{"type": "summary_text", "text": "Let me."}]
    assert "content" not in item
    assert summaries(streamed) == PARTS
    assert streamed.texts("reasoning_summary_text") == ["Let ", "me."]
    assert stored(client, streamed.response["id"]) == streamed.response
    assert wire.replay(streamed.response["id"]) == streamed.events
    create(client, input=[OUTPUT], previous_response_id=streamed.response["id"], **wanted)
    assert replayed(upstream) == ["Let me."]
    create(client, input=[QUESTION, sealed(streamed.response), CALL, OUTPUT], **wanted)
    assert replayed(upstream) == ["Let me."]


def test_provider_summary_is_kept_with_the_reasoning(client: openai.OpenAI, upstream: Upstream) -> None:
    own: list[Chunk] = [
        {"reasoning": each, "reasoning_details": [{"type": "reasoning.summary", "summary": each}]} for each in "ab"
    ]
    upstream.script(NAME, reply(own, reasoning("All of it."), text("Hello")))
    streamed = stream(client, model=MODEL, input="Hi", reasoning={"summary": "auto"})
    item = streamed.response["output"][0]
    assert (item["summary"][0]["text"], item["content"][0]["text"]) == ("ab", "All of it.")


@pytest.mark.parametrize("background", [False, True])
def test_generated_summary_is_streamed_and_counted(
    client: openai.OpenAI, wire: Wire, upstream: Upstream, background: bool
) -> None:
    upstream.script("summarized", reply(reasoning("Let ", "me."), text("Hello")))
    upstream.script("short", reply(reasoning("Well."), text("In ", "short.")))
    wanted: Json = {"model": "local/summarized", "input": "Hi", "reasoning": {"summary": "concise"}}
    streamed = stream(client, **wanted, background=background)
    item = streamed.response["output"][0]
    assert item["summary"] == [{"type": "summary_text", "text": "In short."}]
    assert thoughts({"output": [item | {"summary": []}]}) == ["Let me."]
    assert summaries(streamed) == PARTS
    assert streamed.response["usage"]["output_tokens"] == 6
    assert sent(upstream, "short")["messages"][1]["content"] == "Let me."
    assert wire.replay(streamed.response["id"]) == streamed.events


# -- back to the model -------------------------------------------------------------------

# A reasoning item as clients send it back, and its text as sent to the model.
SENT_BACK: Final[dict[str, tuple[Json, str | None]]] = {
    "as it was": (
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Hm."}],
            "status": "completed",
        },
        "Hm.",
    ),
    "with nulls": (
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Hm."}],
            "encrypted_content": None,
            "status": None,
        },
        "Hm.",
    ),
    "without an id": (
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        "Hm.",
    ),
    "with a null id": (
        {"type": "reasoning", "id": None, "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        "Hm.",
    ),
    "without a summary": ({"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]}, "Hm."),
    "several parts": (
        {
            "type": "reasoning",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Hm."}, {"type": "reasoning_text", "text": "So."}],
        },
        "Hm.\nSo.",
    ),
    "text parts": ({"type": "reasoning", "summary": [], "content": [{"type": "text", "text": "Hm."}]}, "Hm."),
    "the summary alone": (
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Thought about it."}]},
        "Thought about it.",
    ),
    "the summary and no content": (
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Thought."}], "content": None},
        "Thought.",
    ),
    "summary and content": (
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "Thought."}],
            "content": [{"type": "reasoning_text", "text": "Hm."}],
        },
        "Hm.",
    ),
    "nothing but an id": ({"type": "reasoning", "id": "rs_1", "summary": []}, None),
    "null content": ({"type": "reasoning", "id": "rs_1", "summary": [], "content": None}, None),
}


@pytest.mark.parametrize("shape", SENT_BACK)
def test_reasoning_item_of_any_shape_is_accepted(client: openai.OpenAI, upstream: Upstream, shape: str) -> None:
    upstream.script(NAME, SAID)
    item, expected = SENT_BACK[shape]
    create(client, model=MODEL, input=[QUESTION, item, CALL, OUTPUT], tools=TOOLS)
    called = messages(upstream)[1]
    assert called["tool_calls"][0]["id"] == "c1"
    assert called.get("reasoning_content") == expected


def sealed(response: Json) -> Json:
    """Return a response's reasoning item with its sealed content only, without the text."""
    item = response["output"][0]
    return {name: item[name] for name in ("type", "summary", "encrypted_content")}


@pytest.mark.parametrize("stream_it", [False, True], ids=["whole", "streamed"])
def test_sealed_reasoning_sent_back_reaches_the_model(
    client: openai.OpenAI, upstream: Upstream, stream_it: bool
) -> None:
    upstream.script(NAME, [reply(reasoning("Hm."), tool_call(0, "c1", "weather", "{}")), SAID])
    request: Json = {"model": MODEL, "input": [QUESTION], "tools": TOOLS, "store": False}
    response = stream(client, **request).response if stream_it else create(client, **request)
    call = response["output"][1]
    again = [QUESTION, sealed(response), call, OUTPUT]
    create(client, model=MODEL, input=again, tools=TOOLS, store=False, include=["reasoning.encrypted_content"])
    assert messages(upstream)[1]["reasoning_content"] == "Hm."
    assert sealed(response)["encrypted_content"] not in str(messages(upstream))


def test_thought_signature_of_a_call_is_sent_back_to_the_provider(client: openai.OpenAI, upstream: Upstream) -> None:
    signed = tool_call(0, "c1", "weather", "{}")
    signed[0]["tool_calls"][0]["extra_content"] = {"google": {"thought_signature": "s1"}}
    upstream.script(NAME, [reply(signed), SAID])
    first = create(client, model=MODEL, input="Hi", tools=TOOLS)
    assert [item["type"] for item in first["output"]] == ["reasoning", "function_call"]
    create(client, model=MODEL, input=[OUTPUT], tools=TOOLS, previous_response_id=first["id"])
    assert messages(upstream)[1]["tool_calls"][0]["extra_content"] == {"google": {"thought_signature": "s1"}}


@pytest.mark.parametrize("harm", ["foreign", "damaged"])
def test_forged_or_foreign_sealed_reasoning_is_400(client: openai.OpenAI, upstream: Upstream, harm: str) -> None:
    upstream.script(NAME, reply(reasoning("Hm."), text("Hello")))
    item = sealed(create(client, model=MODEL, input="Hi"))
    seal = item["encrypted_content"]
    wrong: Any = {**item, "encrypted_content": "gAAAAABsecret" if harm == "foreign" else seal[:-8] + "AAAAAAA="}
    with pytest.raises(openai.BadRequestError, match="could not be verified") as raised:
        create(client, model=MODEL, input=[QUESTION, wrong])
    assert raised.value.code == "invalid_encrypted_content"


def test_invalid_reasoning_item_is_400_with_its_field(client: openai.OpenAI, upstream: Upstream) -> None:
    item: Any = {"type": "reasoning", "summary": [{"type": "summary_text"}]}
    with pytest.raises(openai.BadRequestError) as raised:
        client.responses.create(model=MODEL, input=[item])
    assert raised.value.param == "input[0].summary[0].text"


def reasoned(upstream: Upstream) -> None:
    """Script a model: reasoning and a call, then reasoning and an answer, then a greeting."""
    call = tool_call(0, "c1", "weather", "{}")
    upstream.script(NAME, [reply(reasoning("first"), call), reply(reasoning("second"), text("Snow.")), SAID])


def replayed(upstream: Upstream) -> list[str | None]:
    """Return the reasoning in each assistant message of the last chat request."""
    return [each.get("reasoning_content") for each in messages(upstream) if each["role"] == "assistant"]


@pytest.mark.parametrize("context", ["auto", "current_turn", "all_turns"])
@pytest.mark.parametrize("way", ["by id", "by resending"])
def test_reasoning_of_the_current_turn_or_all_turns_is_sent_back(
    client: openai.OpenAI, upstream: Upstream, way: str, context: str
) -> None:
    reasoned(upstream)
    request: Json = {"model": MODEL, "tools": TOOLS, "reasoning": {"context": context}}
    first = create(client, input=[QUESTION], **request)
    again = [QUESTION, *first["output"], OUTPUT]
    by_id = way == "by id"
    turn = {"previous_response_id": first["id"], "input": [OUTPUT]} if by_id else {"input": again}
    second = create(client, **request, **turn)
    assert replayed(upstream) == ["first"]  # still the same turn
    thanks = {"role": "user", "content": "Thanks."}
    turn = (
        {"previous_response_id": second["id"], "input": [thanks]}
        if by_id
        else {"input": [*again, *second["output"], thanks]}
    )
    create(client, **request, **turn)
    assert replayed(upstream) == (["first", "second"] if context == "all_turns" else [None, None])


def test_referenced_reasoning_items_are_sent_back(client: openai.OpenAI, upstream: Upstream) -> None:
    reasoned(upstream)
    first = create(client, model=MODEL, input=[QUESTION], tools=TOOLS)
    references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
    create(client, model=MODEL, input=[QUESTION, *references, OUTPUT], tools=TOOLS)
    assert replayed(upstream) == ["first"]


def test_sdk_reads_reasoning_items(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, reply(reasoning("Hm", "."), text("Hello")))
    response = client.responses.create(model=MODEL, input="Hi", reasoning={"effort": "low"})
    item = response.output[0]
    assert item.type == "reasoning"
    assert item.content is not None
    assert item.content[0].text == "Hm."
    assert response.output_text == "Hello"
