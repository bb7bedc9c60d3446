"""Reasoning goes back to the model server as it came: in a chain, resent, and within a response with a tool."""

from __future__ import annotations

from typing import Any, Final

import openai
import pytest

from tests.support.mcp_server import McpServers
from tests.support.openai_client import MODEL, NAME, Json, create, function, messages, stream
from tests.support.upstream import Chunk, Upstream, reasoning, reply, text, tool_call

pytestmark = pytest.mark.live

TOOLS: Final = [function("weather", "city")]
QUESTION: Final[Json] = {"role": "user", "content": "Hi"}
TEXT: Final[Json] = {"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0}
ENCRYPTED: Final[Json] = {"type": "reasoning.encrypted", "data": "AAAA", "id": "rs_1"}
SIGNED: Final[Json] = {"google": {"thought_signature": "s"}}


def signed(chunk: Chunk) -> Chunk:
    """Return the chunk of a call with Gemini's signature."""
    return {"tool_calls": [{**each, "extra_content": SIGNED} for each in chunk["tool_calls"]]}


def call(name: str, arguments: str = "{}") -> list[Chunk]:
    return tool_call(0, "c1", name, arguments)


# How reasoning comes before or with a call, and what the assistant's message has beside its usual members.
FORMS: Final[dict[str, tuple[list[Chunk], Json]]] = {
    "reasoning_content": (reasoning("Hm, ", "so."), {"reasoning_content": "Hm, so."}),
    "reasoning": (reasoning("Hm, ", "so.", field="reasoning"), {"reasoning": "Hm, so."}),
    "reasoning_text": (
        [*reasoning("Hm, ", "so.", field="reasoning_text"), {"reasoning_opaque": "AAAA"}],
        {"reasoning_text": "Hm, so.", "reasoning_opaque": "AAAA"},
    ),
    "signed details": (
        [
            {"reasoning": "Hm, ", "reasoning_details": [{**TEXT, "text": "Hm, "}]},
            {"reasoning": "so.", "reasoning_details": [{**TEXT, "text": "so."}]},
            {"reasoning_details": [{**TEXT, "signature": "s"}, ENCRYPTED]},
        ],
        {
            "reasoning": "Hm, so.",
            "reasoning_details": [{**TEXT, "text": "Hm, so.", "signature": "s"}, ENCRYPTED],
        },
    ),
    "encrypted details": ([{"reasoning_details": [ENCRYPTED]}], {"reasoning_details": [ENCRYPTED]}),
    "parts": (
        [{"content": [{"type": "thinking", "thinking": [{"type": "text", "text": each}]}]} for each in ("Hm, ", "so.")],
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm, so."}]}]},
    ),
}


def made(client: openai.OpenAI, *, streamed: bool, **request: Any) -> Json:
    return stream(client, **request).response if streamed else create(client, **request)


def resent(response: Json) -> list[Json]:
    """Return the output as a client resends it that keeps of the reasoning only what is sealed."""
    kept = ("type", "summary", "encrypted_content")
    return [{name: item[name] for name in kept} if item["type"] == "reasoning" else item for item in response["output"]]


def more_of(upstream: Upstream) -> Json:
    """Return what the first assistant's message of the last chat request has beside its usual members."""
    message = next(each for each in messages(upstream) if each["role"] == "assistant")
    return {
        name: value
        for name, value in message.items()
        if name not in ("role", "tool_calls") and not (name == "content" and value is None)
    }


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("way", ["by id", "resent"])
def test_reasoning_goes_back_as_it_came(
    client: openai.OpenAI, upstream: Upstream, form: str, streamed: bool, way: str
) -> None:
    chunks, expected = FORMS[form]
    upstream.script(NAME, [reply(chunks, call("weather")), reply(text("Snow."))])
    request: Json = {"model": MODEL, "tools": TOOLS, "store": way == "by id"}
    first = made(client, streamed=streamed, input=[QUESTION], **request)
    assert [item["type"] for item in first["output"]] == ["reasoning", "function_call"]
    output = {"type": "function_call_output", "call_id": first["output"][1]["call_id"], "output": "Snow."}
    again: Json = (
        {"previous_response_id": first["id"], "input": [output]}
        if way == "by id"
        else {"input": [QUESTION, *resent(first), output]}
    )
    made(client, streamed=streamed, **request, **again)
    assert more_of(upstream) == expected


@pytest.mark.parametrize("form", FORMS)
def test_reasoning_goes_back_as_it_came_through_a_provider_of_the_host(
    client: openai.OpenAI, upstream: Upstream, form: str
) -> None:
    chunks, expected = FORMS[form]
    upstream.script(NAME, [reply(chunks, call("weather")), reply(text("Snow."))])
    request: Json = {"model": f"vllm/{NAME}", "tools": TOOLS}
    first = made(client, streamed=True, input=[QUESTION], **request)
    output = {"type": "function_call_output", "call_id": first["output"][1]["call_id"], "output": "Snow."}
    made(client, streamed=True, previous_response_id=first["id"], input=[output], **request)
    assert more_of(upstream) == expected


@pytest.mark.parametrize("form", FORMS)
def test_reasoning_goes_back_as_it_came_within_a_response(
    client: openai.OpenAI, upstream: Upstream, mcp: McpServers, form: str
) -> None:
    chunks, expected = FORMS[form]
    upstream.script(NAME, [reply(chunks, call("mcp__echo", '{"text": "hi"}')), reply(text("Done."))])
    tool = {"type": "mcp", "server_label": "mcp", "server_url": mcp.url("mcp"), "require_approval": "never"}
    response = create(client, model=MODEL, input=[QUESTION], tools=[tool])
    assert [item["type"] for item in response["output"]] == ["mcp_list_tools", "reasoning", "mcp_call", "message"]
    assert more_of(upstream) == expected


CALLS: Final[dict[str, list[Chunk]]] = {
    "with the call": [signed(tool_call(0, "c1", "weather", "{}")[0])],
    "in a later chunk": [*tool_call(0, "c1", "weather", "{}"), signed({"tool_calls": [{"index": 0}]})],
    "without an id": [signed(tool_call(0, "", "weather", "{}")[0])],
    "several without ids": [
        {
            "tool_calls": [
                {"function": {"name": "weather", "arguments": '{"city": "Oslo"}'}, "extra_content": SIGNED},
                {"function": {"name": "weather", "arguments": '{"city": "Rome"}'}, "extra_content": SIGNED},
            ]
        }
    ],
}


@pytest.mark.parametrize("form", CALLS)
@pytest.mark.parametrize("way", ["by id", "resent"])
def test_signature_of_call_goes_back_with_it(client: openai.OpenAI, upstream: Upstream, form: str, way: str) -> None:
    upstream.script(NAME, [reply(CALLS[form]), reply(text("Snow."))])
    first = stream(client, model=MODEL, input=[QUESTION], tools=TOOLS).response
    calls = [item for item in first["output"] if item["type"] == "function_call"]
    outputs = [{"type": "function_call_output", "call_id": each["call_id"], "output": "Snow."} for each in calls]
    again: Json = (
        {"previous_response_id": first["id"], "input": outputs}
        if way == "by id"
        else {"input": [QUESTION, *resent(first), *outputs], "store": False}
    )
    create(client, model=MODEL, tools=TOOLS, **again)
    sent_back = messages(upstream)[1]["tool_calls"]
    assert [(each["id"], each.get("extra_content")) for each in sent_back] == [
        (each["call_id"], SIGNED) for each in calls
    ]
