"""What public reports say of model servers: refused requests are taken in the end, and answers are what they are."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import openai
import pytest

from tests.support.openai_client import Json, create, stored, stream
from tests.support.server_reports import ANSWERED, REFUSED, Answered, user
from tests.support.stack import LiveStack
from tests.support.upstream import Upstream
from tests.support.websocket_client import WebSocketClient

# All of it is about the bundled provider, which is the same on both hosts.
pytestmark = [pytest.mark.live, pytest.mark.extended, pytest.mark.one_host]


@pytest.fixture
def model() -> str:
    """A model of which no test has learned anything."""
    return f"reported-{uuid4().hex[:8]}"


@pytest.mark.parametrize("name", REFUSED)
def test_refused_request_is_taken_in_chains_and_stateless(
    client: openai.OpenAI, upstream: Upstream, model: str, name: str
) -> None:
    case = REFUSED[name]
    upstream.script(model, case.replies)
    fields: Any = {"model": f"local/{model}", **case.fields}
    items = list(case.items)
    first = stream(client, adapted=case.adapted, input=items, **fields).response
    history = [*items, *first["output"], user("Go on.")]
    # What takes something from an answer is learned from two responses.
    upstream.script(model, case.replies[-1 - case.again :])
    second = create(client, input=history[-1:], previous_response_id=first["id"], **fields)
    later = 0 if case.lasts else case.again
    upstream.script(model, case.replies[-1 - later :])
    third = create(client, input=history, store=False, **fields)
    assert [each["status"] for each in (first, second, third)] == ["completed"] * 3
    taken = [case.taken(request.body) for request in upstream.requests(model)]
    refused = (len(case.replies) - 1, case.again, later)
    assert taken == [each for count in refused for each in (*[False] * count, True)]


def said(response: Json) -> str:
    """Return the text, the arguments or the error of a response."""
    if response["error"]:
        return str(response["error"]["message"])
    parts = [part["text"] for item in response["output"] for part in item.get("content") or ()]
    return "".join(parts + [item["arguments"] for item in response["output"] if "arguments" in item])


def check(case: Answered, response: Json) -> None:
    """Compare a response with what a report demands."""
    assert (response["status"], (response["incomplete_details"] or {}).get("reason")) == (case.status, case.reason)
    assert case.said in said(response) if case.status == "failed" else case.said == said(response)
    if case.counts != "any":
        usage = response["usage"]
        assert (usage and (usage["input_tokens"], usage["output_tokens"])) == case.counts


@pytest.mark.parametrize("name", ANSWERED)
def test_answer_is_what_it_is_on_every_way(
    client: openai.OpenAI, upstream: Upstream, stack: LiveStack, model: str, name: str
) -> None:
    case = ANSWERED[name]
    fields: Any = {"model": f"local/{model}", "input": "Hi", **case.fields}
    upstream.script(model, case.replies)
    streamed = stream(client, **fields).response
    check(case, streamed)
    assert stored(client, streamed["id"]) == streamed
    upstream.script(model, case.replies)
    with WebSocketClient(stack) as websocket:
        websocket.ask(**fields)
        check(case, websocket.response())
    if case.status != "failed" or case.of_model:
        upstream.script(model, case.replies)
        check(case, create(client, **fields))
