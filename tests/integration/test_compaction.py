"""Compaction: long conversations continue from a sealed summary, which only this server can read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import openai
import pytest
from openai.types.responses import CompactedResponse, ResponseItem

from tests.support.conform import problems
from tests.support.openai_client import Json, create, function, messages, stored, stream
from tests.support.stack import LiveStack
from tests.support.strict import check_stream, read_sse
from tests.support.upstream import Reply, Upstream, error, finish, reply, text, tool_call
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
SHORT_TURNS: Sequence[Any] = [{**turn, "content": turn["content"][:60]} for turn in TURNS]
QUESTION: Any = {"role": "user", "content": "What is my name?"}
AT_100: Any = [{"type": "compaction", "compact_threshold": 100}]
SUMMARY = reply(text("The user is called ", f"Ada. {CANARY}"))
ANSWER = reply(text("Ada."))


def kinds(response: Json) -> list[str]:
    return [item["type"] for item in response["output"]]


def compact(client: openai.OpenAI, **fields: Any) -> Json:
    """Compact a conversation, check it against the SDK's types, which lack its user messages, and return its JSON."""
    parsed = client.responses.with_raw_response.compact(**fields)
    body: Json = parsed.http_response.json()
    assert parsed.parse().output[-1].type == "compaction"
    assert problems(CompactedResponse, {**body, "output": body["output"][-1:]}) == []
    for message in body["output"][:-1]:
        assert problems(ResponseItem, message) == []
        assert (message["type"], message["role"]) == ("message", "user")
    return body


def seen(upstream: Upstream) -> str:
    """Return the messages of the last chat request as JSON text."""
    return json.dumps(messages(upstream))


# On request


def test_compacted_input_continues_from_a_sealed_summary(
    client: openai.OpenAI, upstream: Upstream, stack: LiveStack
) -> None:
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


