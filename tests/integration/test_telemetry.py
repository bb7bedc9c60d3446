"""Telemetry: spans, metrics, log lines, answer headers, and the health of the provider."""

import re
import secrets
from collections.abc import Iterator
from typing import Any, Final

import httpx
import pytest

from tests.support.mcp_server import McpServers
from tests.support.openai_client import MODEL, NAME
from tests.support.otlp import Collector
from tests.support.stack import LiveStack
from tests.support.strict import check_stream, read_sse
from tests.support.upstream import Reply, Upstream, error, finish, reasoning, reply, text, tool_call
from tests.support.waiting import wait_until
from tests.support.websocket_client import WebSocketClient, over_http
from tests.support.wire import Json, Wire, error_of, final

pytestmark = [pytest.mark.live, pytest.mark.both_hosts]

CANARY: Final = "canary-4711"
CALLING: Final = reply(tool_call(0, "call_1", "mcp__echo", f'{{"text": "{CANARY}"}}'))
ANSWER: Final = reply(text("Done,", f" {CANARY}"))
HELLO: Final = {"model": MODEL, "input": CANARY}
STORE: Final = "llama_stack_responses.store"
"""The scope of the spans of calls of the store."""

PARENT: Final = "00f067aa0ba902b7"


class TracedWire(Wire):
    """A client whose requests belong to one trace."""

    def __enter__(self) -> "TracedWire":
        """Return this client."""
        return self

    def __init__(self, stack: LiveStack) -> None:
        self.trace_id = secrets.token_hex(16)
        super().__init__(stack, headers={"traceparent": f"00-{self.trace_id}-{PARENT}-01"})


def test_streamed_response_with_tool_call_has_its_spans(
    stack: LiveStack, upstream: Upstream, mcp: McpServers, collector: Collector
) -> None:
    upstream.script(NAME, [CALLING, ANSWER])
    tool = {"type": "mcp", "server_label": "mcp", "server_url": mcp.url(), "require_approval": "never"}
    with TracedWire(stack) as wire:
        response = final(wire.stream(**HELLO, tools=[tool], temperature=0.5))
    spans = collector.spans(wire.trace_id, 4)
    first, called, second, whole = spans
    assert [span.name for span in spans] == [f"chat {MODEL}", "execute_tool mcp__echo", f"chat {MODEL}", "invoke_agent"]
    assert [span.kind for span in spans] == ["CLIENT", "INTERNAL", "CLIENT", "INTERNAL"]
    assert [span.status for span in spans] == ["UNSET"] * 4
    assert [span.parent_id for span in spans[:3]] == [whole.span_id] * 3
    # The span of the request, which FastAPI makes, ends later.
    wait_until(lambda: any(span.kind == "SERVER" for span in collector.all_spans(wire.trace_id)))
    [asked] = [span for span in collector.all_spans(wire.trace_id) if span.kind == "SERVER"]
    assert (asked.name, asked.parent_id) == ("POST /v1/responses", PARENT)
    assert asked.attributes["http.response.status_code"] == 200
    stored = [span for span in collector.all_spans(wire.trace_id) if span.scope == STORE]
    assert "store commit" in {span.name for span in stored}
    assert {span.parent_id for span in stored} <= {span.span_id for span in collector.all_spans(wire.trace_id)}
    usage = response["usage"]
    assert whole.attributes == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "local",
        "gen_ai.request.model": MODEL,
        "gen_ai.response.id": response["id"],
        "gen_ai.usage.input_tokens": usage["input_tokens"],
        "gen_ai.usage.output_tokens": usage["output_tokens"],
        "llama_stack_responses.direct_writes": whole.attributes["llama_stack_responses.direct_writes"],
        "llama_stack_responses.jobs": False,
        "llama_stack_responses.rounds": 2,
        "llama_stack_responses.status": "completed",
        "openai.api.type": "responses",
    }
    assert first.attributes["gen_ai.request.temperature"] == 0.5
    assert first.attributes["gen_ai.response.finish_reasons"] == ["tool_calls"]
    assert second.attributes["gen_ai.response.finish_reasons"] == ["stop"]
    tokens = [span.attributes["gen_ai.usage.output_tokens"] for span in (first, second)]
    assert sum(tokens) == usage["output_tokens"]
    assert called.attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "mcp__echo",
        "gen_ai.tool.call.id": "call_1",
        "gen_ai.tool.type": "extension",
        "llama_stack_responses.item.type": "mcp_call",
    }
    # The trace is propagated to the model server and the MCP server. Spans contain no text.
    sent = [record.headers["traceparent"] for record in upstream.requests(NAME)]
    assert sent == [f"00-{wire.trace_id}-{span.span_id}-01" for span in (first, second)]
    [request] = [each for each in mcp.seen() if each["name"] == "echo" and wire.trace_id in str(each["trace"])]
    assert wire.trace_id in request["meta"]["traceparent"]
    assert CANARY not in str(collector.all_spans(wire.trace_id))


