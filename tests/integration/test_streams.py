"""Streams as clients receive them: events, bytes, headers and timing."""

from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import ParsedResponse

from llama_stack_responses.chat.pieces import PIECE_CHARACTERS
from tests.support.openai_client import MODEL, NAME, Json, create, function, sent, stored, stream
from tests.support.sse import SseReader
from tests.support.stack import LiveStack
from tests.support.strict import check_stream, read_sse, validate_response
from tests.support.upstream import (
    Reply,
    Upstream,
    error,
    finish,
    interleaved_calls,
    raw,
    reasoning,
    refusal,
    reply,
    text,
    tool_call,
)

pytestmark = [pytest.mark.live, pytest.mark.both_hosts]

TOOLS = [function("weather", "city"), function("clock", "zone")]
HELLO = reply(text("Hello", ",", " world"))
CALL = tool_call(0, "call_a", "weather", '{"city"', ':"Oslo"}')
CALLS = interleaved_calls(("call_a", "weather", '{"city"', ': "Oslo"}'), ("call_b", "clock", '{"zo', 'ne":', ' "CET"}'))
ENDINGS: dict[str, tuple[Reply, list[Json]]] = {
    "text": (HELLO, [{"type": "message", "text": "Hello, world", "phase": "final_answer"}]),
    "parallel calls": (
        reply(CALLS),
        [
            {"type": "function_call", "call_id": "call_a", "name": "weather", "arguments": '{"city": "Oslo"}'},
            {"type": "function_call", "call_id": "call_b", "name": "clock", "arguments": '{"zone": "CET"}'},
        ],
    ),
    "text with a call": (
        reply(text("Let me", " look."), CALL),
        [
            {"type": "message", "text": "Let me look.", "phase": "commentary"},
            {"type": "function_call", "call_id": "call_a", "name": "weather", "arguments": '{"city":"Oslo"}'},
        ],
    ),
    "reasoning": (
        reply(reasoning("Hm", "m."), text("Yes.")),
        [
            {"type": "reasoning", "reasoning": "Hmm."},
            {"type": "message", "text": "Yes.", "phase": "final_answer"},
        ],
    ),
    "reasoning with a call": (
        reply(reasoning("Where", "?"), CALL),
        [
            {"type": "reasoning", "reasoning": "Where?"},
            {"type": "function_call", "call_id": "call_a", "name": "weather", "arguments": '{"city":"Oslo"}'},
        ],
    ),
    "refusal": (
        reply(refusal("I will", " not.")),
        [{"type": "message", "refusal": "I will not.", "phase": "final_answer"}],
    ),
}


def gist(output: list[Json]) -> list[Json]:
    """Return output items without ids and with the text of their single part. All must be completed."""
    found = []
    for item in output:
        assert item["status"] == "completed"
        brief = {name: item[name] for name in ("type", "call_id", "name", "arguments", "phase") if item.get(name)}
        for part in item.get("content") or ():
            key = {"output_text": "text", "reasoning_text": "reasoning", "refusal": "refusal"}[part["type"]]
            assert key not in brief
            brief[key] = part["refusal" if key == "refusal" else "text"]
        found.append(brief)
    return found


# -- through the openai package ------------------------------------------------


@pytest.mark.parametrize("case", ENDINGS)
def test_sdk_stream_helper_reads_every_kind_of_output(
    client: openai.OpenAI, upstream: Upstream, provider: str, case: str
) -> None:
    script, output = ENDINGS[case]
    model = f"{provider}/{NAME}"
    upstream.script(NAME, script)
    with client.responses.stream(model=model, input="Hi", tools=TOOLS) as events:
        last: Any = None
        for last in events:
            pass
        final = events.get_final_response()
    assert last.type == "response.completed"
    assert gist(final.to_dict()["output"]) == output  # type: ignore[arg-type]

    streamed = stream(client, model=model, input="Hi", tools=TOOLS)
    assert gist(streamed.response["output"]) == output
    assert gist(create(client, model=model, input="Hi", tools=TOOLS)["output"]) == output
    assert stored(client, streamed.response["id"]) == streamed.response


