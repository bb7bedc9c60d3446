"""Errors in OpenAI's form, streamed or not: status, type, code and field. Partial output is kept."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any, Final

import httpx
import openai
import pytest
from openai.types.responses import Response
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from tests.support.compressed import BLOCK, COMPRESSED, bomb, header
from tests.support.reader import Reader
from tests.support.stack import STARTER, Host, LiveStack
from tests.support.strict import check_stream, iter_sse, read_sse
from tests.support.tracebacks import assert_no_traceback
from tests.support.upstream import Reply, Upstream, UpstreamProcess, error, raw, reasoning, reply, text, tool_call
from tests.support.variants import add_host_provider, responses_config, variant
from tests.support.wire import Json, Wire, error_of, events_of, final, output_text

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("calm")]

UNKNOWN = "resp_000000000000000000000000"
MALFORMED = ("nonsense", "resp_", "resp_000000000000000000000000%20", "resp_0.0", "msg_000000000000000000000000")
PROVIDER_DATA = {"llama_stack": "X-LlamaStack-Provider-Data", "ogx": "X-OGX-Provider-Data"}
TOOL: Json = {"type": "function", "name": "f", "parameters": {}}
OUTPUT: Json = {"type": "function_call_output", "call_id": "call_1", "output": "1"}
QUICK = {"retry-after-ms": "5"}  # the host's client makes three attempts at 408, 409, 429 and 5xx: keep them short


@dataclass(frozen=True)
class InvalidRequest:
    """A request that is refused, and the expected error."""

    body: Json
    param: str | None
    code: str | None
    words: str
    status: int = 400


# Errors within `input` are tested with its valid forms.
BAD: dict[str, InvalidRequest] = {
    "no model": InvalidRequest({"model": None}, "model", "missing_required_parameter", "'model'"),
    "model is a number": InvalidRequest({"model": 5}, "model", "invalid_type", "expected a string, but got an integer"),
    "no input": InvalidRequest({"input": None}, "input", "missing_required_parameter", "'input'"),
    "temperature": InvalidRequest({"temperature": "hot"}, "temperature", "invalid_type", "'temperature'"),
    "temperature too high": InvalidRequest({"temperature": 3}, "temperature", "decimal_above_max_value", "<= 2"),
    "max_output_tokens": InvalidRequest(
        {"max_output_tokens": 15}, "max_output_tokens", "integer_below_min_value", ">= 16"
    ),
    "stream": InvalidRequest({"stream": "yes"}, "stream", "invalid_type", "a boolean"),
    "store": InvalidRequest({"store": 1}, "store", "invalid_type", "a boolean"),
    "tools": InvalidRequest({"tools": {}}, "tools", "invalid_type", "an array"),
    "tool without a name": InvalidRequest(
        {"tools": [TOOL, {"type": "function"}]}, "tools[1].name", "missing_required_parameter", "tools[1].name"
    ),
    "tool choice": InvalidRequest(
        {"tool_choice": {"type": "function", "name": "g"}, "tools": [TOOL]}, "tool_choice", None, "'g'"
    ),
    "text format": InvalidRequest(
        {"text": {"format": {"type": "json_schema", "name": "x"}}},
        "text.format.schema",
        "missing_required_parameter",
        "schema",
    ),
    "17 pairs of metadata": InvalidRequest(
        {"metadata": {str(n): "x" for n in range(17)}}, "metadata", "object_above_max_properties", "at most 16"
    ),
    "key of 65 characters": InvalidRequest({"metadata": {"k" * 65: "x"}}, "metadata", "string_above_max_length", "64"),
    "value of 513 characters": InvalidRequest(
        {"metadata": {"k": "x" * 513}}, "metadata.k", "string_above_max_length", "512"
    ),
    "value is a number": InvalidRequest({"metadata": {"k": 5}}, "metadata.k", "invalid_type", "a string"),
    "malformed previous": InvalidRequest(
        {"previous_response_id": "nope"}, "previous_response_id", "invalid_value", "'nope'"
    ),
    "unknown previous": InvalidRequest(
        {"previous_response_id": UNKNOWN}, "previous_response_id", "previous_response_not_found", UNKNOWN
    ),
    "unknown provider": InvalidRequest({"model": "nowhere/x"}, "model", "model_not_found", "nowhere/x", 404),
    "unknown model": InvalidRequest({"model": "local/missing"}, "model", "model_not_found", "missing", 404),
    "model without a provider": InvalidRequest({"model": "missing"}, "model", "model_not_found", "missing", 404),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_request_error_names_field_and_code(wire: Wire, upstream: Upstream, name: str) -> None:
    bad, before = BAD[name], wire.listed(limit=1)
    for stream in (False, True):
        body: Json = {"model": "local/echo", "input": "hello", "stream": stream} | bad.body
        found = error_of(wire.post({key: value for key, value in body.items() if value is not None}), bad.status)
        assert (found["type"], found["param"], found["code"]) == ("invalid_request_error", bad.param, bad.code)
        assert bad.words in found["message"]
    assert upstream.requests("echo") == []
    assert wire.listed(limit=1) == before


@pytest.mark.parametrize("field", sorted({"stream", *ResponseCreateParamsBase.__annotations__}))
def test_field_of_wrong_type_is_named_in_the_error(wire: Wire, field: str) -> None:
    wrong = [[5]]  # no field is a list of lists
    found = error_of(wire.post({"model": "local/echo", "input": "hello", field: wrong}), 400)
    assert (found["type"], found["code"]) == ("invalid_request_error", "invalid_type")
    assert found["param"] in (field, f"{field}[0]")
    assert f"'{found['param']}'" in found["message"]


@pytest.mark.both_hosts
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"model": "local/echo", "input": "x"',
        b"\xff\xfe",
        b"[]",
        b'"hello"',
        b"null",
        b"{'model': 1}",
        b"[" * 9999,
        b'{"model": "local/echo", "input": "x", "temperature": NaN}',
    ],
    ids=["empty", "brace", "cut", "bytes", "array", "string", "null", "quotes", "deep", "NaN"],
)
def test_body_that_is_not_a_json_object_is_400(wire: Wire, body: bytes) -> None:
    found = error_of(wire.post(body), 400)
    assert found["type"] == "invalid_request_error"
    assert "JSON" in found["message"]


@pytest.mark.both_hosts
def test_sdk_raises_the_same_exceptions_as_for_openai(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.responses.create(model="local/echo", input="x", temperature=9)
    assert bad.value.param == "temperature"
    assert bad.value.request_id
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.create(model="local/missing", input="x", stream=True)
    assert missing.value.code == "model_not_found"


@pytest.mark.both_hosts
def test_model_without_its_provider_is_named_with_it(client: openai.OpenAI) -> None:
    listed = next(model.id for model in client.models.list() if model.id.startswith("local/"))
    for background in (False, True):
        with pytest.raises(openai.NotFoundError, match=rf"Did you mean .*'{listed}'") as missing:
            client.responses.create(model=listed.removeprefix("local/"), input="Hi", background=background)
        assert (missing.value.code, missing.value.param) == ("model_not_found", "model")


@pytest.mark.both_hosts
@pytest.mark.parametrize("value", ['"x"', "[1]", "{", "[" * 20_000, '{"a": %s}' % ("1" * 5000)])
def test_invalid_provider_data_header_is_400_on_every_route(stack: LiveStack, host: Host, value: str) -> None:
    header = {PROVIDER_DATA[host]: value}
    with Wire(stack, headers=header) as wire:
        assert "must contain a JSON object" in error_of(wire.http.get("/responses"), 400)["message"]
        assert "must contain a JSON object" in error_of(wire.http.get("/models"), 400)["message"]


@pytest.mark.both_hosts
@pytest.mark.parametrize("path", ["", "?stream=true", "/input_items", "/cancel", "DELETE"])
def test_unknown_response_id_is_404_and_malformed_id_is_400(wire: Wire, path: str) -> None:
    def ask(response_id: str) -> httpx.Response:
        if path == "DELETE":
            return wire.http.delete(f"/responses/{response_id}")
        if path == "/cancel":
            return wire.http.post(f"/responses/{response_id}/cancel")
        return wire.http.get(f"/responses/{response_id}{path}")

    found = error_of(ask(UNKNOWN), 404)
    assert (found["type"], found["param"], found["code"]) == ("invalid_request_error", "response_id", None)
    assert UNKNOWN in found["message"]
    for malformed in MALFORMED:
        found = error_of(ask(malformed), 400)
        assert (found["type"], found["param"], found["code"]) == (
            "invalid_request_error",
            "response_id",
            "invalid_value",
        )


@pytest.mark.both_hosts
@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("PUT", "", 405),
        ("DELETE", "", 405),
        ("POST", f"/{UNKNOWN}", 405),
        ("PATCH", f"/{UNKNOWN}", 405),
        ("GET", f"/{UNKNOWN}/cancel", 405),
        ("POST", f"/{UNKNOWN}/input_items", 405),
        ("GET", f"/{UNKNOWN}/outputs", 404),
    ],
)
def test_unknown_route_is_an_api_error(wire: Wire, method: str, path: str, status: int) -> None:
    found = error_of(wire.http.request(method, f"/responses{path}"), status)
    assert found["type"] == "invalid_request_error"
    assert f"{method} " in found["message"]
    assert f"/v1/responses{path}" in found["message"]


@pytest.mark.both_hosts
@pytest.mark.parametrize("ask", ["responses", "chat", "models"])
def test_base_url_without_version_is_named_in_the_error(stack: LiveStack, ask: str) -> None:
    with openai.OpenAI(base_url=stack.base_url, api_key="none", max_retries=0) as client:
        asking: dict[str, Callable[[], object]] = {
            "responses": lambda: client.responses.create(model="local/echo", input="Hi"),
            "chat": lambda: client.chat.completions.create(model="local/echo", messages=[]),
            "models": client.models.list,
        }
        with pytest.raises(openai.NotFoundError, match="has to end with /v1"):
            asking[ask]()


@pytest.mark.both_hosts
def test_trailing_slash_of_a_path_is_accepted(client: openai.OpenAI) -> None:
    kept = client.responses.create(model="local/echo", input="hello")
    found = client.get(f"/responses/{kept.id}/", cast_to=Response)
    assert found.output_text == "hello"
    assert client.post("/responses/", body={"model": "local/echo", "input": "x"}, cast_to=Response).output_text == "x"
    assert client.get(f"/responses/{kept.id}/input_items/?limit=1", cast_to=object)


def test_continuing_without_a_call_output_is_400(wire: Wire, upstream: Upstream) -> None:
    upstream.script("calls", [reply(tool_call(0, "call_1", "f", "{}")), reply(text("thanks"))])
    first = wire.create(model="local/calls", input="x", tools=[TOOL])
    body = {"model": "local/calls", "previous_response_id": first["id"]}
    assert "No tool output found for function call call_1" in error_of(wire.post(body), 400)["message"]
    other = {"type": "function_call_output", "call_id": "call_2", "output": "1"}
    assert "call_2" in error_of(wire.post(body | {"input": [OUTPUT, other]}), 400)["message"]
    assert output_text(wire.create(**body | {"input": [OUTPUT]})) == "thanks"


def test_continuing_a_running_response_is_400(wire: Wire, upstream: Upstream) -> None:
    upstream.script("runs", [reply(text("Half an ", "answer"), hold=1), reply(text("never"))])
    body = {"model": "local/runs", "input": "x"}
    with wire.http.stream("POST", "/responses", json=body | {"stream": True}) as answer:
        frames = iter_sse(answer.iter_bytes())
        running = next(frames)[1]["response"]["id"]
        found = error_of(wire.post(body | {"previous_response_id": running}), 400)
        assert (found["type"], found["param"]) == ("invalid_request_error", "previous_response_id")
        upstream.release("runs")
        assert [name for name, _ in frames][-1] == "response.completed"
    assert wire.retrieve(running)["status"] == "completed"
    assert len(upstream.requests("runs")) == 1


# -- a model server that refuses ---------------------------------------------------


@dataclass(frozen=True)
class UpstreamError:
    """An error of the model server, and the expected error of the API."""

    reply: Reply
    status: int
    type: str
    code: str | None
    param: str | None
    words: str
    unheard: str | None = None
    retry_after: str | None = None
    attempts: int = 1  # of the host's provider; the bundled one leaves retries to the client


LLAMA_CPP_TOO_LONG = {
    "error": {
        "code": 400,
        "message": "request (5210 tokens) exceeds the available context size (4096 tokens), try increasing it",
        "type": "exceed_context_size_error",
        "n_prompt_tokens": 5210,
        "n_ctx": 4096,
    }
}
VLLM_TOO_LONG = {
    "error": {
        "message": "This model's maximum context length is 4096 tokens. However, you requested 5210 tokens (5200 in the "
        "messages, 10 in the completion). Please reduce the length of the messages or completion.",
        "type": "BadRequestError",
        "param": None,
        "code": 400,
    }
}
VLLM_FLAT = {"object": "error", **VLLM_TOO_LONG["error"]}
VLLM_INPUT_TOKENS = {
    "error": {
        "message": "You passed 5210 input tokens and requested 10 output tokens. However, the model's context length is "
        "only 4096 tokens, resulting in a maximum input length of 4086 tokens.",
        "type": "BadRequestError",
        "param": "input_tokens",
        "code": 400,
    }
}
OPENAI_TOO_LONG = {
    "error": {
        "message": "Your input exceeds the context window of this model. Please adjust your input and try again.",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }
}
SPECIFIC = {
    "error": {
        "message": "That is not an image.",
        "type": "invalid_request_error",
        "param": "messages[0].content[1]",
        "code": "invalid_image",
    }
}
RENAMED = {
    "error": {
        "message": "max_completion_tokens is at most 9.",
        "type": "invalid_request_error",
        "param": "max_completion_tokens",
        "code": "invalid_value",
    }
}
TOO_LONG = ("invalid_request_error", "context_length_exceeded", "input")
BUSY = QUICK | {"retry-after": "7"}  # the milliseconds count, as in OpenAI's clients

BROKEN: dict[str, UpstreamError] = {
    "400": UpstreamError(
        error(400, "no such thing as min_p"), 400, "invalid_request_error", None, None, "no such thing as min_p"
    ),
    "400 llama.cpp": UpstreamError(Reply(status=400, body=LLAMA_CPP_TOO_LONG), 400, *TOO_LONG, "5210"),
    "400 vLLM": UpstreamError(Reply(status=400, body=VLLM_TOO_LONG), 400, *TOO_LONG, "5210"),
    "400 vLLM, flat": UpstreamError(Reply(status=400, body=VLLM_FLAT), 400, *TOO_LONG, "5210"),
    "400 vLLM, input": UpstreamError(Reply(status=400, body=VLLM_INPUT_TOKENS), 400, *TOO_LONG, "5210"),
    "400 OpenAI": UpstreamError(Reply(status=400, body=OPENAI_TOO_LONG), 400, *TOO_LONG, "context window"),
    "400 with a code and a field": UpstreamError(
        Reply(status=400, body=SPECIFIC), 400, "invalid_request_error", "invalid_image", "input", "not an image"
    ),
    "400 about a field with another name": UpstreamError(
        Reply(status=400, body=RENAMED), 400, "invalid_request_error", "invalid_value", "max_output_tokens", "at most 9"
    ),
    "401": UpstreamError(error(401, "Bad key sk-123"), 502, "server_error", None, None, "API key", unheard="sk-123"),
    "403": UpstreamError(error(403, "Not for sk-123"), 502, "server_error", None, None, "API key", unheard="sk-123"),
    "404": UpstreamError(
        error(404, "no such model"), 404, "invalid_request_error", "model_not_found", "model", "no such model"
    ),
    "404 of a wrong URL": UpstreamError(
        error(404, "File Not Found"), 404, "invalid_request_error", "model_not_found", "model", "URL in the stack's"
    ),
    "408": UpstreamError(
        error(408, "too slow", headers=QUICK), 504, "server_error", None, None, "timed out", attempts=3
    ),
    "422 FastAPI": UpstreamError(
        Reply(status=422, body={"detail": [{"loc": ["body", "min_p"], "msg": "no number"}]}),
        400,
        "invalid_request_error",
        None,
        "min_p",
        "no number",
    ),
    "422": UpstreamError(error(422, "cannot process"), 400, "invalid_request_error", None, None, "cannot process"),
    "429": UpstreamError(
        error(429, "queue is full", headers=BUSY),
        429,
        "rate_limit_error",
        "rate_limit_exceeded",
        None,
        "queue is full",
        retry_after="1",
        attempts=3,
    ),
    "402": UpstreamError(
        error(402, "This request requires more credits, or fewer max_tokens."),
        429,
        "rate_limit_error",
        "insufficient_quota",
        None,
        "more credits",
    ),
    "429 without a quota": UpstreamError(
        error(429, "Your quota is used up.", "insufficient_quota", headers=QUICK),
        429,
        "rate_limit_error",
        "insufficient_quota",
        None,
        "used up",
        retry_after="1",
        attempts=3,
    ),
    "500": UpstreamError(
        error(500, "CUDA error", headers=QUICK),
        502,
        "server_error",
        None,
        None,
        "(500): CUDA error",
        retry_after="1",
        attempts=3,
    ),
    "503": UpstreamError(
        error(503, "loading", headers=BUSY),
        502,
        "server_error",
        None,
        None,
        "(503): loading",
        retry_after="1",
        attempts=3,
    ),
    "500 without JSON": UpstreamError(
        Reply(status=500, body="<html>oops</html>", headers=QUICK),
        502,
        "server_error",
        None,
        None,
        "(500)",
        retry_after="1",
        attempts=3,
    ),
}


@pytest.mark.both_hosts
@pytest.mark.parametrize("name", BROKEN)
def test_model_server_error_is_mapped_to_an_api_error(wire: Wire, upstream: Upstream, provider: str, name: str) -> None:
    broken, model = BROKEN[name], f"{provider}/broken"
    upstream.script("broken", broken.reply)
    for stream in (False, True):
        answer = wire.post({"model": model, "input": "hello", "stream": stream})
        found = error_of(answer, broken.status)
        assert (found["type"], found["code"], found["param"]) == (broken.type, broken.code, broken.param)
        assert broken.words in found["message"]
        assert broken.unheard is None or broken.unheard not in answer.text
        assert answer.headers.get("retry-after") == broken.retry_after
        assert answer.headers.get("retry-after-ms") == (broken.retry_after and "5")
    assert len(upstream.requests("broken")) == 2 * (broken.attempts if provider == "vllm" else 1)
    assert wire.listed(model=model) == []  # there was no output, so nothing is stored


def test_page_instead_of_a_stream_is_named_in_the_error(wire: Wire, upstream: Upstream) -> None:
    upstream.script("page", Reply(body="<html>Hello</html>", headers={"content-type": "text/html; charset=utf-8"}))
    for stream in (False, True):
        found = error_of(wire.post({"model": "local/page", "input": "hello", "stream": stream}), 502)
        assert found["message"] == (
            "The model server answered with status 200 and content type 'text/html; charset=utf-8' instead of an event "
            "stream: check 'base_url'."
        )


def test_retry_after_http_date_is_converted_to_seconds(wire: Wire, upstream: Upstream) -> None:
    moment = formatdate(time.time() + 100, usegmt=True)
    upstream.script("busy", error(429, "queue is full", headers={"retry-after": moment}))
    answer = wire.post({"model": "local/busy", "input": "hello"})
    assert error_of(answer, 429)["code"] == "rate_limit_exceeded"
    assert 0 < int(answer.headers["retry-after"]) <= 100


# -- a stream that breaks ----------------------------------------------------------


@dataclass(frozen=True)
class CutStream:
    """A stream of the model server that breaks off, and the expected error."""

    reply: Reply
    status: int
    code: str
    words: str
    type: str = "server_error"


HALF = [*reasoning("hm"), *text("Half an ", "answer"), *tool_call(0, "call_1", "f", '{"a')]


def cut(end: str, **options: Any) -> Reply:
    """Return a reply that breaks off after some reasoning, some text and half a call."""
    return reply(HALF, end=end, **options)


FRAME = {"error": {"message": "the GPU fell off", "type": "server_error", "param": None, "code": 500}}
LIMIT = {
    "error": {
        "message": "Too many tokens, please wait before trying again.",
        "type": "tokens",
        "param": None,
        "code": "rate_limit_exceeded",
    }
}
BY_NUMBER = {"error": {"message": "The queue is full.", "type": "rate_limit", "param": None, "code": 429}}
CUT: dict[str, CutStream] = {
    "error frame": CutStream(cut("error_frame", body=FRAME), 502, "server_error", "the GPU fell off"),
    "rate limit": CutStream(
        cut("error_frame", body=LIMIT), 429, "rate_limit_exceeded", "please wait", "rate_limit_error"
    ),
    "rate limit by number": CutStream(
        cut("error_frame", body=BY_NUMBER), 429, "rate_limit_exceeded", "queue is full", "rate_limit_error"
    ),
    "context": CutStream(
        cut("error_frame", body=LLAMA_CPP_TOO_LONG), 400, "context_length_exceeded", "5210", "invalid_request_error"
    ),
    "no JSON": CutStream(reply(HALF, raw("data: {oops\n\n"), end="hang"), 502, "server_error", "not JSON"),
    "connection": CutStream(cut("drop"), 502, "server_error", "inference provider"),
    "no finish reason": CutStream(cut("no_finish"), 502, "server_error", "within the arguments of a call"),
}


@pytest.mark.parametrize("name", CUT)
def test_broken_model_server_stream_keeps_partial_output(
    wire: Wire, upstream: Upstream, provider: str, name: str
) -> None:
    broken, script = CUT[name], f"cut-{name.replace(' ', '-')}"
    model = f"{provider}/{script}"
    upstream.script(script, broken.reply)
    events = wire.stream(model=model, input="hello", tools=[TOOL])
    failed = final(events)
    assert failed["status"] == "failed"
    assert failed["error"]["code"] == broken.code
    assert broken.words in failed["error"]["message"]
    assert (events[-2]["type"], events[-2]["message"]) == ("error", failed["error"]["message"])
    assert wire.retrieve(failed["id"]) == failed

    found = error_of(wire.post({"model": model, "input": "hello", "tools": [TOOL]}), broken.status)
    assert broken.words in found["message"]
    assert found["type"] == broken.type
    kept, first = wire.listed(model=model)
    assert first == failed
    for response in (kept, first):
        assert response["status"] == "failed"
        assert [item["type"] for item in response["output"]] == ["reasoning", "message", "function_call"]
        assert response["output"][0]["content"][0]["text"] == "hm"
        assert output_text(response) == "Half an answer"
        assert response["output"][2]["arguments"] == '{"a'
        assert response["output"][2]["status"] == "incomplete"


UNREADABLE: Final = {"error": {"message": f"Invalid diff: '{'tools ' * 400}'", "type": "server_error", "code": 500}}
THINKING: Final = [*reasoning("hm"), *tool_call(0, "call_1", "f", '{"a')]
CALLED: Final = reply(reasoning("Well."), tool_call(0, "call_2", "f", '{"a": 1}'))


@pytest.mark.parametrize("streams", [True, False])
def test_output_that_a_model_server_cannot_read_is_asked_for_again_without_streaming(
    wire: Wire, upstream: Upstream, streams: bool
) -> None:
    """The response leaves out the reasoning and the half call of the first answer, which a stream has shown."""
    upstream.script("unreadable", [reply(THINKING, end="error_frame", body=UNREADABLE), CALLED])
    body = {"model": "local/unreadable", "input": "hello", "tools": [TOOL], "stream": streams}
    if streams:
        with wire.http.stream("POST", "/responses", json=body) as answer:
            events = events_of(answer, taken_over=True)
        response = final(events)
        assert wire.replay(response["id"], taken_over=True) == events
        done = [each["item"] for each in events if each["type"] == "response.output_item.done"]
        assert [each.get("status") for each in done] == ["completed", "incomplete", "completed", "completed"]
    else:
        response = wire.create(**body)
    assert response["status"] == "completed"
    thought, call = response["output"]
    assert thought["content"][0]["text"] == "Well."
    assert (call["call_id"], call["arguments"], call["status"]) == ("call_2", '{"a": 1}', "completed")
    assert wire.retrieve(response["id"]) == response
    first, second = [each.body for each in upstream.requests("unreadable")]
    assert (second["stream"], second["messages"]) == (False, first["messages"])
    assert "stream_options" not in second


@pytest.mark.parametrize(
    ("shown", "stream", "asked"),
    [
        (text("Half an ", "answer"), True, 1),
        ([*tool_call(0, "call_1", "f", '{"a": 1}'), *tool_call(1, "call_2", "f", '{"a')], True, 1),
        (text("Half an ", "answer"), False, 3),
        ([], True, 3),
    ],
    ids=["text", "call", "text that nobody has read", "nothing"],
)
def test_output_that_cannot_be_read_again_is_a_failed_response_with_a_short_sentence(
    wire: Wire, upstream: Upstream, shown: list[Any], stream: bool, asked: int
) -> None:
    """A client that does not stream gets it with status 200: it would try again after a 502."""
    broken = reply(shown, end="error_frame", body=UNREADABLE) if shown else Reply(status=500, body=UNREADABLE)
    upstream.script("unreadable", [broken, Reply(status=500, body=UNREADABLE)])
    body = {"model": "local/unreadable", "input": "hello", "tools": [TOOL]}
    failed = final(wire.stream(**body)) if stream else wire.create(**body)
    assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
    assert failed["error"]["message"].startswith("The model server could not read the model's output, which")
    assert len(failed["error"]["message"]) < 300
    if shown[:1] == text("Half an "):
        assert output_text(failed) == "Half an answer"
    assert wire.retrieve(failed["id"]) == failed
    assert len(upstream.requests("unreadable")) == asked


def test_format_that_llama_cpp_cannot_read_beside_tools_is_asked_for_in_words(wire: Wire, upstream: Upstream) -> None:
    """llama.cpp sends status 200, the role, and this error, as soon as the model answers instead of calling a tool."""
    wrong = {"error": {"message": "Content path must be a string", "type": "server_error", "code": 500}}
    unread = reply(end="error_frame", body=wrong)
    upstream.script("generic", [unread, unread, reply(text('{"city": "Paris"}'))])
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    form = {"type": "json_schema", "name": "place", "schema": schema}
    asked = {"model": "local/generic", "input": "Where?", "tools": [TOOL], "text": {"format": form}}
    assert output_text(wire.create(**asked)) == '{"city": "Paris"}'
    bodies = [each.body for each in upstream.requests("generic")]
    assert [each.get("response_format", {}).get("type") for each in bodies] == ["json_schema", "json_object", None]


@pytest.mark.parametrize(
    "mute",
    [reply(end="drop"), reply(end="no_finish"), reply(end="error_frame")],
    ids=["dropped", "no finish reason", "error frame"],
)
def test_model_server_stream_broken_before_first_output_fails(
    wire: Wire, upstream: Upstream, provider: str, mute: Reply
) -> None:
    upstream.script("mute", mute)
    failed = final(wire.stream(model=f"{provider}/mute", input="hello"))
    assert (failed["status"], failed["output"]) == ("failed", [])
    assert wire.retrieve(failed["id"]) == failed
    error_of(wire.post({"model": f"{provider}/mute", "input": "hello"}), 502)


def test_model_server_json_instead_of_a_stream_is_502(wire: Wire, upstream: Upstream) -> None:
    """The bundled provider detects it before the stream starts. The host's reads it as a stream without events."""
    upstream.script("mute", [Reply(body={"hello": "world"}), Reply(body={"error": {"message": "no stream today"}})])
    request = {"model": "local/mute", "input": "hello", "stream": True}
    assert "'application/json' instead of an event stream" in error_of(wire.post(request), 502)["message"]
    assert "no stream today" in error_of(wire.post(request), 502)["message"]
    failed = final(wire.stream(model="vllm/mute", input="hello"))
    assert (failed["status"], failed["output"]) == ("failed", [])


