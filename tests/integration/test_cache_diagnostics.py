"""`prompt_cache_options.comparison_response_id`: why the prompt of an earlier response was not reused."""

from __future__ import annotations

from typing import Any, Final

import openai
import pytest

from tests.support.openai_client import MODEL, NAME, Json, create, function, stored, stream
from tests.support.sse import read_sse
from tests.support.strict import check_stream
from tests.support.upstream import Reply, Upstream, reply, text, tool_call
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

HIT: Final = {"type": "cache_hit"}
NOT_FOUND: Final = {"type": "comparison_response_not_found"}
UNKNOWN: Final = "resp_" + "0" * 48
COMPACT: Final[Any] = [{"type": "compaction", "compact_threshold": 1_000}]


def answer(tokens: int, cached: int = 0) -> Reply:
    usage = {
        "prompt_tokens": tokens,
        "completion_tokens": 1,
        "total_tokens": tokens + 1,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    return reply(text("Hello."), usage=usage)


def compared_to(response: Json) -> Any:
    return {"comparison_response_id": response["id"]}


def test_continued_response_is_a_hit_and_a_changed_tool_is_a_miss(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, [answer(50), answer(60, 48), answer(70, 0)])
    first = create(client, model=MODEL, input="Hi")
    assert first["prompt_cache_diagnostics"] is None
    second = create(
        client, model=MODEL, input="And?", previous_response_id=first["id"], prompt_cache_options=compared_to(first)
    )
    assert second["prompt_cache_diagnostics"] == HIT
    assert second["prompt_cache_options"] == {"mode": "implicit", "ttl": "30m", "comparison_response_id": first["id"]}
    third = create(
        client,
        model=MODEL,
        input="And?",
        previous_response_id=first["id"],
        tools=[function("weather", "city")],
        prompt_cache_options=compared_to(second),
    )
    assert third["prompt_cache_diagnostics"] == {
        "type": "cache_miss",
        "reason": "tools_changed",
        "cache_missed_tokens": 70,
        "comparison_reusable_tokens": 60,
    }
    for response in (first, second, third):
        assert stored(client, response["id"]) == response


def test_resent_history_is_compared_with_the_stored_one(client: openai.OpenAI, upstream: Upstream) -> None:
    call = reply(tool_call(0, "call_1", "weather", '{"city": "Oslo"}'))
    upstream.script(NAME, [call, answer(60, 40), answer(60, 0)])
    fields: Json = {"model": MODEL, "tools": [function("weather", "city")]}
    first = create(client, input="How is the weather?", **fields)
    [called] = first["output"]
    result = {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}
    question: Any = {"role": "user", "content": "How is the weather?"}
    sent_back: Any = {name: called[name] for name in ("type", "call_id", "name", "arguments")}
    options = compared_to(first)
    same = create(client, input=[question, sent_back, result], store=False, prompt_cache_options=options, **fields)
    assert same["prompt_cache_diagnostics"] == HIT
    dated: Any = {"role": "user", "content": "It is noon. How is the weather?"}
    other = create(client, input=[dated, sent_back, result], store=False, prompt_cache_options=options, **fields)
    assert other["prompt_cache_diagnostics"]["reason"] == "input_changed"


def test_stream_has_the_diagnostics_in_its_last_event_and_is_replayed_alike(
    client: openai.OpenAI, upstream: Upstream
) -> None:
    upstream.script(NAME, [answer(50), answer(60, 8)])
    first = create(client, model=MODEL, input="Hi")
    options = compared_to(first)
    streamed = stream(client, model=MODEL, input="Ho", prompt_cache_options=options, background=True)
    known = [event["response"]["prompt_cache_diagnostics"] for event in streamed.events if "response" in event]
    assert known[:-1] == [None] * (len(known) - 1)
    assert known[-1]["reason"] == "input_changed"
    with client.responses.with_streaming_response.retrieve(streamed.response["id"], stream=True) as replayed:
        events = read_sse(replayed.iter_bytes()).events
    check_stream(events)
    assert events == streamed.events


def test_response_that_cannot_be_compared_is_told_apart(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, [reply(text("Hel", "lo"), hold=1), answer(50, 48), answer(50, 48)])
    running = client.responses.create(model=MODEL, input="Hi", background=True)
    wait_until(lambda: client.responses.retrieve(running.id).status == "in_progress")
    wait_until(lambda: len(upstream.requests(NAME)) == 1)
    for response_id, expected in ((UNKNOWN, NOT_FOUND), (running.id, {"type": "unavailable"})):
        options: Any = {"comparison_response_id": response_id}
        found = create(client, model=MODEL, input="Hi", prompt_cache_options=options)
        assert found["prompt_cache_diagnostics"] == expected
    client.responses.cancel(running.id)


def test_compacted_conversation_is_a_miss(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, [answer(50), answer(60), answer(30)])
    first = create(client, model=MODEL, input="word " * 2_000)
    second = create(
        client,
        model=MODEL,
        input="Go on.",
        previous_response_id=first["id"],
        context_management=COMPACT,
        prompt_cache_options=compared_to(first),
    )
    assert [item["type"] for item in second["output"]] == ["compaction", "message"]
    assert second["prompt_cache_diagnostics"] == {
        "type": "cache_miss",
        "reason": "context_compacted",
        "cache_missed_tokens": 30,
        "comparison_reusable_tokens": 50,
    }