def test_compacting_a_previous_response_reads_its_history(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script("m", [ANSWER, SUMMARY])
    before = create(client, model=MODEL, input=[*TURNS, QUESTION])["id"]
    assert kinds(compact(client, model=MODEL, previous_response_id=before)) == ["message", "message", "compaction"]
    assert "Ada." in seen(upstream)


@pytest.mark.parametrize("trigger", [False, True], ids=["endpoint", "trigger"])
def test_call_without_output_is_compacted(client: openai.OpenAI, upstream: Upstream, trigger: bool) -> None:
    upstream.script("m", SUMMARY)
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    ask = create if trigger else compact
    end = [{"type": "compaction_trigger"}] if trigger else []
    compacted = ask(client, model=MODEL, input=[*TURNS, QUESTION, call, *end])
    assert kinds(compacted)[-1] == "compaction"
    assert "interrupted" in seen(upstream)


def test_invalid_compaction_requests_are_refused(client: openai.OpenAI, wire: Wire, upstream: Upstream) -> None:
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


def test_forged_summary_is_400(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script("m", SUMMARY)
    item = compact(client, model=MODEL, input="Hi")["output"][-1]
    seal = item["encrypted_content"]
    for wrong in ("abc", seal[:-8] + "AAAAAAA=", seal[:40]):
        for ask in (client.responses.create, client.responses.compact, client.responses.input_tokens.count):
            with pytest.raises(openai.BadRequestError) as refused:
                ask(model=MODEL, input=[item | {"encrypted_content": wrong}, QUESTION])
            assert refused.value.code == "invalid_encrypted_content"
    assert len(upstream.requests("m")) == 1


def test_compaction_skips_summarized_files_and_keeps_those_of_open_message(
    client: openai.OpenAI, upstream: Upstream
) -> None:
    old, new = (
        client.files.create(file=(name, content), purpose="assistants").id
        for name, content in (
            ("old.txt", b"Old."),
            ("new.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + b"\0\0\0\1" * 4 + b"\0\0\0\0\1IDATxcrc."),
        )
    )
    look = function("look")
    upstream.script("m", [ANSWER, SUMMARY, reply(tool_call(0, "call_1", "look", "{}")), SUMMARY, ANSWER])
    first = create(client, model=MODEL, input=[{"role": "user", "content": [{"type": "input_file", "file_id": old}]}])
    trigger: Any = [{"type": "compaction_trigger"}]
    compacted = create(client, model=MODEL, previous_response_id=first["id"], input=trigger)
    client.files.delete(old)
    questions: Any = [{"role": "user", "content": [{"type": "input_image", "file_id": new}]}]
    called = create(client, model=MODEL, previous_response_id=compacted["id"], input=questions, tools=[look])
    result: Any = [{"type": "function_call_output", "call_id": "call_1", "output": "word " * 100}]
    ended = create(
        client, model=MODEL, previous_response_id=called["id"], input=result, tools=[look], context_management=AT_100
    )
    assert kinds(ended) == ["compaction", "message"]
    [output] = messages(upstream)
    assert [part["type"] for part in output["content"]] == ["text", "image_url"]


# By a trigger


@pytest.mark.parametrize("background", [False, True])
def test_compaction_trigger_returns_only_a_compaction_item(
    client: openai.OpenAI, upstream: Upstream, background: bool
) -> None:
    upstream.script("m", [ANSWER, SUMMARY, ANSWER])
    before = create(client, model=MODEL, input=[*TURNS, QUESTION])["id"]
    trigger: Any = [{"type": "compaction_trigger"}]
    streamed = stream(client, model=MODEL, previous_response_id=before, input=trigger, background=background)
    assert kinds(streamed.response) == ["compaction"]
    assert streamed.types[-4:] == ["output_item.added", "compaction.compacting", "output_item.done", "completed"]
    found = client.responses.input_items.list(streamed.response["id"]).data
    assert [item.type for item in found] == ["message"] * 4
    after = create(client, model=MODEL, previous_response_id=streamed.response["id"], input="And now?")
    assert kinds(after) == ["message"]
    sent = messages(upstream)
    assert len(sent) == 2
    assert CANARY in sent[0]["content"]


# At a threshold


@pytest.mark.parametrize("store", [True, False])
def test_input_over_threshold_is_compacted_before_the_answer(
    client: openai.OpenAI, wire: Wire, upstream: Upstream, store: bool
) -> None:
    upstream.script("m", [SUMMARY, ANSWER, ANSWER])
    request: Json = {"model": MODEL, "input": [*TURNS, QUESTION], "context_management": AT_100, "store": store}
    streamed = stream(client, **request)
    final = streamed.response
    assert kinds(final) == ["compaction", "message"]
    assert final["output"][1]["content"][0]["text"] == "Ada."
    assert messages(upstream)[-1]["content"] == "What is my name?"
    assert final["usage"]["input_tokens"] == 20  # two requests
    go_on: Json = {"input": [*TURNS, QUESTION, *final["output"], {"role": "user", "content": "And now?"}]}
    if store:
        assert stored(client, final["id"]) == final
        assert wire.replay(final["id"]) == streamed.events
        go_on = {"previous_response_id": final["id"], "input": "And now?"}
    create(client, model=MODEL, **go_on, store=store, context_management=AT_100)
    sent = messages(upstream)
    assert [message["role"] for message in sent] == ["user", "assistant", "user"]
    assert CANARY in sent[0]["content"]
    assert "What is my name?" in sent[0]["content"]
    assert "word word" not in json.dumps(sent)


def test_conversation_is_compacted_by_threshold_and_trigger(client: openai.OpenAI, upstream: Upstream) -> None:
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


def test_background_response_over_threshold_is_compacted(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script("m", [SUMMARY, ANSWER])
    streamed = stream(client, model=MODEL, input=[*TURNS, QUESTION], context_management=AT_100, background=True)
    assert kinds(streamed.response) == ["compaction", "message"]


def test_failed_summary_fails_the_response(client: openai.OpenAI, wire: Wire, upstream: Upstream) -> None:
    upstream.script("m", reply(text("The user is"), end="drop"))
    request = {"model": MODEL, "input": [*TURNS, QUESTION], "context_management": AT_100, "stream": True}
    with wire.http.stream("POST", "/responses", json=request) as answer:
        final = check_stream(read_sse(answer.iter_bytes()).events)
    assert final["status"] == "failed"
    [cut] = final["output"]
    assert cut["encrypted_content"] == ""
    # The empty compaction replaces nothing: the next response gets the whole history.
    upstream.script("m", ANSWER)
    create(client, model=MODEL, previous_response_id=final["id"], input="And now?")
    assert "word word" in seen(upstream)


CONTEXT = 800


@pytest.mark.parametrize(("by", "turns"), [("threshold", 12), ("refusals", 12)])
def test_many_turns_with_compaction_stay_within_the_context(
    client: openai.OpenAI, upstream: Upstream, by: str, turns: int
) -> None:
    """Successive turns with calls on a model server that refuses requests over its context length."""
    model, tool = f"small-{by}", function("look", "what")
    call = reply(text("Let me look."), tool_call(0, "call_1", "look", '{"what": "x"}'))
    before: Json = {}
    compactions = 0
    threshold = {"compact_threshold": 500 if by == "threshold" else 100_000}
    request: Json = {
        "model": f"local/{model}",
        "tools": [tool],
        "context_management": [{"type": "compaction", **threshold}],
    }
    for number in range(turns):
        # This model gives the same reply to a request for a summary.
        for given, then in ((f"Question {number}? {'word ' * 20}", call), (None, reply(text(f"So {number} it is.")))):
            upstream.script(model, then, context=CONTEXT)
            items: Any = given or [{"type": "function_call_output", "call_id": "call_1", "output": "found " * 20}]
            response = create(client, input=items, **request, **before)
            before = {"previous_response_id": response["id"]}
            compactions += kinds(response).count("compaction")
    assert compactions >= 1
    within = [each.body for each in upstream.requests(model) if each.ended == "completed"]
    assert max(map(tokens, within)) <= CONTEXT
    assert len(within) == 2 * turns + compactions


@pytest.mark.parametrize(
    "refusal",
    [
        error(400, "The decoder prompt (length 800) is longer than the maximum model length of 400."),  # vLLM
        error(400, "Invalid request: Your request exceeded model token limit: 400 (requested: 800)"),  # Kimi
        error(400, "Input is too long for requested model."),  # Bedrock
        reply(finish("length"), usage={"prompt_tokens": 400, "completion_tokens": 0, "total_tokens": 400}),
    ],
    ids=["vLLM", "Kimi", "Bedrock", "nothing"],
)
def test_refusal_in_the_words_of_any_vendor_starts_compaction(
    client: openai.OpenAI, upstream: Upstream, provider: str, refusal: Reply
) -> None:
    model = f"compacts-in-words-{provider}"
    upstream.script(model, [error(400, "This model's maximum context length is 400 tokens.")] * 2)
    for _ in range(2):  # a length is believed once two refusals have named it
        with pytest.raises(openai.BadRequestError):
            client.responses.create(model=f"{provider}/{model}", input="Hi")
    upstream.script(model, [refusal, SUMMARY, ANSWER])
    far: Any = [{"type": "compaction", "compact_threshold": 100_000}]
    response = create(client, model=f"{provider}/{model}", input=[*SHORT_TURNS, QUESTION], context_management=far)
    assert kinds(response) == ["compaction", "message"]
    assert len(upstream.requests(model)) == 5
