"""Inputs that are longer than the model's context: refused, or truncated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import openai
import pytest

from tests.support.openai_client import Json, create, function, messages, stored, stream
from tests.support.upstream import Upstream, reply, text, tool_call
from tests.support.upstream_server import tokens

pytestmark = pytest.mark.live

CONTEXT = 400
TURNS: Sequence[Any] = [
    {"role": role, "content": f"{role} {number} {'word ' * 30}"}
    for number in range(12)
    for role in ("user", "assistant")
]
QUESTION: Any = {"role": "user", "content": "And now?"}


def long(model: str, **fields: Any) -> Json:
    """Return a request whose input is twice as long as the context."""
    return {"model": model, "input": [*TURNS, QUESTION], "instructions": "Be kind.", **fields}


@pytest.mark.parametrize("truncation", ["disabled", None])
def test_input_over_the_context_without_truncation_is_400(
    client: openai.OpenAI, upstream: Upstream, provider: str, truncation: Any
) -> None:
    upstream.script("small", reply(text("Hello")), context=CONTEXT)
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(**long(f"{provider}/small", truncation=truncation))
    assert refused.value.code == "context_length_exceeded"
    assert refused.value.param == "input"
    assert len(upstream.requests("small")) == 1


def test_truncation_auto_learns_the_context_length_from_the_first_error(
    client: openai.OpenAI, upstream: Upstream, provider: str
) -> None:
    model = f"small-{provider}"
    upstream.script(model, reply(text("Hello")), context=CONTEXT)
    request = long(f"{provider}/{model}", truncation="auto")
    first = stream(client, **request)
    assert first.response["truncation"] == "auto"
    sent = messages(upstream, model)
    assert sent[0]["content"] == "Be kind."
    assert sent[-1]["content"] == "And now?"
    assert sent[1]["role"] == "user"
    assert sent[-2]["content"].startswith("assistant 11")
    tries = len(upstream.requests(model))
    assert tries == 2

    # The length is known now. Items that were left out for the model are still part of the history.
    second = create(
        client, model=request["model"], input="More.", previous_response_id=first.response["id"], truncation="auto"
    )
    assert len(client.responses.input_items.list(second["id"], limit=100).data) == len(TURNS) + 3
    assert stored(client, second["id"]) == second
    assert messages(upstream, model)[-1]["content"] == "More."


def test_truncation_auto_fits_each_request_of_a_long_turn(client: openai.OpenAI, upstream: Upstream) -> None:
    """Twenty successive calls with their outputs; each request sends all items before it."""
    upstream.script(
        "agent",
        [reply(tool_call(0, f"call_{n}", "f", "{}")) for n in range(20)] + [reply(text("Done."))],
        context=CONTEXT,
    )
    tool = function("f")
    items: list[Any] = [QUESTION]
    while True:
        response = create(client, model="local/agent", input=items, tools=[tool], truncation="auto", store=False)
        [output] = response["output"]
        items.append(output)
        if output["type"] == "message":
            break
        items.append({"type": "function_call_output", "call_id": output["call_id"], "output": "word " * 20})
    assert len(items) == 42
    answered = [each.body for each in upstream.requests("agent") if each.ended == "completed"]
    assert len(answered) == 21
    for body in answered:
        assert tokens(body) <= CONTEXT
        assert "And now?" in [message["content"] for message in body["messages"]]
        outputs = [message["tool_call_id"] for message in body["messages"] if message["role"] == "tool"]
        assert outputs == [call["id"] for message in body["messages"] for call in message.get("tool_calls", ())]
