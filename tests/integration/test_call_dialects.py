"""Calls reach tools and clients once and whole, in every form in which model servers send them."""

from __future__ import annotations

import json
from typing import Any, Final

import openai
import pytest

from tests.support.openai_client import Json, create, function, stream
from tests.support.upstream import Chunk, Reply, Upstream, finish, reasoning, reply, text, tool_call
from tests.support.web import Web

pytestmark = pytest.mark.live

OSLO: Final = '{"city":"Oslo"}'
ROME: Final = '{"city":"Rome"}'
TOOLS: Final = [function("weather", "city"), function("clock", "zone")]


def part(arguments: Any = None, name: str | None = None, call_id: str | None = None, index: int | None = 0) -> Chunk:
    call: dict[str, Any] = {"function": {}}
    if index is not None:
        call["index"] = index
    if call_id is not None:
        call["id"] = call_id
    if name is not None:
        call["function"]["name"] = name
    if arguments is not None:
        call["function"]["arguments"] = arguments
    return {"tool_calls": [call]}


ONE: Final = {
    "deltas": tool_call(0, "c1", "weather", OSLO[:8], OSLO[8:]),
    "once more at the end": [*tool_call(0, "c1", "weather", OSLO[:8], OSLO[8:]), part(OSLO, "weather", "c1")],
    "once more without a name": [*tool_call(0, "c1", "weather", OSLO[:8], OSLO[8:]), part(OSLO)],
    "whole behind a half": [*tool_call(0, "c1", "weather", OSLO[:11]), part(OSLO)],
    "cumulative": [part(OSLO[:end], "weather", "c1") for end in (1, 6, 11, len(OSLO))],
    "empty object first": [part("{}", "weather", "c1"), part(OSLO[:4]), part(OSLO[4:])],
    "an object": [part({"city": "Oslo"}, "weather", "c1")],
    "encoded twice": [part(json.dumps(OSLO), "weather", "c1")],
    "names in each fragment": [part(OSLO[:4], "weather", "c1"), part(OSLO[4:], "weather", "c1")],
    "other ids": [part(OSLO[:4], "weather", "c1"), part(OSLO[4:], None, "c2")],
    "no index": [part(OSLO[:4], "weather", "c1", None), part(OSLO[4:], index=None)],
    "prefix": [part(OSLO, "functions.weather", "c1")],
    "another index": [part("", "weather", "c1"), part(OSLO[:4], index=1), part(OSLO[4:], index=1)],
    "alone in a list": [part(f"[{OSLO}]", "weather", "c1")],
    "channel mark": [part(OSLO[:4], "weather<|channel|>commentary", "c1"), part(OSLO[4:])],
}
TWO: Final = {
    "index 0, ids": [part(OSLO, "weather", "c1"), part(ROME, "weather", "c2")],
    "index 0, fragments": [
        part(OSLO[:4], "weather", "c1"),
        part(OSLO[4:]),
        part(ROME[:4], "weather", "c2"),
        part(ROME[4:]),
    ],
    "index 0, no id": [part(OSLO, "weather", "c1"), part(ROME, "weather")],
    "no index": [part(OSLO, "weather", "c1", None), part(ROME, "weather", "c2", None)],
}
UNCLEAR: Final = {
    "another call without a name": [part(OSLO, "weather", "c1"), part(ROME, "", "c2")],
    "another call without name and id": [part(OSLO, "weather", "c1"), part(ROME)],
    "other arguments": [part(OSLO, "weather", "c1"), part(ROME, "weather", "c1")],
    "half": [part(OSLO[:8], "weather", "c1")],
    "half and a whole one": [part(OSLO[:8], "weather", "c1"), part(ROME, "clock", "c2")],
    "glued": [part(OSLO + ROME, "weather", "c1")],
    "two in a list": [part(f"[{OSLO}, {ROME}]", "weather", "c1")],
    "half a list": [part(f"[{OSLO[:8]}", "weather", "c1")],
    "half encoded twice": [part(json.dumps(OSLO)[:9], "weather", "c1")],
}


def called(response: Json) -> list[tuple[str, Any]]:
    """Return the calls of a response, as (name, arguments)."""
    found = [item for item in response["output"] if item["type"] == "function_call"]
    return [(item["name"], json.loads(item["arguments"])) for item in found]


