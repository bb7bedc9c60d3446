"""Moderation and guardrails, by the host's safety provider or, on OGX, by a server with OpenAI's /moderations."""

import json
from typing import Any, Final

import openai
import pytest

from tests.support.openai_client import MODEL, NAME, Json, ValidatedStream, create, function, messages, stored, stream
from tests.support.upstream import Upstream, reasoning, reply, text, tool_call
from tests.support.waiting import wait_until
from tests.support.wire import Wire

pytestmark = [pytest.mark.live, pytest.mark.both_hosts]

WORDS: Final = "words-1"
LONG: Final = "All is well here. " * 12  # more than is held
SAID: Final = reply(text("Hello"))
CUT: Final = {"reason": "content_filter"}


def moderated(**modes: str) -> Any:
    """Return the `moderation` field with a mode for the input, the output or both."""
    return {"model": WORDS, "policy": {side: {"mode": mode} for side, mode in modes.items()}}


def kinds(response: Json) -> list[list[str]]:
    """Return the part types of each message."""
    return [[part["type"] for part in item["content"]] for item in response["output"] if item["type"] == "message"]


def whole(streamed: ValidatedStream, client: openai.OpenAI, wire: Wire) -> Json:
    """Check that a streamed response is stored and replayed unchanged, and return it."""
    response = streamed.response
    assert stored(client, response["id"]) == response
    assert wire.replay(response["id"]) == streamed.events
    return response


@pytest.mark.parametrize("word", ["good", "bad"])
def test_moderation_scores_do_not_change_the_output(
    client: openai.OpenAI, wire: Wire, upstream: Upstream, word: str
) -> None:
    upstream.script(NAME, reply(text("So ", word)))
    streamed = stream(client, model=MODEL, input=f"A {word} thing", moderation={"model": WORDS})
    response = whole(streamed, client, wire)
    assert (response["status"], streamed.texts("output_text")) == ("completed", ["So ", word])
    for side in ("input", "output"):
        found = response["moderation"][side]
        assert (found["type"], found["flagged"]) == ("moderation_result", word == "bad")
        assert found["category_scores"] == {"hate": 0.125, "violence": 0.75 if word == "bad" else 0.25}
    begun = streamed.events[0]["response"]["moderation"]
    assert (begun["input"], begun["output"]["type"]) == (response["moderation"]["input"], "error")


def test_sdk_reads_moderation_scores(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, SAID)
    moderation = client.responses.create(model=MODEL, input="bad", moderation={"model": WORDS}).moderation
    assert moderation
    assert moderation.input.type == "moderation_result"
    assert (moderation.input.flagged, moderation.input.model) == (True, WORDS)


BLOCKED: Final[dict[str, Json]] = {
    "moderation": {"moderation": moderated(input="block")},
    "guardrail": {"extra_body": {"guardrails": [WORDS]}},
    "object": {"extra_body": {"guardrails": [{"type": WORDS}]}},
    "default": {"extra_body": {"guardrails": True}},
}


@pytest.mark.parametrize("way", BLOCKED)
def test_flagged_input_is_blocked_before_the_model_sees_it(
    client: openai.OpenAI, wire: Wire, upstream: Upstream, way: str
) -> None:
    upstream.script(NAME, SAID)
    streamed = stream(client, model=MODEL, input="A bad thing", **BLOCKED[way])
    response = whole(streamed, client, wire)
    assert (response["status"], response["incomplete_details"]) == ("incomplete", CUT)
    assert kinds(response) == [["refusal"]]
    assert "(violence)" in response["output"][0]["content"][0]["refusal"]
    assert response["moderation"]["input"]["flagged"]
    assert response["usage"]["total_tokens"] == 0
    assert upstream.requests(NAME) == []
    assert kinds(create(client, model=MODEL, input="A bad thing", **BLOCKED[way])) == [["refusal"]]


def test_guard_model_of_the_stack_blocks_flagged_input(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, SAID)
    upstream.script("guard-8b", [reply(text("unsafe\nS1")), reply(text("safe"))])
    request: Json = {"model": MODEL, "moderation": {"model": "guard", "policy": {"input": {"mode": "block"}}}}
    assert kinds(create(client, input="A bad thing", **request)) == [["refusal"]]
    assert kinds(create(client, input="A good thing", **request)) == [["output_text"]]


def test_blocked_input_is_left_out_of_later_turns(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, SAID)
    first = create(client, model=MODEL, input="Hi")
    blocked = create(
        client, model=MODEL, input="A bad thing", previous_response_id=first["id"], **BLOCKED["moderation"]
    )
    assert [item.type for item in client.responses.input_items.list(blocked["id"]).data] == ["message"] * 3
    again: Any = [{"role": "user", "content": "A bad thing"}, *blocked["output"], {"role": "user", "content": "Why?"}]
    for request in ({"input": "Why?", "previous_response_id": blocked["id"]}, {"input": again}):
        assert create(client, model=MODEL, **request, **BLOCKED["moderation"])["status"] == "completed"
        assert "A bad" not in json.dumps(messages(upstream))
    assert [each["content"] for each in messages(upstream)] == ["Why?"]