@pytest.mark.both_hosts
def test_sdk_stream_has_error_event_and_failed_event_with_output(client: openai.OpenAI, upstream: Upstream) -> None:
    """The `error` event must not hide the `response.failed` event after it, which has the partial output."""
    upstream.script("cut", cut("error_frame", body=FRAME))
    tools: Any = [TOOL]
    with client.responses.create(model="local/cut", input="hello", tools=tools, stream=True) as stream:
        *_, wrong, last = stream
    assert wrong.type == "error"
    assert "the GPU fell off" in wrong.message
    assert last.type == "response.failed"
    assert last.response.output_text == "Half an answer"


def test_model_server_error_after_the_headers_is_in_the_stream(early: LiveStack, upstream: Upstream) -> None:
    """Without streaming, the status waits for it."""
    upstream.script("late", error(400, "I thought about it: no.", withheld=True))
    upstream.script("busy", error(429, "queue is full", withheld=True))
    with ThreadPoolExecutor(1) as other, Wire(early) as wire:
        late = other.submit(wire.post, {"model": "local/late", "input": "x"})
        with Reader.create(wire, model="local/busy", input="x") as busy:  # its headers were received
            for model in ("late", "busy"):
                upstream.wait_for(model)
                upstream.release(model)
            failed = check_stream(busy.read_to_end())
        assert error_of(late.result(), 400)["message"] == "I thought about it: no."
        assert wire.listed(model="local/late") == []
        assert failed["error"] == {"code": "rate_limit_exceeded", "message": "queue is full"}
        assert wire.listed(model="local/busy") == [failed]