@pytest.mark.parametrize("form", ONE)
def test_call_in_any_form_reaches_the_client_once(
    client: openai.OpenAI, upstream: Upstream, provider: str, form: str
) -> None:
    upstream.script("dialect", reply(ONE[form], finish("tool_calls")))
    streamed = stream(client, model=f"{provider}/dialect", input="Hi", tools=TOOLS)
    assert streamed.response["status"] == "completed"
    assert called(streamed.response) == [("weather", {"city": "Oslo"})]


@pytest.mark.parametrize("form", TWO)
def test_calls_on_one_index_are_told_apart(client: openai.OpenAI, upstream: Upstream, provider: str, form: str) -> None:
    upstream.script("dialect", reply(TWO[form], finish("tool_calls")))
    streamed = stream(client, model=f"{provider}/dialect", input="Hi", tools=TOOLS)
    assert called(streamed.response) == [("weather", {"city": "Oslo"}), ("weather", {"city": "Rome"})]


@pytest.mark.parametrize("form", UNCLEAR)
def test_call_that_cannot_be_told_apart_fails_the_response(
    client: openai.OpenAI, upstream: Upstream, provider: str, form: str
) -> None:
    upstream.script("dialect", [reply(UNCLEAR[form], finish("tool_calls")), reply(text("Done."))])
    streamed = stream(client, model=f"{provider}/dialect", input="Hi", tools=TOOLS)
    assert streamed.response["status"] == "failed"
    assert "weather" in streamed.response["error"]["message"]
    assert len(upstream.requests("dialect")) == 1


WHOLE: Final[dict[str, Json]] = {
    "text": {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": OSLO}},
    "an object": {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}},
    "encoded twice": {"id": "c1", "function": {"name": "weather", "arguments": json.dumps(OSLO)}},
    "prefix": {"id": "c1", "function": {"name": "functions.weather", "arguments": OSLO}},
    "channel mark": {"id": "c1", "function": {"name": "weather<|channel|>commentary", "arguments": OSLO}},
    "no id": {"function": {"name": "weather", "arguments": OSLO}},
}


