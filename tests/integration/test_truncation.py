"""Inputs that are longer than the model's context: refused, or truncated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import openai
import pytest

from tests.support.openai_client import Json, create, function, messages, stored, stream
from tests.support.upstream import Reply, Upstream, error, finish, reply, text, tool_call
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


REFUSALS: Sequence[Any] = [
    error(400, "This model's maximum prompt length is 400 but the request contains 800 tokens."),  # xAI
    error(400, "Please reduce the length of the messages or completion."),  # Groq
    error(400, "Invalid request: Your request exceeded model token limit: 400 (requested: 800)"),  # Kimi
    error(400, "Input is too long for requested model."),  # Bedrock
    error(400, "Range of input length should be [1, 400]"),  # DashScope
    error(400, "too many tokens: size limit exceeded"),  # Cohere
    error(400, "The decoder prompt (length 800) is longer than the maximum model length of 400."),  # vLLM
    error(500, "the request exceeds the available context size", "exceed_context_size_error"),  # llama.cpp
    error(413, "The input exceeds the context window of this model."),
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda each: each.body["error"]["message"][:20])
def test_refusal_in_the_words_of_any_vendor_starts_truncation(
    client: openai.OpenAI, upstream: Upstream, provider: str, refusal: Reply
) -> None:
    model = f"words-of-vendors-{provider}"
    quick = replace(refusal, headers={"retry-after-ms": "1"})  # the host's client makes three attempts at a 500
    upstream.script(
        model, [*[quick] * (3 if provider == "vllm" and refusal.status == 500 else 1), reply(text("Hello"))]
    )
    response = create(client, **long(f"{provider}/{model}", truncation="auto"))
    assert response["output"][0]["content"][0]["text"] == "Hello"
    first, *_, last = [len(record.body["messages"]) for record in upstream.requests(model)]
    assert last < first


def test_limit_of_tokens_a_minute_is_no_refusal_for_length(
    client: openai.OpenAI, upstream: Upstream, provider: str
) -> None:
    message = "Rate limit reached for tokens per minute: the maximum context of your tier is 1 TPM."
    upstream.script("limited", error(429, message, headers={"retry-after-ms": "1"}))
    with pytest.raises(openai.RateLimitError):
        client.responses.create(**long(f"{provider}/limited", truncation="auto"))
    assert len({len(record.body["messages"]) for record in upstream.requests("limited")}) == 1


def filled(tokens: int) -> Reply:
    """Return an answer that ends at once, since the request has filled the context."""
    usage = {"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens}
    return reply(finish("length"), usage=usage)


@pytest.mark.parametrize("streams", [True, False])
def test_answer_without_room_is_truncated_by_the_usage_of_the_model_server(
    client: openai.OpenAI, upstream: Upstream, provider: str, streams: bool
) -> None:
    model = f"filled-{provider}-{streams}"
    refusal = error(400, "This model's maximum context length is 400 tokens. However, you requested 900 tokens.")
    upstream.script(model, [refusal, filled(400), reply(text("Hello"))])
    request = long(f"{provider}/{model}", truncation="auto")
    response = stream(client, **request).response if streams else create(client, **request)
    assert response["status"] == "completed"
    sizes = [tokens(record.body) for record in upstream.requests(model)]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 3


def test_answer_without_room_is_context_length_exceeded(
    client: openai.OpenAI, upstream: Upstream, provider: str
) -> None:
    model = f"filled-whole-{provider}"
    refusal = error(400, "This model's maximum context length is 400 tokens.")
    upstream.script(model, [refusal, refusal, filled(400)])
    request = long(f"{provider}/{model}")
    for _ in range(3):  # two refusals tell the length
        with pytest.raises(openai.BadRequestError) as refused:
            client.responses.create(**request)
        assert refused.value.code == "context_length_exceeded"
    assert "has no room for an answer" in refused.value.message