# -- a model server that does not answer -------------------------------------------

# Seconds of silence. Much more than the host's client needs for its three attempts, even on a busy machine.
PATIENCE = 20.0
# Seconds for each attempt. The sum is more than the headers of a stream wait, and enough for a busy machine to send
# the first delta.
IMPATIENCE = {"local": 9.0, "vllm": 3.0}


@pytest.fixture(scope="module")
def frail(
    host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveStack]:
    """A stack with short timeouts, low limits, and a provider whose model server does not exist."""
    unused = socket.socket()  # it reserves the port without listening

    def weaken(config: Json) -> None:
        add_host_provider(config)
        # Without the entry for embeddings, which only a variable turns on.
        ways = [way for way in config["providers"]["inference"] if way["provider_id"] in IMPATIENCE]
        for way in ways:
            wait = {"connect": 5.0, "read": IMPATIENCE[way["provider_id"]]}
            impatient = way["config"] | {"network": {"timeout": wait}}
            config["providers"]["inference"].append(
                way | {"provider_id": f"impatient-{way['provider_id']}", "config": impatient}
            )
        away = ways[0]["config"] | {"base_url": f"http://127.0.0.1:{unused.getsockname()[1]}/v1"}
        config["providers"]["inference"].append(ways[0] | {"provider_id": "away", "config": away})
        limits = {"inference_idle_seconds": PATIENCE, "request_bytes": 20_000, "input_items": 5}
        responses_config(config)["limits"] = limits

    folder = tmp_path_factory.mktemp("frail")
    env = {**stack_env, "INFERENCE_URL": upstream_process.client.base_url}
    with unused:
        unused.bind(("127.0.0.1", 0))
        config = variant(STARTER, folder / "config.yaml", weaken)
        with LiveStack(config, env, folder / "state", host=host) as live:
            yield live
        assert_no_traceback(live.log)


