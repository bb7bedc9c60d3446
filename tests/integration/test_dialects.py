"""Model servers whose chat templates refuse a history: it is sent again in the dialect that they take, and stays so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from uuid import uuid4

import openai
import pytest

from tests.support.chat_templates import CHECKS
from tests.support.one_pixel import ONE_PIXEL
from tests.support.openai_client import Json, create, function, stream
from tests.support.upstream import Reply, Upstream, error, reasoning, reply, text, tool_call

pytestmark = [pytest.mark.live, pytest.mark.both_hosts]

HELLO: Final = reply(text("Hello"))
DATE: Final[Json] = {"type": "object", "properties": {"day": {"type": "string", "format": "date", "pattern": "^2"}}}
TOOLS: Final = [function("weather", "city"), {"type": "function", "name": "plan", "parameters": DATE}]
IMAGE: Final[Json] = {
    "type": "input_image",
    "image_url": ONE_PIXEL,
}
CALL: Final[Json] = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": "{}"}


def user(content: Any = "Hi") -> Json:
    return {"role": "user", "content": content}


def assistant(content: str) -> Json:
    return {"role": "assistant", "content": content}


def output(content: Any = "Snow.") -> Json:
    return {"type": "function_call_output", "call_id": "call_1", "output": content}


# The input that a model server with the check of this name refuses.
INPUTS: Final[dict[str, list[Json]]] = {
    "alternate": [user("a"), user("b"), assistant("c"), user("d")],
    "assistant_after_tool": [user(), CALL, output([IMAGE]), user("And?")],
    "empty_content": [user(), CALL, output()],
    "nine_character_ids": [user(), CALL, output()],
    "no_images": [user([{"type": "input_text", "text": "What is it?"}, IMAGE]), CALL, output([IMAGE])],
    "system_first": [user("a"), {"role": "developer", "content": "Be brief."}, user("b")],
}


@pytest.fixture
def model() -> str:
    """A model of which no test has learned anything."""
    return f"strict-{uuid4().hex[:8]}"


def sent(upstream: Upstream, model: str) -> list[list[Json]]:
    """Return the messages of each chat request for a model."""
    return [each.body["messages"] for each in upstream.requests(model)]


def refusal(dialect: str, status: int = 400) -> Reply:
    """Return the refusal of the model server that this dialect answers."""
    chats: dict[str, list[Json]] = {
        "alternate": [user(), user()],
        "assistant_after_tool": [{"role": "tool"}, user()],
        "empty_content": [{"role": "assistant", "content": None}],
        "nine_character_ids": [{"role": "tool", "tool_call_id": "call_1"}],
        "no_images": [user([{"type": "image_url"}])],
        "system_first": [user(), {"role": "system", "content": "a"}],
        "all_reasoning": [assistant("a")],
        "no_reasoning": [{**assistant("a"), "reasoning_content": "a"}],
    }
    words = CHECKS[dialect](chats[dialect])
    assert words
    return error(status, words)


@pytest.mark.parametrize("dialect", INPUTS)
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_refused_history_is_sent_in_the_dialect_of_the_template(
    client: openai.OpenAI, upstream: Upstream, model: str, dialect: str, streamed: bool
) -> None:
    # An image might be broken: that the model takes none is believed once it was refused in two responses.
    of_image = dialect == "no_images"
    replies = [refusal(dialect, 500 if of_image else 400), HELLO]
    upstream.script(model, replies)
    ask: Callable[..., Json] = (
        (lambda **fields: stream(client, **fields).response)
        if streamed
        else (lambda **fields: create(client, **fields))
    )
    request: Json = {"model": f"local/{model}", "tools": TOOLS}
    first = ask(**request, input=INPUTS[dialect])
    # A chain, and a client that sends everything again.
    upstream.script(model, replies if of_image else HELLO)
    ask(**request, input=[user("More.")], previous_response_id=first["id"])
    upstream.script(model, HELLO)
    ask(**request, input=[*INPUTS[dialect], *first["output"], user("More.")], store=False)
    requests = sent(upstream, model)
    taken = [CHECKS[dialect](messages) is None for messages in requests]
    assert taken == ([False, True, False, True, True] if of_image else [False, True, True, True])
    assert requests[-1] == requests[-2]


def test_ids_of_calls_are_those_of_the_client_outside_and_stable_inside(
    client: openai.OpenAI, upstream: Upstream, model: str
) -> None:
    called = reply(tool_call(0, "call_abcdefghijkl", "weather", "{}"))
    upstream.script(model, [called, refusal("nine_character_ids"), called, HELLO])
    request: Json = {"model": f"local/{model}", "tools": TOOLS}
    response, ids = create(client, **request, input="Hi"), list[str]()
    for _ in range(2):
        [call] = response["output"]
        ids.append(call["call_id"])
        result: Any = {"type": "function_call_output", "call_id": call["call_id"], "output": "Snow."}
        response = create(client, **request, input=[result], previous_response_id=response["id"])
    assert ids[0] == "call_abcdefghijkl"
    requests = sent(upstream, model)
    assert [CHECKS["nine_character_ids"](messages) is None for messages in requests] == [True, False, True, True]
    assert requests[3][: len(requests[2])] == requests[2]


@pytest.mark.parametrize("way", ["by id", "resent"])
def test_reasoning_that_a_model_server_demands_is_on_every_message_of_the_assistant(
    client: openai.OpenAI, upstream: Upstream, model: str, way: str
) -> None:
    upstream.script(
        model,
        [
            reply(reasoning("One."), text("a")),
            reply(text("b")),
            refusal("all_reasoning"),
            reply(reasoning("Three."), tool_call(0, "call_1", "weather", "{}")),
            HELLO,
        ],
    )
    request: Json = {"model": f"local/{model}", "tools": TOOLS}
    history: list[Json] = []
    response: Json = {}
    for given in (user("1"), user("2"), user("3"), output()):
        history += [*response.get("output", ()), given]
        link = {"previous_response_id": response["id"]} if response else {}
        more: Json = {"input": [given], **link} if way == "by id" else {"input": history, "store": False}
        response = create(client, **request, **more)
    found = [
        [message.get("reasoning_content") for message in messages if message["role"] == "assistant"]
        for messages in sent(upstream, model)
    ]
    assert found == [[], [None], [None, None], ["One.", ""], ["One.", "", "Three."]]


def test_reasoning_that_a_model_server_refuses_stays_away(
    client: openai.OpenAI, upstream: Upstream, model: str
) -> None:
    called = reply(reasoning("Hm."), tool_call(0, "call_1", "weather", "{}"))
    upstream.script(model, [called, refusal("no_reasoning"), HELLO])
    request: Json = {"model": f"local/{model}", "tools": TOOLS}
    first = create(client, **request, input="Hi")
    create(client, **request, input=[output()], previous_response_id=first["id"])
    create(client, **request, input=[*first["output"], output()], store=False)
    checked = [CHECKS["no_reasoning"](messages) is None for messages in sent(upstream, model)]
    assert checked == [True, False, True, True]


def test_signature_of_another_model_is_left_out_of_the_request_that_is_refused_for_it(
    client: openai.OpenAI, upstream: Upstream, model: str
) -> None:
    other = f"{model}-b"
    details = [{"type": "reasoning.text", "text": "Hm.", "signature": "s", "index": 0}]
    called = reply([{"reasoning_details": details}], tool_call(0, "call_1", "weather", "{}"))
    upstream.script(model, [called])
    words = "messages.1.content.0: Invalid `signature` in `thinking` block"
    upstream.script(other, [error(400, words), HELLO, called, HELLO])
    first = create(client, model=f"local/{model}", input="Hi", tools=TOOLS)
    create(client, model=f"local/{other}", input=[output()], previous_response_id=first["id"], tools=TOOLS)
    second = create(client, model=f"local/{other}", input="Hi", tools=TOOLS)
    create(client, model=f"local/{other}", input=[output()], previous_response_id=second["id"], tools=TOOLS)
    found = [messages[1].get("reasoning_details") for messages in sent(upstream, other) if len(messages) > 1]
    assert found == [details, None, details]


def test_schema_that_a_grammar_compiler_refuses_is_simplified(
    client: openai.OpenAI, upstream: Upstream, model: str
) -> None:
    upstream.script(model, [error(400, "Failed to initialize samplers: failed to parse grammar"), HELLO])
    response = create(client, model=f"local/{model}", tools=TOOLS, input="Hi")
    [_, schema] = (each.body["tools"][1]["function"]["parameters"] for each in upstream.requests(model))
    assert schema["properties"]["day"] == {"type": "string", "description": "(format: date, pattern: ^2)"}
    assert response["tools"][1]["parameters"] == DATE
