"""The data that telemetry records, and the contents that it leaves out."""

import asyncio
import json
import logging
from dataclasses import replace
from typing import Any, Final

import pytest
from opentelemetry.trace import StatusCode

from llama_stack_responses.core.errors import ApiError, Upstream
from llama_stack_responses.logs import about, get_logger
from llama_stack_responses.requests.request import parse_create
from llama_stack_responses.store.instrumented import MeasuredRecords
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.records import Conflict, Put, VersionIs
from llama_stack_responses.stream.call_kinds import ServerCall
from llama_stack_responses.stream.deltas import Finish
from llama_stack_responses.stream.response import new_response
from llama_stack_responses.stream.usage import Usage
from llama_stack_responses.telemetry import message_attributes
from llama_stack_responses.telemetry.instrumentation import ResponseOperation, Telemetry
from llama_stack_responses.telemetry.trace_context import is_traced, trace_headers, within
from tests.support.exported_telemetry import ExportedTelemetry
from tests.support.inference import text

type Json = dict[str, Any]

CALL: Final = ServerCall("call_1", "look_up", '{"word": "otter"}', 0)
CHAT: Final[Json] = {
    "model": "local/m",
    "max_completion_tokens": 9,
    "messages": [
        {"role": "system", "content": "Be kind."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Look."}, {"type": "image_url", "image_url": {"url": "x"}}],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_0", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "call_0", "content": "Oslo"},
    ],
}
SAID: Final[list[Json]] = [
    {"type": "reasoning", "id": "rs_1", "content": [{"text": "Hm."}], "summary": []},
    {"type": "message", "id": "msg_1", "content": [{"type": "output_text", "text": "So \ud800"}]},
    {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": "{}"},
    {"type": "web_search_call", "id": "ws_1"},
]
TRACE: Final = "4bf92f3577b34da6a3ce929d0e0e4736"
HEADERS: Final = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01", "tracestate": "a=b"}


def begun(model: str = "local/m", **fields: Any) -> Json:
    """Return a new response."""
    return new_response(parse_create({"model": model, "input": "hi", **fields}), id="resp_1", created_at=1)


def one_round(telemetry: Telemetry) -> None:
    with telemetry.response(begun()) as whole, telemetry.round("local/m", whole) as round_:
        round_.set_request(CHAT)
        for _ in range(2):
            round_.observe(text("So"))
        round_.ended(Finish("stop", Usage(7, 2, 1, 0, 1)), SAID)
        whole.ended(begun(), "completed", 1)
    with telemetry.tool(CALL, "mcp_call") as called:
        called.ended([{"type": "input_text", "text": "an animal"}, {"type": "input_image", "image_url": "data:,otter"}])


def test_spans_contain_no_content_by_default() -> None:
    watched = ExportedTelemetry()
    one_round(watched.telemetry)
    shown = " ".join(span.to_json() for span in watched.spans)
    for words in ("Be kind", "Look", "Oslo", "Hm.", "So ", "otter", "animal"):
        assert words not in shown


@pytest.mark.parametrize("value", ["true", "SPAN_ONLY", "span_and_event"])
def test_spans_contain_content_if_configured(value: str) -> None:
    watched = ExportedTelemetry(**{message_attributes.SWITCH: value})
    one_round(watched.telemetry)
    chat, _, called = watched.spans
    request = json.loads(chat.attributes["gen_ai.input.messages"])
    assert request == [
        {"role": "system", "parts": [{"type": "text", "content": "Be kind."}]},
        {"role": "user", "parts": [{"type": "text", "content": "Look."}, {"type": "image_url"}]},
        {"role": "assistant", "parts": [{"type": "tool_call", "id": "call_0", "name": "f", "arguments": "{}"}]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "call_0", "response": "Oslo"}]},
    ]
    [answered] = json.loads(chat.attributes["gen_ai.output.messages"])
    assert answered == {
        "role": "assistant",
        "parts": [
            {"type": "reasoning", "content": "Hm."},
            {"type": "text", "content": "So \ud800"},
            {"type": "tool_call", "id": "call_1", "name": "f", "arguments": "{}"},
            {"type": "web_search_call", "id": "ws_1"},
        ],
        "finish_reason": "stop",
    }
    assert called.attributes["gen_ai.tool.call.arguments"] == CALL.arguments
    assert json.loads(called.attributes["gen_ai.tool.call.result"]) == [
        {"type": "input_text", "text": "an animal"},
        {"type": "input_image"},
    ]


@pytest.mark.parametrize("stream", [True, False])
def test_span_of_round_has_whether_it_was_streamed(stream: bool) -> None:
    watched = ExportedTelemetry()
    with watched.telemetry.response(begun()) as whole, watched.telemetry.round("local/m", whole) as round_:
        round_.set_request(CHAT | {"stream": stream})
    assert watched.spans[0].attributes["gen_ai.request.stream"] is stream