def test_sdk_stream_helper_accumulates_snapshots(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, reply(text("Let ", "me ", "look."), CALLS))
    texts, arguments = [], []
    with client.responses.stream(model=MODEL, input="Hi", tools=TOOLS) as events:
        for event in events:
            if event.type == "response.output_text.delta":
                texts.append(event.snapshot)
            elif event.type == "response.function_call_arguments.delta":
                arguments.append((event.output_index, event.snapshot))
    assert texts == ["Let ", "Let me ", "Let me look."]
    assert arguments == [
        (1, '{"city"'),
        (1, '{"city": "Oslo"}'),
        (2, '{"zo'),
        (2, '{"zone":'),
        (2, '{"zone": "CET"}'),
    ]


def test_sdk_stream_helper_parses_arguments(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, reply(CALLS))
    with client.responses.stream(model=MODEL, input="Hi", tools=TOOLS) as events:
        final: ParsedResponse[None] = events.get_final_response()
    parsed = [item.parsed_arguments for item in final.output if item.type == "function_call"]
    assert parsed == [{"city": "Oslo"}, {"zone": "CET"}]


def test_sdk_stream_events_are_typed(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, HELLO)
    with client.responses.create(model=MODEL, input="Hi", stream=True) as events:
        seen = list(events)
    assert "".join(event.delta for event in seen if event.type == "response.output_text.delta") == "Hello, world"
    last = seen[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == "Hello, world"
    assert check_stream([event.to_dict() for event in seen])["id"] == last.response.id


def test_unstreamed_response_equals_the_streamed_one(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, reply(reasoning("Hm"), text("Well"), CALLS))
    streamed = stream(client, model=MODEL, input="Hi", tools=TOOLS).response
    plain = create(client, model=MODEL, input="Hi", tools=TOOLS)
    for response in (streamed, plain):
        assert response.pop("completed_at") >= response.pop("created_at")
        assert response.pop("id").startswith("resp_")
        for item in response["output"]:
            prefix = {"reasoning": "rs_", "message": "msg_", "function_call": "fc_"}[item["type"]]
            assert item.pop("id").startswith(prefix)
            # Sealing uses a new nonce, so equal content differs.
            assert bool(item.pop("encrypted_content", None)) == (item["type"] == "reasoning")
    assert streamed == plain


async def test_async_sdk_reads_streams_and_responses(stack: LiveStack, upstream: Upstream) -> None:
    upstream.script(NAME, [*[reply(text("Let me look."), CALL)] * 2, HELLO])
    async with openai.AsyncOpenAI(base_url=f"{stack.base_url}/v1", api_key="none", max_retries=0) as client:
        async with client.responses.stream(model=MODEL, input="Hi", tools=TOOLS) as helper:
            final = await helper.get_final_response()
        events = [event async for event in await client.responses.create(model=MODEL, input="Hi", stream=True)]
        whole = await client.responses.create(model=MODEL, input="Hi")
    assert gist(final.to_dict()["output"]) == ENDINGS["text with a call"][1]  # type: ignore[arg-type]
    check_stream([event.to_dict() for event in events])
    assert whole.output_text == "Hello, world"


# -- the wire --------------------------------------------------------------------


def test_text_stream_events_are_in_order(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, HELLO)
    streamed = stream(client, model=MODEL, input="Hi")
    assert streamed.types == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert streamed.texts("output_text") == ["Hello", ",", " world"]


def test_reasoning_text_and_call_stream_events_are_in_order(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, reply(reasoning("Hm"), text("Look"), CALL))
    assert stream(client, model=MODEL, input="Hi", tools=TOOLS).types == [
        "created",
        "in_progress",
        *("output_item.added", "content_part.added", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done"),
        "completed",
    ]


def test_stream_headers_and_sse_framing_are_correct(stack: LiveStack, upstream: Upstream) -> None:
    upstream.script(NAME, HELLO)
    body = {"model": MODEL, "input": "Hi", "stream": True}
    answers = [
        httpx.post(f"{stack.base_url}/v1/responses", json=body, timeout=60, trust_env=False, verify=False)
        for _ in range(2)
    ]
    for answer in answers:
        assert answer.status_code == 200
        assert answer.headers["content-type"].partition(";")[0] == "text/event-stream"
        assert answer.headers["cache-control"] == "no-cache"
        assert "content-length" not in answer.headers
        assert answer.content.startswith(b"event: response.created\ndata: {")
        assert answer.content.endswith(b"}\n\ndata: [DONE]\n\n")
        check_stream(read_sse(answer.content).events)
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert ids[0].startswith("req_")
    assert ids[0] != ids[1]


def test_unstreamed_response_headers_are_correct(stack: LiveStack, upstream: Upstream) -> None:
    upstream.script(NAME, HELLO)
    body = {"model": MODEL, "input": "Hi"}
    answer = httpx.post(f"{stack.base_url}/v1/responses", json=body, timeout=60, trust_env=False, verify=False)
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"].startswith("req_")
    validate_response(answer.json())


def test_events_are_sent_without_delay(stack: LiveStack, upstream: Upstream) -> None:
    upstream.script(NAME, reply(text("one", "two", "three"), hold=2))
    reader = SseReader()
    events: list[Json] = []
    with httpx.stream(
        "POST", f"{stack.base_url}/v1/responses", json=stream_body(), timeout=60, trust_env=False, verify=False
    ) as answer:
        for received in answer.iter_bytes():
            events += [data for _, data in reader.feed(received)]
            if [event["delta"] for event in events if event["type"].endswith("text.delta")] == ["one", "two"]:
                upstream.release(NAME)  # the model server sends the rest only now
    reader.close()
    assert check_stream(events)["output"][0]["content"][0]["text"] == "onetwothree"


@pytest.mark.parametrize(
    "output",
    [
        "data: [DONE]\n\nevent: x\ndata: {}\n\n",
        "\r\n\r \u2028\u2029\x85\x0b\x00\x1b\x7f",
        'quotes " and \\ and </script>',
        "Grüße 你好 🇳🇴 e\u0301 \U0010ffff \ufeff\ufffd",
        "   ",
        "x" * 200_000,
    ],
    ids=["frames", "line ends", "quotes", "unicode", "blanks", "long"],
)
def test_any_text_is_streamed_and_stored_unchanged(client: openai.OpenAI, upstream: Upstream, output: str) -> None:
    middle = len(output) // 2
    upstream.script(NAME, reply(text(output[:middle], output[middle:])))
    streamed = stream(client, model=MODEL, input=output)
    pieces = [
        half[start : start + PIECE_CHARACTERS]
        for half in (output[:middle], output[middle:])
        for start in range(0, middle, PIECE_CHARACTERS)
    ]
    assert streamed.texts("output_text") == pieces
    assert stored(client, streamed.response["id"])["output"][0]["content"][0]["text"] == output
    assert sent(upstream)["messages"] == [{"role": "user", "content": output}]
    with client.responses.create(model=MODEL, input=output, stream=True) as events:
        assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == output


def test_surrogate_pair_split_by_the_model_server_is_joined(
    stack: LiveStack, client: openai.OpenAI, upstream: Upstream
) -> None:
    frame = 'data: {"choices":[{"index":0,"delta":{"content":"\\u%s"}}]}\n\n'
    upstream.script(NAME, [reply(raw(frame % "d83d"), raw(frame % "de00"), finish("stop")), HELLO])
    answer = httpx.post(f"{stack.base_url}/v1/responses", json=stream_body(), timeout=60, trust_env=False, verify=False)
    last = read_sse(answer.content).events[-1]
    assert last["type"] == "response.completed"
    first = stored(client, last["response"]["id"])
    assert first["output"][0]["content"][0]["text"] == "\U0001f600"
    create(client, model=MODEL, input="And?", previous_response_id=first["id"])
    assert upstream.requests(NAME)[-1].body["messages"][1] == {"role": "assistant", "content": "\U0001f600"}


def test_concurrent_streams_are_not_mixed(stack: LiveStack, upstream: Upstream) -> None:
    words = [f"word{number} " for number in range(16)]
    for number, word in enumerate(words):
        upstream.script(f"m{number}", reply(text(*[word] * 20), interval=0.01))

    async def ask() -> list[Json]:
        async with openai.AsyncOpenAI(base_url=f"{stack.base_url}/v1", api_key="none", max_retries=0) as client:
            streams = [
                await client.responses.create(model=f"local/m{number}", input="Hi", stream=True)
                for number in range(len(words))
            ]
            return [check_stream([event.to_dict() async for event in each]) for each in streams]

    import asyncio

    responses = asyncio.run(ask())
    assert [each["output"][0]["content"][0]["text"] for each in responses] == [word * 20 for word in words]


@pytest.mark.extended
def test_silent_stream_gets_keep_alive_comments(client: openai.OpenAI, upstream: Upstream) -> None:
    """Slow: comments are sent after 15 seconds."""
    upstream.script(NAME, reply(text("Hello", " world"), hold=1))
    reader = SseReader()
    events: list[Json] = []
    with client.responses.with_streaming_response.create(model=MODEL, input="Hi", stream=True) as answer:
        for received in answer.iter_bytes():
            events += [data for _, data in reader.feed(received)]
            if reader.comments:
                upstream.release(NAME)
    reader.close()
    assert check_stream(events)["output"][0]["content"][0]["text"] == "Hello world"


# -- errors before the headers -----------------------------------------------------------------


REFUSAL = "`temperature` is not supported with this model."


def stream_body(**more: Any) -> Json:
    """Return the body of a request for a stream."""
    return {"model": MODEL, "input": "Hi", "stream": True, **more}


@pytest.mark.parametrize("delay", [0.0, 0.5])
def test_model_server_error_within_two_seconds_is_an_http_error(
    stack: LiveStack, upstream: Upstream, delay: float
) -> None:
    upstream.script(NAME, error(400, REFUSAL, delay=delay))
    answer = httpx.post(f"{stack.base_url}/v1/responses", json=stream_body(), timeout=60, trust_env=False, verify=False)
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"].startswith("req_")
    assert answer.json() == {
        "error": {"message": REFUSAL, "type": "invalid_request_error", "param": None, "code": None}
    }


def test_sdk_stream_raises_an_early_model_server_error(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, error(400, REFUSAL))
    with pytest.raises(openai.BadRequestError, match="not supported with this model"):
        client.responses.create(model=MODEL, input="Hi", stream=True)
    with (
        pytest.raises(openai.BadRequestError, match="not supported with this model"),
        client.responses.stream(model=MODEL, input="Hi"),
    ):
        pass


def test_model_server_429_keeps_its_retry_after(client: openai.OpenAI, upstream: Upstream) -> None:
    full = error(429, "Slow down.", "rate_limit_exceeded", headers={"retry-after": "7"})
    upstream.script(NAME, full)
    with pytest.raises(openai.RateLimitError) as raised:
        client.responses.create(model=MODEL, input="Hi", stream=True)
    assert raised.value.code == "rate_limit_exceeded"
    assert raised.value.response.headers["retry-after"] == "7"


def speak(upstream: Upstream) -> None:
    """Release the model server's withheld answer."""
    upstream.wait_for(NAME)
    upstream.release(NAME)


def test_model_server_error_after_the_headers_is_an_event(early: LiveStack, upstream: Upstream) -> None:
    upstream.script(NAME, error(400, REFUSAL, withheld=True))
    with early.client() as client:
        with client.responses.with_streaming_response.create(model=MODEL, input="Hi", stream=True) as answer:
            speak(upstream)  # only after the headers have arrived
            events = read_sse(answer.iter_bytes()).events
        response = check_stream(events)
        assert stored(client, response["id"]) == response
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "error",
        "response.failed",
    ]
    assert events[2]["message"] == REFUSAL
    assert response["error"] == {"code": "invalid_prompt", "message": REFUSAL}


def test_stream_begins_before_the_model_server_answers(early: LiveStack, upstream: Upstream) -> None:
    upstream.script(NAME, reply(text("Hello"), withheld=True))
    reader = SseReader()
    events = []
    with httpx.stream(
        "POST", f"{early.base_url}/v1/responses", json=stream_body(), timeout=60, trust_env=False, verify=False
    ) as answer:
        for received in answer.iter_bytes():
            events += [data for _, data in reader.feed(received)]
            speak(upstream)  # only after the first event has arrived
    assert check_stream(events)["status"] == "completed"


def test_sdk_stream_helper_reads_a_late_error_as_events(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, reply(text("Hel"), end="drop"))
    with client.responses.stream(model=MODEL, input="Hi") as events:
        types = [event.type for event in events]
    assert types[-2:] == ["error", "response.failed"]


# -- ends ------------------------------------------------------------------------


def test_text_without_finish_reason_is_completed(client: openai.OpenAI, upstream: Upstream, provider: str) -> None:
    upstream.script(NAME, reply(reasoning("Hm"), text("Hel", "lo"), end="no_finish"))
    streamed = stream(client, model=f"{provider}/{NAME}", input="Hi")
    assert streamed.response["status"] == "completed"
    assert streamed.texts("output_text") == ["Hel", "lo"]


@pytest.mark.parametrize("end", ["drop", "error_frame"])
def test_broken_model_server_stream_fails_with_partial_output(
    client: openai.OpenAI, upstream: Upstream, provider: str, end: Any
) -> None:
    upstream.script(NAME, reply(reasoning("Hm"), text("Hel", "lo"), end=end))
    streamed = stream(client, model=f"{provider}/{NAME}", input="Hi")
    assert streamed.types[-5:] == ["output_text.done", "content_part.done", "output_item.done", "error", "failed"]
    thought, output = streamed.response["output"]
    assert thought["status"] == "completed"
    assert (output["status"], output["content"][0]["text"]) == ("incomplete", "Hello")
    assert streamed.response["error"]["code"] == "server_error"
    assert streamed.events[-2]["message"] == streamed.response["error"]["message"]
    assert stored(client, streamed.response["id"]) == streamed.response


def test_model_server_stream_broken_in_a_call_leaves_it_incomplete(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, reply(CALLS[:-1], end="drop"))
    streamed = stream(client, model=MODEL, input="Hi", tools=TOOLS)
    assert [(item["status"], item["arguments"]) for item in streamed.response["output"]] == [
        ("completed", '{"city": "Oslo"}'),
        ("incomplete", '{"zone":'),
    ]


def test_model_server_stream_broken_before_output_fails(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, reply(end="drop"))
    streamed = stream(client, model=MODEL, input="Hi")
    assert streamed.types == ["created", "in_progress", "error", "failed"]


def test_unstreamed_broken_model_server_answer_is_502(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, reply(text("Hel"), end="drop"))
    with pytest.raises(openai.InternalServerError) as raised:
        client.responses.create(model=MODEL, input="Hi")
    assert raised.value.status_code == 502
    assert raised.value.type == "server_error"


# -- dialects --------------------------------------------------------------------


def chunk(**fields: Any) -> list[Json]:
    """Return one complete chunk of the model server."""
    return [{"object": "chat.completion.chunk", **fields}]


DIALECTS: dict[str, Callable[[], Reply]] = {
    "usage in its own chunk": lambda: HELLO,
    "usage in every chunk": lambda: reply(HELLO.chunks, usage_mode="every_chunk"),
    "usage in the last chunk": lambda: reply(HELLO.chunks, usage_mode="last_chunk"),
    "null content": lambda: reply(
        [{"content": None}], HELLO.chunks, [{"content": None, "tool_calls": None}], usage=COUNTED
    ),
    "empty content": lambda: reply([{"content": ""}], HELLO.chunks, [{"content": ""}], usage=COUNTED),
    "no choices": lambda: reply(chunk(choices=[]), HELLO.chunks, chunk(choices=[]), usage=COUNTED),
    "comments": lambda: reply(raw(": hi\n\n"), HELLO.chunks, raw(": hi\n\n"), usage=COUNTED),
    "null fields": lambda: reply(
        [{**each, "refusal": None, "reasoning_content": None, "function_call": None} for each in HELLO.chunks]
    ),
    "the finish reason in the last text": lambda: reply(
        HELLO.chunks[:-1], [{"delta": HELLO.chunks[-1], "finish_reason": "stop"}]
    ),
    "finished twice": lambda: reply(HELLO.chunks, finish("stop"), finish("stop"), usage=COUNTED),
}
COUNTED: Any = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_model_server_dialect_gives_the_same_stream(
    client: openai.OpenAI, upstream: Upstream, provider: str, dialect: str
) -> None:
    upstream.script(NAME, DIALECTS[dialect]())
    streamed = stream(client, model=f"{provider}/{NAME}", input="Hi")
    assert streamed.texts("output_text") == ["Hello", ",", " world"]
    assert len(streamed.response["output"]) == 1
    usage = streamed.response["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (10, 3, 13)


def test_model_server_without_usage_completes(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, reply(HELLO.chunks, usage_mode="none"))
    response = stream(client, model=MODEL, input="Hi").response
    assert (response["status"], response["usage"]) == ("completed", None)


def test_empty_model_output_completes_without_items(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, reply(finish("stop")))
    streamed = stream(client, model=MODEL, input="Hi")
    assert streamed.types == ["created", "in_progress", "completed"]
    assert streamed.response["output"] == []