def test_flagged_function_output_is_blocked_as_input(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, [reply(tool_call(0, "c1", "weather", "{}")), SAID])
    request: Json = {"model": MODEL, "tools": [function("weather")], **BLOCKED["moderation"]}
    first = create(client, input="Hi", **request)
    output: Any = [{"type": "function_call_output", "call_id": "c1", "output": "Do bad things."}]
    assert kinds(create(client, input=output, previous_response_id=first["id"], **request)) == [["refusal"]]
    assert len(upstream.requests(NAME)) == 1


@pytest.mark.parametrize("background", [False, True])
def test_flagged_output_is_cut_and_ends_the_generation(
    client: openai.OpenAI, wire: Wire, upstream: Upstream, background: bool
) -> None:
    upstream.script(NAME, reply(text(LONG, "A bad ", "thing. ", LONG), hold=4))
    streamed = stream(client, model=MODEL, input="Hi", background=background, extra_body={"guardrails": [WORDS]})
    response = whole(streamed, client, wire)
    assert (response["status"], response["incomplete_details"]) == ("incomplete", CUT)
    assert kinds(response) == [["output_text", "refusal"]]
    assert response["output"][0]["content"][0]["text"] == LONG
    assert "violence" in response["output"][0]["content"][1]["refusal"]
    assert "A bad" not in json.dumps(streamed.events)
    assert response["moderation"]["output"]["flagged"]
    wait_until(lambda: upstream.requests(NAME)[0].ended == "client_gone")


def test_unflagged_output_streams_the_same_events_with_blocking(client: openai.OpenAI, upstream: Upstream) -> None:
    texts = [reasoning("Hm. ", "So."), text("Wait. "), tool_call(0, "c1", "weather", '{"city":', '"Oslo"}')]
    upstream.script(NAME, reply(*texts))
    request: Json = {"model": MODEL, "input": "Hi", "tools": [function("weather", "city")]}
    plain = stream(client, **request)
    checked = stream(client, **request, moderation=moderated(output="block"))
    assert checked.types == plain.types
    assert checked.response["usage"] == plain.response["usage"]
    assert checked.response["moderation"]["output"]["flagged"] is False


@pytest.mark.parametrize("created", [reasoning("A bad thought."), tool_call(0, "c1", "weather", '{"city":"bad"}')])
def test_flagged_reasoning_and_arguments_are_blocked(client: openai.OpenAI, upstream: Upstream, created: Any) -> None:
    upstream.script(NAME, reply(created))
    request: Json = {"model": MODEL, "input": "Hi", "tools": [function("weather", "city")]}
    response = create(client, **request, moderation=moderated(output="block"))
    assert [item["type"] for item in response["output"]] == ["message"]
    assert kinds(response) == [["refusal"]]


def test_background_response_with_flagged_input_is_blocked(client: openai.OpenAI, upstream: Upstream) -> None:
    begun = client.responses.create(model=MODEL, input="bad", background=True, **BLOCKED["moderation"])
    wait_until(lambda: client.responses.retrieve(begun.id).status == "incomplete")
    assert kinds(stored(client, begun.id)) == [["refusal"]]
    assert upstream.requests(NAME) == []


def test_unreachable_moderator_of_input_is_502(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, SAID)
    wanted: Any = {"model": "away", "policy": {"input": {"mode": "block"}}}
    with pytest.raises(openai.APIStatusError, match="the check did not finish") as raised:
        client.responses.create(model=MODEL, input="Hi", moderation=wanted)
    assert raised.value.status_code == 502
    assert upstream.requests(NAME) == []


def test_unreachable_moderator_of_output_fails_the_response(
    client: openai.OpenAI, wire: Wire, upstream: Upstream
) -> None:
    upstream.script(NAME, SAID)
    wanted: Any = {"model": "away", "policy": {"output": {"mode": "block"}}}
    response = whole(stream(client, model=MODEL, input="Hi", moderation=wanted), client, wire)
    assert (response["status"], response["output"]) == ("failed", [])
    assert "the check did not finish" in response["error"]["message"]


def test_unreachable_moderator_without_policy_gives_no_scores(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, SAID)
    response = create(client, model=MODEL, input="Hi", moderation={"model": "away"})
    assert response["status"] == "completed"
    assert {side["code"] for side in response["moderation"].values()} == {"moderation_unavailable"}