@pytest.fixture
def frail_wire(frail: LiveStack) -> Iterator[Wire]:
    """A plain HTTP client of that stack."""
    with Wire(frail) as wire:
        yield wire


@dataclass(frozen=True)
class UnansweredRequest:
    """A request to a model server that does not answer completely, and the expected error."""

    model: str
    status: int
    words: str
    begun: bool = True  # whether the stream's headers are sent before the error
    said: str = ""


UNANSWERED: dict[str, UnansweredRequest] = {
    # The host's client retries twice, which may take longer than the headers of a stream wait.
    "refused": UnansweredRequest("away/x", 502, "Check that the model server is running", begun=False),
} | {
    f"{name}, {provider}": UnansweredRequest(f"{way}{provider}/{model}", status, words, said=said)
    for provider in IMPATIENCE
    for name, way, model, status, words, said in (
        ("timeout", "impatient-", "silent", 504, "did not answer in time", ""),
        ("timeout in the middle", "impatient-", "stops", 504, "did not answer in time", "Half an answer"),
        ("silence", "", "silent", 504, f"sent nothing for {PATIENCE:g} seconds", ""),
        ("silence in the middle", "", "stops", 504, f"sent nothing for {PATIENCE:g} seconds", "Half an answer"),
    )
}


@pytest.fixture(scope="module")
def answers(frail: LiveStack, upstream_process: UpstreamProcess) -> dict[tuple[str, bool], httpx.Response]:
    """The answers to these requests, streamed and not. Slow ones are requested concurrently."""
    upstream_process.client.script("silent", reply(text("never"), delay=60))
    upstream_process.client.script("stops", reply(text("Half an ", "answer"), end="hang"))
    questions = [(each, stream) for each in UNANSWERED.values() for stream in (False, True)]
    with Wire(frail) as wire, ThreadPoolExecutor(len(questions)) as threads:

        def ask(case: tuple[UnansweredRequest, bool]) -> tuple[tuple[str, bool], httpx.Response]:
            each, stream = case
            return (each.model, stream), wire.post({"model": each.model, "input": "x", "stream": stream})

        # Errors that precede the headers of a stream come first: the concurrent requests would delay them.
        early = dict(ask(case) for case in questions if not case[0].begun)
        return early | dict(threads.map(ask, [case for case in questions if case[0].begun]))