def test_time_to_first_chunk_is_measured_once() -> None:
    watched = ExportedTelemetry()
    one_round(watched.telemetry)
    points = watched.points()
    for name in ("gen_ai.client.operation.time_to_first_chunk", "gen_ai.server.time_to_first_token"):
        assert [count for _, count, _ in points[name]] == [1]
    assert {
        (attributes["gen_ai.token.type"], total) for attributes, _, total in points["gen_ai.client.token.usage"]
    } == {
        ("input", 7),
        ("output", 2),
    }


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (ApiError(429, "Slow down, otter.", code="rate_limit_exceeded"), StatusCode.ERROR, "rate_limit_exceeded"),
        (ApiError(502, "No otter."), StatusCode.ERROR, "502"),
        (ValueError("otter"), StatusCode.ERROR, "ValueError"),
        (asyncio.CancelledError(), StatusCode.UNSET, "cancelled"),
    ],
)
def test_error_is_recorded_by_type_without_its_text(error: BaseException, status: StatusCode, kind: str) -> None:
    watched = ExportedTelemetry()
    telemetry = watched.telemetry
    with pytest.raises(type(error)), telemetry.response(begun()) as whole, telemetry.round("local/m", whole):
        raise error
    for span in watched.spans:
        assert (span.status.status_code, span.attributes["error.type"], span.events) == (status, kind, ())
        assert "otter" not in span.to_json()
    [(attributes, count, _)] = watched.points()["gen_ai.client.operation.duration"]
    assert (attributes["error.type"], count) == (kind, 1)


def fail_round(telemetry: Telemetry, whole: ResponseOperation, error: ApiError) -> None:
    with telemetry.round("m", whole) as operation:
        operation.provider = "local"
        raise error