# The first 32 characters of a text are compared with each chunk, since a model server may repeat the text so far.
PACED: Final = ["The beginning of an answer, then ", *["word "] * 39]


def stepping(answer: httpx.Response, upstream: Upstream) -> Iterator[bytes]:
    """Yield the lines of a stream; the model server sends a chunk when the client has the delta of the one before."""
    for line in answer.iter_lines():
        yield f"{line}\n".encode()
        if line.startswith("event: ") and line.endswith(".delta"):
            upstream.step(NAME)


@pytest.mark.parametrize(
    "scripted",
    [
        reply(text(*PACED), stepped=1),
        reply(reasoning(*PACED), stepped=1),
        # The first chunk has the name of the function, the second one the first arguments.
        reply(tool_call(0, "call_1", "f", *PACED), stepped=2),
    ],
    ids=["text", "reasoning", "arguments"],
)
def test_tokens_that_come_alone_take_the_short_way(
    stack: LiveStack, upstream: Upstream, collector: Collector, scripted: Reply
) -> None:
    upstream.script(NAME, scripted)
    body = HELLO | {"tools": [{"type": "function", "name": "f", "parameters": {}}], "stream": True}
    with TracedWire(stack) as wire, wire.http.stream("POST", "/responses", json=body) as answer:
        events = read_sse(stepping(answer, upstream)).events
    check_stream(events)
    assert sum(event["type"].endswith(".delta") for event in events) == len(PACED)
    [round_, whole] = collector.spans(wire.trace_id, 2)
    # The first ones are built and passed through the router, and one of sixteen may yield to other streams.
    assert round_.attributes["llama_stack_responses.extensions"] >= len(PACED) - 6
    assert whole.attributes["llama_stack_responses.direct_writes"] >= len(PACED) / 2


def test_tokens_that_come_alone_on_websocket_take_the_short_way(
    stack: LiveStack, upstream: Upstream, collector: Collector
) -> None:
    upstream.script(NAME, reply(text(*PACED), stepped=1))
    trace_id = secrets.token_hex(16)
    with WebSocketClient(stack, headers={"traceparent": f"00-{trace_id}-{PARENT}-01"}) as websocket:
        for lane in (None, "second"):
            websocket.ask(lane, **HELLO)
            events: list[Json] = []
            for word in PACED:
                events += websocket.until("response.output_text.delta", lane)
                assert events[-1]["delta"] == word
                upstream.step(NAME)
            events += websocket.until("response.completed", lane)
            check_stream([*map(over_http, events)])
    writes = [span.attributes["llama_stack_responses.direct_writes"] for span in collector.spans(trace_id, 4)[1::2]]
    assert min(writes) >= len(PACED) / 2