@pytest.mark.day(0)
@pytest.mark.parametrize("name", UNANSWERED)
def test_model_server_without_answer_is_a_timeout_or_unreachable_error(
    answers: dict[tuple[str, bool], httpx.Response], frail_wire: Wire, name: str
) -> None:
    case = UNANSWERED[name]
    found = error_of(answers[case.model, False], case.status)
    assert (found["type"], found["code"], found["param"]) == ("server_error", None, None)
    assert case.words in found["message"]

    streamed, kept = answers[case.model, True], frail_wire.listed(model=case.model)
    if not case.begun:
        assert error_of(streamed, case.status) == found
        assert kept == []
        return
    failed = check_stream(read_sse(streamed.content).events)
    assert failed["error"] == {"code": "server_error", "message": found["message"]}
    assert failed in kept
    assert len(kept) == (2 if case.said else 1)  # without streaming, a response is stored once there is output
    for response in kept:
        assert (response["status"], output_text(response)) == ("failed", case.said)


@pytest.mark.day(0)
def test_silent_model_server_is_disconnected(
    answers: dict[tuple[str, bool], httpx.Response], upstream_process: UpstreamProcess
) -> None:
    """The model server must stop generating output that no client waits for."""
    for model in {model.partition("/")[2] for model, _ in answers} - {"x"}:
        for record in upstream_process.client.wait_for(model, ended=True):
            assert record.ended == "client_gone"