def whole(*calls: Json) -> Reply:
    """Return an answer that is not streamed, with these calls."""
    message = {"role": "assistant", "content": None, "tool_calls": list(calls)}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    return Reply(body={"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]})


@pytest.mark.parametrize("form", WHOLE)
def test_call_of_unstreamed_answer_reaches_the_client_once(
    client: openai.OpenAI, upstream: Upstream, provider: str, form: str
) -> None:
    upstream.script("unstreamed-dialect", whole(WHOLE[form]))
    streamed = stream(client, model=f"{provider}/unstreamed-dialect", input="Hi", tools=TOOLS)
    assert called(streamed.response) == [("weather", {"city": "Oslo"})]


def test_calls_of_unstreamed_answer_are_told_apart(client: openai.OpenAI, upstream: Upstream, provider: str) -> None:
    calls = [{"function": {"name": "weather", "arguments": arguments}} for arguments in (OSLO, ROME)]
    upstream.script("unstreamed-dialect", whole(*calls))
    streamed = stream(client, model=f"{provider}/unstreamed-dialect", input="Hi", tools=TOOLS)
    assert called(streamed.response) == [("weather", {"city": "Oslo"}), ("weather", {"city": "Rome"})]


def test_half_call_of_unstreamed_answer_fails_the_response(
    client: openai.OpenAI, upstream: Upstream, provider: str
) -> None:
    upstream.script("unstreamed-dialect", whole({"id": "c1", "function": {"name": "weather", "arguments": OSLO[:8]}}))
    response = stream(client, model=f"{provider}/unstreamed-dialect", input="Hi", tools=TOOLS).response
    assert response["status"] == "failed"
    assert "weather" in response["error"]["message"]


def unread(written: str, *, in_stream: bool) -> Reply:
    """Return Groq's answer for a call that it could not read, as a status or as an event behind reasoning."""
    failure: Json = {
        "message": "Failed to call a function. Please adjust your prompt. See 'failed_generation' for more details.",
        "type": "invalid_request_error",
        "code": "tool_use_failed",
        "failed_generation": written,
        "status_code": 400,
    }
    body = {"error": failure}
    return reply(reasoning("Hm."), end="error_frame", body=body) if in_stream else Reply(status=400, body=body)


@pytest.mark.parametrize("in_stream", [False, True], ids=["status", "event"])
def test_whole_call_that_the_model_server_could_not_read_reaches_the_client(
    client: openai.OpenAI, upstream: Upstream, provider: str, in_stream: bool
) -> None:
    upstream.script("unread", unread(f"<function=weather>{OSLO}</function>", in_stream=in_stream))
    response = stream(client, model=f"{provider}/unread", input="Hi", tools=TOOLS).response
    assert (response["status"], called(response)) == ("completed", [("weather", {"city": "Oslo"})])
    assert len(upstream.requests("unread")) == 1


@pytest.mark.parametrize("in_stream", [False, True], ids=["status", "event"])
def test_model_is_told_of_its_call_that_could_not_be_read(
    client: openai.OpenAI, upstream: Upstream, provider: str, in_stream: bool
) -> None:
    half = unread('<function=weather>{"city": "Os', in_stream=in_stream)
    upstream.script("unread", [half, reply(tool_call(0, "c1", "weather", OSLO))])
    response = stream(client, model=f"{provider}/unread", input="Hi", tools=TOOLS).response
    assert (response["status"], called(response)) == ("completed", [("weather", {"city": "Oslo"})])
    [first, second] = (each.body["messages"] for each in upstream.requests("unread"))
    assert second[:-1] == first
    assert '<function=weather>{"city": "Os' in second[-1]["content"]


def test_model_that_never_writes_a_readable_call_fails_the_response(
    client: openai.OpenAI, upstream: Upstream, provider: str
) -> None:
    upstream.script("unread", unread('{"name": "weather", "arguments": {"city": 1}}', in_stream=False))
    tools: Any = [{**TOOLS[0], "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}]
    response = create(client, model=f"{provider}/unread", input="Hi", tools=tools)
    assert (response["status"], response["output"]) == ("failed", [])
    assert "Failed to call a function" in response["error"]["message"]
    assert len(upstream.requests("unread")) == 3


QUERY: Final = '{"queries":["otters"]}'
HOSTED: Final = {
    "once more at the end": [*tool_call(0, "c1", "web_search", QUERY[:8], QUERY[8:]), part(QUERY, "web_search", "c1")],
    "cumulative": [part(QUERY[:end], "web_search", "c1") for end in (1, 6, 11, len(QUERY))],
    "empty object first": [part("{}", "web_search", "c1"), part(QUERY[:4]), part(QUERY[4:])],
    "an object": [part({"queries": ["otters"]}, "web_search", "c1")],
    "prefix": [part(QUERY, "functions.web_search", "c1")],
    "no index": [part(QUERY[:4], "web_search", "c1", None), part(QUERY[4:], index=None)],
}
SEARCH: Final[Any] = {"type": "web_search"}


@pytest.mark.parametrize("form", HOSTED)
def test_call_in_any_form_runs_the_hosted_tool_once(
    client: openai.OpenAI, upstream: Upstream, web: Web, provider: str, form: str
) -> None:
    upstream.script("dialect", [reply(HOSTED[form], finish("tool_calls")), reply(text("Done."))])
    response = stream(client, model=f"{provider}/dialect", input="Hi", tools=[SEARCH]).response
    assert [item["type"] for item in response["output"]] == ["web_search_call", "message"]
    assert response["status"] == "completed"
    assert response["output"][0]["action"]["query"] == "otters"
    assert len(web.seen) == 1
    assert len(upstream.requests("dialect")) == 2


@pytest.mark.parametrize("form", ["glued", "half"])
def test_call_that_cannot_be_told_apart_runs_no_hosted_tool(
    client: openai.OpenAI, upstream: Upstream, web: Web, provider: str, form: str
) -> None:
    arguments = {"glued": QUERY + '{"queries":["seals"]}', "half": QUERY[:8]}[form]
    upstream.script("dialect", reply([part(arguments, "web_search", "c1")], finish("tool_calls")))
    response = stream(client, model=f"{provider}/dialect", input="Hi", tools=[SEARCH]).response
    assert response["status"] == "failed"
    assert len(upstream.requests("dialect")) == 1
    assert web.seen == []