def test_response_records_usage_and_duration_metrics(wire: Wire, upstream: Upstream, collector: Collector) -> None:
    upstream.script(
        "counted", reply(text("one", "two"), usage={"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9})
    )
    model = "local/counted"
    wire.stream(model=model, input=CANARY)
    counted = {"gen_ai_request_model": model, "gen_ai_provider_name": "local"}
    for kind, count in (("input", 7), ("output", 2)):
        [point] = collector.points("gen_ai.client.token.usage", **counted, gen_ai_token_type=kind)
        assert (point.count, point.sum) == (1, count)
    for name, operation in (
        ("gen_ai.client.operation.duration", "chat"),
        ("gen_ai.client.operation.time_to_first_chunk", "chat"),
        ("gen_ai.server.request.duration", "invoke_agent"),
        ("gen_ai.server.time_to_first_token", "invoke_agent"),
    ):
        [point] = collector.points(name, **counted, gen_ai_operation_name=operation)
        assert point.count == 1
        assert point.sum > 0
    assert collector.points("llama_stack_responses.store.duration", llama_stack_responses_store_operation="commit")
    assert collector.points("llama_stack_responses.event_loop.delay")


def test_model_server_error_marks_spans_and_metrics_without_its_text(
    stack: LiveStack, upstream: Upstream, collector: Collector
) -> None:
    upstream.script("busy", error(429, f"No more {CANARY}.", code="rate_limit_exceeded"))
    with TracedWire(stack) as wire:
        error_of(wire.post({**HELLO, "model": "local/busy"}), 429)
    spans = collector.spans(wire.trace_id, 2)
    assert [(span.status, span.events, span.attributes["error.type"]) for span in spans] == [
        ("ERROR", [], "rate_limit_exceeded")
    ] * 2
    assert CANARY not in str(collector.all_spans(wire.trace_id))
    failed = {"gen_ai_request_model": "local/busy", "error_type": "rate_limit_exceeded"}
    assert collector.points("gen_ai.client.operation.duration", **failed)


def test_background_response_keeps_the_trace_of_its_request(
    stack: LiveStack, upstream: Upstream, collector: Collector
) -> None:
    upstream.script(NAME, ANSWER)
    with TracedWire(stack) as wire:
        response = wire.create(**HELLO, background=True)
    [round_, whole] = collector.spans(wire.trace_id, 2)
    assert (round_.name, round_.parent_id, whole.name) == (f"chat {MODEL}", whole.span_id, "invoke_agent")
    assert whole.attributes["gen_ai.response.id"] == response["id"]
    assert whole.attributes["llama_stack_responses.jobs"] is True
    [waited] = collector.points("llama_stack_responses.queue.duration")
    assert waited.count >= 1


def test_log_lines_contain_response_and_request_ids(stack: LiveStack, wire: Wire, upstream: Upstream) -> None:
    upstream.script("odd", reply(text("Hello"), finish("made_up_here")))
    answer = wire.http.post("/responses", json={**HELLO, "model": "local/odd"}, headers={"x-request-id": "of-my-own.1"})
    response = answer.json()

    def is_logged(words: str) -> bool:
        line = stack.log.read_text(errors="replace").partition("made_up_here")[2].split()[:12]
        return words in " ".join(line)

    wait_until(lambda: is_logged(f"response_id={response['id']}"))
    wait_until(lambda: is_logged("x_request_id=of-my-own.1"))


# -- answer headers ----------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "responses", HELLO, 200),
        ("POST", "responses", {**HELLO, "stream": True}, 200),
        ("POST", "responses", {**HELLO, "background": True}, 200),
        ("POST", "responses", {"input": 1}, 400),
        ("GET", "responses", None, 200),
        ("GET", "responses/resp_0", None, 404),
        ("PUT", "responses", None, 405),
        ("OPTIONS", "responses", None, 405),
        ("GET", "responses/a/b", None, 404),
        ("GET", "responses/a/b/c", None, 404),
        ("GET", "responses/", None, 307),
        ("PATCH", "conversations", None, 405),
        ("PATCH", "containers", None, 405),
        ("GET", "containers/a/b/c", None, 404),
    ],
)
def test_every_answer_has_request_id_and_processing_time(
    wire: Wire, upstream: Upstream, method: str, path: str, body: Json | None, status: int
) -> None:
    upstream.script(NAME, ANSWER)

    def ask(**headers: str) -> httpx.Response:
        return wire.http.request(method, f"/{path}", json=body, headers=headers)

    own = ask(**{"x-request-id": "of-my-own.1"})
    assert own.status_code == status
    assert own.headers.get_list("x-request-id") == ["of-my-own.1"]
    assert re.fullmatch(r"\d+", own.headers["openai-processing-ms"])
    for given in ("a b", "x" * 129, ""):
        request_id = ask(**{"x-request-id": given}).headers["x-request-id"]
        assert re.fullmatch("req_[0-9a-f]{24}", request_id)


# -- health ------------------------------------------------------------------------


def test_provider_health_is_ok(stack: LiveStack) -> None:
    listed: list[Any] = httpx.get(f"{stack.base_url}/v1/providers", timeout=60, trust_env=False, verify=False).json()[
        "data"
    ]
    [health] = [each["health"] for each in listed if each["api"] == "responses"]
    assert health == {"status": "OK"}