# -- requests that are too large ---------------------------------------------------


@pytest.mark.both_hosts
@pytest.mark.parametrize("sized", [True, False], ids=["with its length", "in chunks"])
def test_body_over_the_limit_is_413(frail_wire: Wire, sized: bool) -> None:
    body = b'{"model": "local/echo", "input": "' + b"x" * 20_000 + b'"}'
    content = body if sized else iter([body[:100], body[100:]])
    found = error_of(frail_wire.http.post("/responses", content=content), 413)
    assert (found["type"], found["code"]) == ("invalid_request_error", "request_too_large")
    assert "20000 bytes" in found["message"]


def test_input_with_too_many_items_is_400(frail_wire: Wire) -> None:
    items = [{"role": "user", "content": "x"}] * 6
    found = error_of(frail_wire.post({"model": "local/echo", "input": items}), 400)
    assert (found["param"], found["code"]) == ("input", "array_above_max_length")
    assert frail_wire.create(model="local/echo", input=items[:5])["status"] == "completed"


@pytest.mark.both_hosts
def test_oversized_headers_are_431_and_long_query_values_are_400(wire: Wire, upstream: Upstream) -> None:
    body = {"model": "local/echo", "input": "x"}
    many = {f"x-{number}": "x" * 100 for number in range(700)}
    for headers in ({"x-large": "x" * 65_536}, many):
        for answer in (
            wire.http.post("/responses", json=body, headers=headers),
            wire.http.get("/responses", headers=headers),
        ):
            assert error_of(answer, 431)["code"] == "request_header_fields_too_large"
    assert upstream.requests("echo") == []
    assert wire.http.post("/responses", json=body, headers={"x-large": "x" * 60_000}).status_code == 200
    for name in ("after", "model"):
        refused = error_of(wire.get("", **{name: "x" * 513}), 400)
        assert (refused["param"], refused["code"]) == (name, "string_above_max_length")
        assert len(refused["message"]) < 100


