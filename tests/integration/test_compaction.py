"""Long conversations that go on from a summary, which nobody but this server can read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import openai
import pytest
from openai.types.responses import CompactedResponse, ResponseItem

from tests.support.asking import Json, create, function, messages, stored, stream
from tests.support.conform import problems
from tests.support.stack import LiveStack
from tests.support.strict import check_stream, read_sse
from tests.support.upstream import Upstream, error, reply, text, tool_call
from tests.support.upstream_server import tokens
from tests.support.variants import traces
from tests.support.wire import Wire, error_of

pytestmark = pytest.mark.live

MODEL = "local/m"
CANARY = "summary-canary-0815"
TURNS: Sequence[Any] = [
    {"role": "user", "content": f"My name is Ada. {'word ' * 100}"},
    {"role": "assistant", "content": f"Hello Ada. {'word ' * 100}"},
]
QUESTION: Any = {"role": "user", "content": "What is my name?"}
AT_100: Any = [{"type": "compaction", "compact_threshold": 100}]
SUMMARY = reply(text("The user is called ", f"Ada. {CANARY}"))
ANSWER = reply(text("Ada."))


def kinds(response: Json) -> list[str]:
    return [item["type"] for item in response["output"]]


def compact(client: openai.OpenAI, **asked: Any) -> Json:
    """A compacted conversation, checked against the types, as JSON: they do not have the user's messages in it."""
    parsed = client.responses.with_raw_response.compact(**asked)
    body: Json = parsed.http_response.json()
    assert parsed.parse().output[-1].type == "compaction"
    assert problems(CompactedResponse, {**body, "output": body["output"][-1:]}) == []
    for message in body["output"][:-1]:
        assert problems(ResponseItem, message) == []
        assert (message["type"], message["role"]) == ("message", "user")
    return body


def seen(upstream: Upstream) -> str:
    """The last chat, as text."""
    return json.dumps(messages(upstream))


# On request


def test_a_conversation_is_compacted_and_goes_on(client: openai.OpenAI, upstream: Upstream, stack: LiveStack) -> None:
    upstream.script("m", [SUMMARY, ANSWER])
    body = compact(client, model=MODEL, input=[*TURNS, QUESTION], instructions="Be kind.")
    assert body["object"] == "response.compaction"
    assert body["usage"]["total_tokens"] == 12
    assert kinds(body) == ["message", "message", "compaction"]
    assert CANARY not in json.dumps(body)
    assert messages(upstream)[0]["content"] == "Be kind."

    final = create(client, model=MODEL, input=[*body["output"], {"role": "user", "content": "And now?"}], store=False)
    assert kinds(final) == ["message"]
    sent = messages(upstream)
    assert len(sent) == 2
    assert CANARY in sent[0]["content"]
    assert sent[1]["content"] == "And now?"
    assert traces(stack.state_dir, CANARY) == []


