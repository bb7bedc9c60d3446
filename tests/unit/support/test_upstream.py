"""The scripted upstream: what it streams, how it fails, and what it remembers."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.support.upstream import (
    Reply,
    Upstream,
    UpstreamProcess,
    error,
    finish,
    interleaved_calls,
    logprobs,
    raw,
    reasoning,
    refusal,
    reply,
    text,
    tool_call,
)

type Json = dict[str, Any]
ASK: list[ChatCompletionMessageParam] = [{"role": "user", "content": "say  it again"}]


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpstreamProcess]:
    with UpstreamProcess(tmp_path_factory.mktemp("upstream") / "log") as process:
        yield process


@pytest.fixture
def upstream(process: UpstreamProcess) -> Upstream:
    process.client.reset()
    return process.client


@pytest.fixture
def client(upstream: Upstream) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=upstream.base_url, api_key="x", max_retries=0) as client:
        yield client


def chunks(upstream: Upstream, model: str = "m", **asked: Any) -> list[Json]:
    """The chunks of one stream, as JSON, in order; httpx's error if it breaks off."""
    body = {"model": model, "messages": ASK, "stream": True, **asked}
    with httpx.stream("POST", f"{upstream.base_url}/chat/completions", json=body, timeout=60) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def deltas(upstream: Upstream) -> list[Json]:
    """The deltas of one stream without the one that opens it."""
    return [choice["delta"] for chunk in chunks(upstream) for choice in chunk["choices"]][1:]


def raw_request(upstream: Upstream, model: str, **asked: Any) -> socket.socket:
    """A chat request on a connection that the test holds in its hand."""
    body = json.dumps({"model": model, "messages": ASK, **asked}).encode()
    url = httpx.URL(upstream.url)
    connection = socket.create_connection((url.host, url.port or 0))
    connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
    return connection


def test_unscripted_models(upstream: Upstream, client: openai.OpenAI) -> None:
    upstream.script("m", reply(text("x")))
    assert [model.id for model in client.models.list()] == ["echo", "fast-512", "m", "nomic-embed-text", "words-64"]
    assert client.chat.completions.create(model="echo", messages=ASK).choices[0].message.content == "say  it again"
    words = [chunk["choices"][0]["delta"].get("content") for chunk in chunks(upstream, "echo")]
    assert words == ["", "say  ", "it ", "again", None]
    assert len(chunks(upstream, "fast-512")) == 514
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=ASK)


def test_the_stream_is_what_the_completion_says(upstream: Upstream, client: openai.OpenAI) -> None:
    calls = interleaved_calls(("call_1", "f", "{", "}"), ("call_2", "g", "[1", ",", "2]"))
    upstream.script("m", reply(reasoning("hm", field="reasoning"), text("Hello", " world"), calls))
    streamed = deltas(upstream)
    assert streamed[:3] == [{"reasoning": "hm"}, {"content": "Hello"}, {"content": " world"}]
    assert [delta["tool_calls"][0]["index"] for delta in streamed[3:-1]] == [0, 1, 0, 1, 0, 1, 1]
    message = client.chat.completions.create(model="m", messages=ASK).choices[0].message.model_dump()
    assert (message["content"], message["reasoning"]) == ("Hello world", "hm")
    functions = [(call["id"], call["function"]) for call in message["tool_calls"]]
    assert functions == [
        ("call_1", {"name": "f", "arguments": "{}"}),
        ("call_2", {"name": "g", "arguments": "[1,2]"}),
    ]