JSON = {"content-type": "application/json"}
OURS = ("/responses", "/conversations")
THEIRS = ("/chat/completions", "/embeddings")


@pytest.mark.parametrize("encoding", COMPRESSED)
@pytest.mark.parametrize("path", OURS + THEIRS)
def test_compressed_body_past_the_limit_is_refused(frail: LiveStack, path: str, encoding: str) -> None:
    with Wire(frail) as wire:
        for blocks in (1, 1_000):  # the second one stands for 125 MiB
            answer = wire.http.post(path, content=bomb(encoding, blocks), headers=header(encoding))
            assert error_of(answer, 413)["message"] == "The request's body is larger than 20000 bytes."


@pytest.mark.both_hosts
@pytest.mark.parametrize("path", OURS + THEIRS)
def test_long_compressed_body_is_refused_unread(frail: LiveStack, path: str) -> None:
    head = f"POST /v1{path} HTTP/1.1\r\nhost: localhost\r\ncontent-encoding: br\r\ncontent-length: {BLOCK}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", frail.port), timeout=60) as connection:
        connection.sendall(head.encode())
        assert connection.recv(65_536).startswith(b"HTTP/1.1 413 ")


@pytest.mark.both_hosts
@pytest.mark.parametrize("encoding", COMPRESSED)
def test_compressed_request_is_answered(frail: LiveStack, encoding: str) -> None:
    with Wire(frail) as wire:

        def answer(path: str, body: Json) -> httpx.Response:
            packed = COMPRESSED[encoding](json.dumps(body).encode())
            return wire.http.post(path, content=packed, headers=header(encoding) | JSON)

        question = {"model": "local/echo", "input": "Hello"}
        assert answer("/responses", question | {"store": False}).status_code == 200
        assert answer("/responses/input_tokens", question).status_code == 200
        assert answer("/conversations", {}).status_code == 200
        unknown = {"model": "local/none", "input": "x"}
        assert answer("/embeddings", unknown).status_code in (200, 404), "a route of the host"


@pytest.mark.both_hosts
def test_stream_for_compressed_request_is_complete(frail: LiveStack) -> None:
    body = {"model": "local/echo", "input": "Hello", "store": False, "stream": True}
    with Wire(frail) as wire:
        answer = wire.http.post(
            "/responses", content=COMPRESSED["zstd"](json.dumps(body).encode()), headers=header("zstd") | JSON
        )
    assert "response.completed" in answer.text


@pytest.mark.both_hosts
def test_body_that_contradicts_its_content_encoding_is_refused(frail: LiveStack) -> None:
    with Wire(frail) as wire:
        for path in OURS + THEIRS:
            for encoding in COMPRESSED:
                error = error_of(wire.http.post(path, content=b"{", headers=header(encoding)), 400)
                assert error["code"] == "invalid_content_encoding"
            assert error_of(wire.http.post(path, content=b"{}", headers=header("br, gzip")), 415)