def test_a_stored_conversation_is_compacted(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script("m", [ANSWER, SUMMARY])
    before = create(client, model=MODEL, input=[*TURNS, QUESTION])["id"]
    assert kinds(compact(client, model=MODEL, previous_response_id=before)) == ["message", "message", "compaction"]
    assert "Ada." in seen(upstream)


def test_what_is_wrong_is_refused(client: openai.OpenAI, wire: Wire, upstream: Upstream) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.compact(model=MODEL)
    assert refused.value.param == "input"
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.compact(model=MODEL, input=[])
    with pytest.raises(openai.NotFoundError):
        client.responses.compact(model="local/missing", input="Hi")
    upstream.script("m", error(500, "Out of order"))
    with pytest.raises(openai.InternalServerError) as failed:
        client.responses.compact(model=MODEL, input="Hi")
    assert failed.value.status_code == 502
    assert error_of(wire.http.get("/responses/compact"), 405)["code"] == "method_not_supported"


def test_a_summary_of_others_is_refused(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script("m", SUMMARY)
    item = compact(client, model=MODEL, input="Hi")["output"][-1]
    seal = item["encrypted_content"]
    for wrong in ("abc", seal[:-8] + "AAAAAAA=", seal[:40]):
        for ask in (client.responses.create, client.responses.compact, client.responses.input_tokens.count):
            with pytest.raises(openai.BadRequestError) as refused:
                ask(model=MODEL, input=[item | {"encrypted_content": wrong}, QUESTION])
            assert refused.value.code == "invalid_encrypted_content"
    assert len(upstream.requests("m")) == 1


def test_files_before_it_are_not_read_and_those_of_an_open_message_are(
    client: openai.OpenAI, upstream: Upstream
) -> None:
    old, new = (
        client.files.create(file=(name, content), purpose="assistants").id
        for name, content in (("old.txt", b"Old."), ("new.png", b"\x89PNG\r\n\x1a\n"))
    )
    look = function("look")
    upstream.script("m", [ANSWER, SUMMARY, reply(tool_call(0, "call_1", "look", "{}")), SUMMARY, ANSWER])
    first = create(client, model=MODEL, input=[{"role": "user", "content": [{"type": "input_file", "file_id": old}]}])
    trigger: Any = [{"type": "compaction_trigger"}]
    compacted = create(client, model=MODEL, previous_response_id=first["id"], input=trigger)
    client.files.delete(old)
    asked: Any = [{"role": "user", "content": [{"type": "input_image", "file_id": new}]}]
    called = create(client, model=MODEL, previous_response_id=compacted["id"], input=asked, tools=[look])
    result: Any = [{"type": "function_call_output", "call_id": "call_1", "output": "word " * 100}]
    ended = create(
        client, model=MODEL, previous_response_id=called["id"], input=result, tools=[look], context_management=AT_100
    )
    assert kinds(ended) == ["compaction", "message"]
    [told] = messages(upstream)
    assert [part["type"] for part in told["content"]] == ["text", "image_url"]


# By a trigger


@pytest.mark.parametrize("background", [False, True])
def test_a_trigger(client: openai.OpenAI, upstream: Upstream, background: bool) -> None:
    upstream.script("m", [ANSWER, SUMMARY, ANSWER])
    before = create(client, model=MODEL, input=[*TURNS, QUESTION])["id"]
    trigger: Any = [{"type": "compaction_trigger"}]
    made = stream(client, model=MODEL, previous_response_id=before, input=trigger, background=background)
    assert kinds(made.response) == ["compaction"]
    assert made.types[-4:] == ["output_item.added", "compaction.compacting", "output_item.done", "completed"]
    found = client.responses.input_items.list(made.response["id"]).data
    assert [item.type for item in found] == ["message"] * 4
    after = create(client, model=MODEL, previous_response_id=made.response["id"], input="And now?")
    assert kinds(after) == ["message"]
    sent = messages(upstream)
    assert len(sent) == 2
    assert CANARY in sent[0]["content"]


# At a threshold


@pytest.mark.parametrize("store", [True, False])
def test_past_a_threshold(client: openai.OpenAI, wire: Wire, upstream: Upstream, store: bool) -> None:
    upstream.script("m", [SUMMARY, ANSWER, ANSWER])
    asked: Json = {"model": MODEL, "input": [*TURNS, QUESTION], "context_management": AT_100, "store": store}
    made = stream(client, **asked)
    final = made.response
    assert kinds(final) == ["compaction", "message"]
    assert final["output"][1]["content"][0]["text"] == "Ada."
    assert messages(upstream)[-1]["content"] == "What is my name?"
    assert final["usage"]["input_tokens"] == 20  # two requests
    go_on: Json = {"input": [*TURNS, QUESTION, *final["output"], {"role": "user", "content": "And now?"}]}
    if store:
        assert stored(client, final["id"]) == final
        assert wire.replay(final["id"]) == made.events
        go_on = {"previous_response_id": final["id"], "input": "And now?"}
    create(client, model=MODEL, **go_on, store=store, context_management=AT_100)
    sent = messages(upstream)
    assert [message["role"] for message in sent] == ["user", "assistant", "user"]
    assert CANARY in sent[0]["content"]
    assert "What is my name?" in sent[0]["content"]
    assert "word word" not in json.dumps(sent)


def test_in_a_conversation(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script("m", [SUMMARY, ANSWER, SUMMARY, ANSWER])
    conversation = client.conversations.create(items=list(TURNS)).id
    create(client, model=MODEL, conversation=conversation, input="What is my name?", context_management=AT_100)
    create(client, model=MODEL, conversation=conversation, input=[{"type": "compaction_trigger"}])
    create(client, model=MODEL, conversation=conversation, input="And now?")
    kept = client.conversations.items.list(conversation, order="asc").data
    assert [item.type for item in kept] == [*["message"] * 3, "compaction", "message", "compaction", *["message"] * 2]
    assert len(messages(upstream)) == 2
    assert CANARY in messages(upstream)[0]["content"]
    with pytest.raises(openai.BadRequestError) as refused:
        client.conversations.items.create(conversation, items=[{"type": "compaction_trigger"}])
    assert refused.value.param == "items"
    forged: Any = {"type": "compaction", "encrypted_content": "abc"}
    with pytest.raises(openai.BadRequestError) as refused:
        client.conversations.items.create(conversation, items=[forged])
    assert refused.value.code == "invalid_encrypted_content"


def test_in_the_background(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script("m", [SUMMARY, ANSWER])
    made = stream(client, model=MODEL, input=[*TURNS, QUESTION], context_management=AT_100, background=True)
    assert kinds(made.response) == ["compaction", "message"]


def test_a_summary_that_fails_fails_the_response(client: openai.OpenAI, wire: Wire, upstream: Upstream) -> None:
    upstream.script("m", reply(text("The user is"), end="drop"))
    asked = {"model": MODEL, "input": [*TURNS, QUESTION], "context_management": AT_100, "stream": True}
    with wire.http.stream("POST", "/responses", json=asked) as answer:
        final = check_stream(read_sse(answer.iter_bytes()).events)
    assert final["status"] == "failed"
    [cut] = final["output"]
    assert cut["encrypted_content"] == ""
    # It stands for nothing: the conversation goes on with all of it.
    upstream.script("m", ANSWER)
    create(client, model=MODEL, previous_response_id=final["id"], input="And now?")
    assert "word word" in seen(upstream)


CONTEXT = 800


@pytest.mark.parametrize(("by", "turns"), [("threshold", 12), ("refusals", 12)])
def test_a_long_run_under_a_small_context_stays_within_it(
    client: openai.OpenAI, upstream: Upstream, by: str, turns: int
) -> None:
    """Turns with calls, one after the other, on a model server that refuses more than its context has."""
    model, tool = f"small-{by}", function("look", "what")
    call = reply(text("Let me look."), tool_call(0, "call_1", "look", '{"what": "x"}'))
    before: Json = {}
    compactions = 0
    threshold = {"compact_threshold": 500 if by == "threshold" else 100_000}
    asked: Json = {
        "model": f"local/{model}",
        "tools": [tool],
        "context_management": [{"type": "compaction", **threshold}],
    }
    for number in range(turns):
        # Whatever is asked of it, a summary too, this model says something.
        for given, then in ((f"Question {number}? {'word ' * 20}", call), (None, reply(text(f"So {number} it is.")))):
            upstream.script(model, then, context=CONTEXT)
            items: Any = given or [{"type": "function_call_output", "call_id": "call_1", "output": "found " * 20}]
            made = create(client, input=items, **asked, **before)
            before = {"previous_response_id": made["id"]}
            compactions += kinds(made).count("compaction")
    assert compactions >= 1
    within = [each.body for each in upstream.requests(model) if each.ended == "completed"]
    assert max(map(tokens, within)) <= CONTEXT
    assert len(within) == 2 * turns + compactions