def test_shapes_of_chunks(upstream: Upstream) -> None:
    whole = {"choices": [{"index": 0, "delta": {"content": "b"}, "finish_reason": None}], "extra": 1}
    upstream.script("m", reply(refusal("No"), [whole], raw(": comment\n\n"), tool_call(0, None, None, "{}")))
    streamed = chunks(upstream)
    assert streamed[1]["choices"][0]["delta"] == {"refusal": "No"}
    assert (streamed[2]["extra"], streamed[2]["model"]) == (1, "m")
    assert streamed[3]["choices"][0]["delta"]["tool_calls"] == [
        {"index": 0, "type": "function", "function": {"arguments": ""}}
    ]
    assert streamed[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_logprobs_and_finish(upstream: Upstream, client: openai.OpenAI) -> None:
    upstream.script("m", reply(logprobs(("é", -0.1), ("b", -0.2), top=[("c", -3.0)]), finish("length")))
    choice = client.chat.completions.create(model="m", messages=ASK).choices[0]
    assert (choice.message.content, choice.finish_reason) == ("éb", "length")
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert [(each.token, each.bytes, each.top_logprobs[0].token) for each in choice.logprobs.content] == [
        ("é", [195, 169], "c"),
        ("b", [98], "c"),
    ]


@pytest.mark.parametrize(
    ("mode", "asked", "tokens"),
    [
        ("own_chunk", True, [None, None, None, None, 2]),
        ("own_chunk", False, [None, None, None, None]),
        ("every_chunk", False, [None, 0, 1, 2]),
        ("last_chunk", False, [None, None, None, 2]),
        ("none", True, [None, None, None, None]),
    ],
)
def test_usage(upstream: Upstream, mode: str, asked: bool, tokens: list[int | None]) -> None:
    upstream.script("m", reply(text("a", "b"), usage_mode=mode))
    streamed = chunks(upstream, stream_options={"include_usage": asked})
    assert [(chunk.get("usage") or {}).get("completion_tokens") for chunk in streamed] == tokens


def test_replies_in_turn_and_errors(upstream: Upstream, client: openai.OpenAI) -> None:
    upstream.script("m", [error(429, "slow down", "rate", headers={"retry-after": "3"}), reply(text("ok"))])
    with pytest.raises(openai.RateLimitError) as raised:
        client.chat.completions.create(model="m", messages=ASK)
    assert (raised.value.code, raised.value.response.headers["retry-after"]) == ("rate", "3")
    for _ in range(2):
        assert client.chat.completions.create(model="m", messages=ASK).choices[0].message.content == "ok"
    first, second, third = upstream.requests("m")
    assert (first.ended, second.ended, third.ended) == ("failed", "completed", "completed")
    assert (first.body, first.headers["authorization"]) == ({"model": "m", "messages": ASK}, "Bearer x")
    assert first.started_at <= (first.ended_at or 0) <= second.started_at <= time.monotonic()


def test_drop(upstream: Upstream) -> None:
    upstream.script("m", reply(text("a", "b"), end="drop"))
    with pytest.raises(httpx.RemoteProtocolError):
        chunks(upstream)
    [record] = upstream.wait_for("m", ended=True)
    assert (record.ended, record.chunks_sent) == ("failed", 2)


def test_error_frame(upstream: Upstream, client: openai.OpenAI) -> None:
    upstream.script("m", reply(text("a"), end="error_frame"))
    with pytest.raises(openai.APIError, match="scripted error"):
        list(client.chat.completions.create(model="m", messages=ASK, stream=True))
    with pytest.raises(openai.InternalServerError, match="scripted error"):
        client.chat.completions.create(model="m", messages=ASK)


def test_no_finish(upstream: Upstream) -> None:
    upstream.script("m", reply(text("a"), end="no_finish"))
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks(upstream)] == [None, None]


@pytest.mark.parametrize(
    ("scripted", "streams"),
    [
        (Reply(delay=600), True),
        (Reply(delay=600), False),
        (reply(text("a", "b"), interval=600), True),
        (reply(text("a", "b"), interval=600), False),
        (reply(text("a"), end="hang"), True),
        (reply(text("a"), hold=1), True),
        (reply(text("a"), hold=0), False),
    ],
)
def test_a_client_that_leaves_is_noticed(upstream: Upstream, scripted: Reply, streams: bool) -> None:
    upstream.script("m", scripted)
    with closing(raw_request(upstream, "m", stream=streams)):
        assert upstream.wait_for("m")[0].ended == "streaming"
        left_at = time.monotonic()
    [record] = upstream.wait_for("m", ended=True)
    assert record.ended == "client_gone"
    assert (record.ended_at or 0) > left_at


def test_a_reader_that_stops_reading_holds_the_stream(upstream: Upstream) -> None:
    upstream.script("m", reply(text(*["x" * 100_000] * 200)))
    with closing(raw_request(upstream, "m", stream=True)):
        upstream.wait_for("m", chunks=1)
        time.sleep(0.2)
        [record] = upstream.requests("m")
        assert record.ended == "streaming"
        assert record.chunks_sent < 200
    assert upstream.wait_for("m", ended=True)[0].ended == "client_gone"


def test_hold_and_release(upstream: Upstream, client: openai.OpenAI) -> None:
    upstream.script("m", reply(text("a", "b", "c"), hold=2))
    stream = iter(client.chat.completions.create(model="m", messages=ASK, stream=True))
    assert [chunk.choices[0].delta.content for chunk in islice(stream, 3)] == ["", "a", "b"]
    assert upstream.wait_for("m", chunks=2)[0].ended == "streaming"
    upstream.release("m")
    assert [chunk.choices[0].delta.content for chunk in stream] == ["c", None]
    assert upstream.wait_for("m", ended=True)[0].ended == "completed"


def test_times(upstream: Upstream) -> None:
    upstream.script("m", reply(text("a", "b", "c"), delay=0.05, interval=0.02))
    began = time.monotonic()
    chunks(upstream)
    assert 0.09 <= time.monotonic() - began < 30


def test_reset_forgets_and_cuts(upstream: Upstream) -> None:
    upstream.script("m", reply(text("a"), end="hang"))
    with closing(raw_request(upstream, "m", stream=True)) as connection:
        upstream.wait_for("m", chunks=1)
        upstream.reset()
        connection.settimeout(60)
        with suppress(ConnectionResetError):
            while connection.recv(65536):
                pass
    assert upstream.requests() == []


def test_a_wrong_script_is_refused(upstream: Upstream) -> None:
    with pytest.raises(ValueError, match="nonsense"):
        upstream._post("/_script", {"model": "m", "replies": [{"nonsense": 1}]})


def test_it_ends_on_sigterm(tmp_path: Path) -> None:
    with UpstreamProcess(tmp_path / "log") as process:
        process.client.script("m", reply(text("a"), end="hang"))
        with closing(raw_request(process.client, "m", stream=True)):
            process.client.wait_for("m", chunks=1)
            assert process.child.stop() == 0
        assert "Traceback" not in process.child.tail()