@pytest.mark.parametrize(
    ("error", "cause", "status"),
    [
        (ApiError(502, "No otter.", upstream=Upstream("server_error", 503)), "server_error", 503),
        (ApiError(502, "No otter.", upstream=Upstream("credentials", 401)), "credentials", 401),
        (ApiError(502, "No otter.", upstream=Upstream("connection")), "connection", None),
        (ApiError(502, "An otter."), "invalid_answer", None),
    ],
    ids=str,
)
def test_failure_of_a_model_server_has_provider_and_cause_in_log_span_and_metrics(
    error: ApiError, cause: str, status: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    watched = ExportedTelemetry()
    telemetry = watched.telemetry
    with pytest.raises(ApiError), telemetry.response(begun()) as whole:
        fail_round(telemetry, whole, error)
    expected = {"llama_stack_responses.cause": cause} | ({"http.response.status_code": status} if status else {})
    assert expected.items() <= watched.spans[0].attributes.items()
    points = watched.points()
    [(attributes, _, total)] = points["llama_stack_responses.model_server.failures"]
    assert (attributes, total) == ({"gen_ai.provider.name": "local"} | expected, 1)
    [(attributes, _, __)] = points["gen_ai.client.operation.duration"]
    assert attributes.items() >= {"gen_ai.provider.name": "local", "gen_ai.request.model": "m", **expected}.items()
    [line] = [record for record in caplog.records if record.message == "model server failed"]
    assert line.levelname == "WARNING"
    fields = {"provider": "local", "model_name": "m", "cause": cause, "upstream_status": status}
    assert {name: getattr(line, name, None) for name in fields} == fields
    assert "otter" not in str(line.__dict__ | {"exc_info": None})


@pytest.mark.parametrize(
    "error",
    [ApiError(400, "Wrong."), ApiError(429, "Own limit."), ApiError(503, "The store."), asyncio.CancelledError()],
    ids=repr,
)
def test_other_errors_are_no_failures_of_a_model_server(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    watched = ExportedTelemetry()
    telemetry = watched.telemetry
    with pytest.raises(type(error)), telemetry.response(begun()) as whole, telemetry.round("local/m", whole):
        raise error
    assert "llama_stack_responses.model_server.failures" not in watched.points()
    assert "model server failed" not in caplog.text


@pytest.mark.parametrize(
    "error",
    [
        ApiError(404, "No such model.", code="model_not_found"),
        ApiError(424, "No such MCP server.", code="http_error"),
        asyncio.CancelledError(),
    ],
)
def test_unknown_models_create_no_metric_series(error: BaseException) -> None:
    watched = ExportedTelemetry()
    telemetry = watched.telemetry
    for model in ("x1", "y/x2", "z/x3"):
        with pytest.raises(type(error)), telemetry.response(begun(model)) as whole, telemetry.round(model, whole):
            raise error
    for name in ("gen_ai.client.operation.duration", "gen_ai.server.request.duration"):
        [(attributes, count, _)] = watched.points()[name]
        assert ("gen_ai.request.model" in attributes, count) == (False, 3)


def test_model_that_answered_keeps_its_name_in_metrics() -> None:
    watched = ExportedTelemetry()
    telemetry = watched.telemetry

    def answer() -> None:
        with telemetry.response(begun()) as whole, telemetry.round("local/m", whole) as round_:
            round_.observe(text("So"))
            raise ApiError(400, "What now?")

    with pytest.raises(ApiError):
        answer()
    for name in ("gen_ai.client.operation.duration", "gen_ai.server.request.duration"):
        [(attributes, _, _)] = watched.points()[name]
        assert attributes["gen_ai.request.model"] == "local/m"


def test_tool_names_create_no_metric_series() -> None:
    watched = ExportedTelemetry()
    for name in ("mine__a", "mine__b"):
        with watched.telemetry.tool(replace(CALL, name=name), "mcp_call"):
            pass
    [(attributes, count, _)] = watched.points()["gen_ai.client.operation.duration"]
    assert (attributes["llama_stack_responses.item.type"], count) == ("mcp_call", 2)
    assert [span.attributes["gen_ai.tool.name"] for span in watched.spans] == ["mine__a", "mine__b"]


def test_span_has_conversation_id() -> None:
    watched = ExportedTelemetry()
    with watched.telemetry.response(begun() | {"conversation": {"id": "conv_1"}}):
        pass
    assert watched.spans[0].attributes["gen_ai.conversation.id"] == "conv_1"


async def test_store_calls_are_timed() -> None:
    watched = ExportedTelemetry()
    records = MeasuredRecords(MemoryRecords(), watched.telemetry)
    assert records.transactional
    await records.commit([Put("a", b"1")])
    with pytest.raises(Conflict):
        await records.commit([Put("a", b"1")], [VersionIs("a", None)])
    assert list(await records.get_many(["a"])) == ["a"]
    assert [key for key, _ in await records.range("a", "b", limit=1)] == ["a"]
    assert await records.sweep(await records.now()) == 0
    await records.close()
    points = watched.points()["llama_stack_responses.store.duration"]
    assert {
        (attributes["llama_stack_responses.store.operation"], len(attributes), count) for attributes, count, _ in points
    } == {
        ("commit", 1, 2),
        ("get_many", 1, 1),
        ("range", 1, 1),
        ("sweep", 1, 1),
        ("now", 1, 1),
    }


async def test_store_calls_have_spans_within_a_trace_only() -> None:
    watched = ExportedTelemetry()
    records = MeasuredRecords(MemoryRecords(), watched.telemetry)
    await records.get_many(["a"])
    assert watched.spans == []
    with watched.telemetry.response(begun()):
        await records.commit([Put("a", b"1")])
    call, whole = watched.spans
    assert (call.name, call.kind.name, call.parent.span_id) == ("store commit", "CLIENT", whole.context.span_id)
    assert call.attributes == {"llama_stack_responses.store.operation": "commit"}


# -- traces ------------------------------------------------------------------------


def test_trace_context_is_passed_on_without_exporter() -> None:
    assert trace_headers() == {}
    telemetry = Telemetry()
    with within(HEADERS), telemetry.response(begun()) as whole, telemetry.round("m", whole):
        assert trace_headers() == HEADERS
    assert not is_traced()


def test_trace_context_ends_with_block() -> None:
    with within(HEADERS):
        assert is_traced()
        with within({}):
            assert not is_traced()
        assert is_traced()


@pytest.mark.parametrize("headers", [{"traceparent": "nonsense"}, {"traceparent": ""}, {"traceparent": "0" * 600}, {}])
def test_invalid_traceparent_is_ignored(headers: dict[str, str]) -> None:
    with within(headers):
        assert trace_headers() == {}


def test_overlong_tracestate_is_left_out() -> None:
    with within({**HEADERS, "tracestate": f"a={'b' * 600}"}):
        assert trace_headers() == {"traceparent": HEADERS["traceparent"]}


def test_baggage_is_not_passed_on() -> None:
    with within({**HEADERS, "baggage": "otter=1"}):
        assert "baggage" not in trace_headers()


# -- log lines ---------------------------------------------------------------------


async def test_log_records_have_request_response_and_trace_ids(caplog: pytest.LogCaptureFixture) -> None:
    logger = get_logger("llama_stack_responses.test")

    async def work() -> None:
        logger.warning("in a task", extra={"more": "1"})

    with caplog.at_level(logging.WARNING):
        with within(HEADERS), about(x_request_id="req_1"), about(response_id="resp_1"):
            task = asyncio.create_task(work())
        await task
        logger.warning("outside")
    inside, outside = (vars(record) for record in caplog.records)
    assert {name: inside[name] for name in ("x_request_id", "response_id", "trace_id", "more")} == {
        "x_request_id": "req_1",
        "response_id": "resp_1",
        "trace_id": TRACE,
        "more": "1",
    }
    assert outside.keys().isdisjoint({"x_request_id", "response_id", "trace_id"})
