"""The scripted upstream: its failures and delays, and its records of clients that disconnect or stop reading."""

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

from tests.support.tracebacks import assert_no_traceback
from tests.support.upstream import (
    Reply,
    Upstream,
    UpstreamProcess,
    reply,
    text,
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


def chunks(upstream: Upstream, model: str = "m", **fields: Any) -> list[Json]:
    """Return the chunks of one stream as JSON, in order. Raise httpx's error if it breaks off."""
    body = {"model": model, "messages": ASK, "stream": True, **fields}
    with httpx.stream("POST", f"{upstream.base_url}/chat/completions", json=body, timeout=60, verify=False) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def raw_request(upstream: Upstream, model: str, **fields: Any) -> socket.socket:
    """Send a chat request on a connection that the test controls."""
    body = json.dumps({"model": model, "messages": ASK, **fields}).encode()
    url = httpx.URL(upstream.url)
    connection = socket.create_connection((url.host, url.port or 0))
    connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
    return connection


def test_dropped_stream_is_recorded_as_failed(upstream: Upstream) -> None:
    upstream.script("m", reply(text("a", "b"), end="drop"))
    with pytest.raises(httpx.RemoteProtocolError):
        chunks(upstream)
    [record] = upstream.wait_for("m", ended=True)
    assert (record.ended, record.chunks_sent) == ("failed", 2)


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
def test_client_disconnect_is_recorded(upstream: Upstream, scripted: Reply, streams: bool) -> None:
    upstream.script("m", scripted)
    with closing(raw_request(upstream, "m", stream=streams)):
        assert upstream.wait_for("m")[0].ended == "streaming"
        left_at = time.monotonic()
    [record] = upstream.wait_for("m", ended=True)
    assert record.ended == "client_gone"
    assert (record.ended_at or 0) > left_at


def test_reader_that_stops_reading_blocks_stream(upstream: Upstream) -> None:
    upstream.script("m", reply(text(*["x" * 100_000] * 200)))
    with closing(raw_request(upstream, "m", stream=True)):
        upstream.wait_for("m", chunks=1)
        time.sleep(0.2)
        [record] = upstream.requests("m")
        assert record.ended == "streaming"
        assert record.chunks_sent < 200
    assert upstream.wait_for("m", ended=True)[0].ended == "client_gone"


def test_held_stream_continues_after_release(upstream: Upstream, client: openai.OpenAI) -> None:
    upstream.script("m", reply(text("a", "b", "c"), hold=2))
    stream = iter(client.chat.completions.create(model="m", messages=ASK, stream=True))
    assert [chunk.choices[0].delta.content for chunk in islice(stream, 3)] == ["", "a", "b"]
    assert upstream.wait_for("m", chunks=2)[0].ended == "streaming"
    upstream.release("m")
    assert [chunk.choices[0].delta.content for chunk in stream] == ["c", None]
    assert upstream.wait_for("m", ended=True)[0].ended == "completed"


def test_stepped_stream_sends_a_chunk_for_each_step(upstream: Upstream, client: openai.OpenAI) -> None:
    upstream.script("m", reply(text("a", "b", "c"), stepped=1))
    stream = iter(client.chat.completions.create(model="m", messages=ASK, stream=True))
    said = [next(stream).choices[0].delta.content for _ in range(2)]
    for sent in (1, 2):
        assert upstream.requests("m")[0].chunks_sent == sent
        upstream.step("m")
        said.append(next(stream).choices[0].delta.content)
    assert said == ["", "a", "b", "c"]
    assert upstream.wait_for("m", ended=True)[0].ended == "completed"


def test_delay_and_interval_are_kept(upstream: Upstream) -> None:
    upstream.script("m", reply(text("a", "b", "c"), delay=0.05, interval=0.02))
    began = time.monotonic()
    chunks(upstream)
    assert 0.09 <= time.monotonic() - began < 30


def test_reset_forgets_requests_and_closes_connections(upstream: Upstream) -> None:
    upstream.script("m", reply(text("a"), end="hang"))
    with closing(raw_request(upstream, "m", stream=True)) as connection:
        upstream.wait_for("m", chunks=1)
        upstream.reset()
        connection.settimeout(60)
        with suppress(ConnectionResetError):
            while connection.recv(65536):
                pass
    assert upstream.requests() == []


def test_upstream_exits_on_sigterm(tmp_path: Path) -> None:
    with UpstreamProcess(tmp_path / "log") as process:
        process.client.script("m", reply(text("a"), end="hang"))
        with closing(raw_request(process.client, "m", stream=True)):
            process.client.wait_for("m", chunks=1)
            assert process.child.stop() == 0
        assert_no_traceback(process.child.log)
