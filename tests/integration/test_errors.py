"""What goes wrong, in OpenAI's words: the status, the type, the code and the field, streamed or not; nothing is lost."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest

from tests.support.stack import LiveStack
from tests.support.upstream import Reply, Upstream, error, reasoning, reply, text, tool_call
from tests.support.wire import Json, Wire, error_of, final, output_text

pytestmark = pytest.mark.live

UNKNOWN = "resp_000000000000000000000000"
MALFORMED = ("nonsense", "resp_", "resp_000000000000000000000000%20", "resp_0-0", "msg_000000000000000000000000")
TOOL: Json = {"type": "function", "name": "f", "parameters": {}}
CALL: Json = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
OUTPUT: Json = {"type": "function_call_output", "call_id": "call_1", "output": "1"}
QUICK = {"retry-after-ms": "5"}  # the host's client tries 408, 409, 429 and 5xx three times: not to wait for that here


@pytest.fixture
def wire(stack: LiveStack, upstream: Upstream) -> Iterator[Wire]:
    """Plain HTTP to the stack."""
    with Wire(stack) as wire:
        yield wire


@dataclass(frozen=True)
class Bad:
    """A request that is refused: what is in it, and what the answer says."""

    body: Json
    param: str | None
    code: str | None
    words: str
    status: int = 400


BAD: dict[str, Bad] = {
    "no model": Bad({"model": None}, "model", "missing_required_parameter", "'model'"),
    "model is a number": Bad({"model": 5}, "model", "invalid_type", "expected a string, but got an integer"),
    "no input": Bad({"input": None}, "input", "missing_required_parameter", "'input'"),
    "input is a number": Bad({"input": 5}, "input", "invalid_type", "'input'"),
    "item is a string": Bad({"input": ["x"]}, "input[0]", "invalid_type", "'input[0]'"),
    "item type": Bad({"input": [OUTPUT, {"type": "poem"}]}, "input[1].type", "invalid_value", "'poem'"),
    "part type": Bad(
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}, {"type": "smell"}]}]},
        "input[0].content[1].type",
        "invalid_value",
        "'smell'",
    ),
    "role": Bad({"input": [{"role": "robot", "content": "x"}]}, "input[0].role", "invalid_value", "'robot'"),
    "no content": Bad({"input": [{"role": "user"}]}, "input[0].content", "missing_required_parameter", "content"),
    "temperature": Bad({"temperature": "hot"}, "temperature", "invalid_type", "'temperature'"),
    "temperature too high": Bad({"temperature": 3}, "temperature", "decimal_above_max_value", "<= 2"),
    "max_output_tokens": Bad({"max_output_tokens": 0}, "max_output_tokens", "integer_below_min_value", ">= 1"),
    "stream": Bad({"stream": "yes"}, "stream", "invalid_type", "a boolean"),
    "store": Bad({"store": 1}, "store", "invalid_type", "a boolean"),
    "tools": Bad({"tools": {}}, "tools", "invalid_type", "an array"),
    "tool without a name": Bad(
        {"tools": [TOOL, {"type": "function"}]}, "tools[1].name", "missing_required_parameter", "tools[1].name"
    ),
    "tool type": Bad({"tools": [{"type": "hammer"}]}, "tools[0].type", "invalid_value", "'hammer'"),
    "hosted tool": Bad({"tools": [{"type": "web_search"}]}, "tools[0].type", "unsupported_value", "web_search"),
    "tool choice": Bad({"tool_choice": {"type": "function", "name": "g"}, "tools": [TOOL]}, "tool_choice", None, "'g'"),
    "text format": Bad(
        {"text": {"format": {"type": "json_schema", "name": "x"}}},
        "text.format.schema",
        "missing_required_parameter",
        "schema",
    ),
    "17 pairs of metadata": Bad(
        {"metadata": {str(n): "x" for n in range(17)}}, "metadata", "object_above_max_properties", "at most 16"
    ),
    "key of 65 characters": Bad({"metadata": {"k" * 65: "x"}}, "metadata", "string_above_max_length", "64"),
    "value of 513 characters": Bad({"metadata": {"k": "x" * 513}}, "metadata.k", "string_above_max_length", "512"),
    "value is a number": Bad({"metadata": {"k": 5}}, "metadata.k", "invalid_type", "a string"),
    "output without its call": Bad({"input": [OUTPUT]}, "input", None, "call_1"),
    "call without its output": Bad({"input": [{"role": "user", "content": "x"}, CALL]}, "input", None, "call_1"),
    "output before its call": Bad({"input": [OUTPUT, CALL]}, "input", None, "call_1"),
    "malformed previous": Bad({"previous_response_id": "nope"}, "previous_response_id", "invalid_value", "'nope'"),
    "unknown previous": Bad(
        {"previous_response_id": UNKNOWN}, "previous_response_id", "previous_response_not_found", UNKNOWN
    ),
    "background": Bad({"background": True}, "background", "unsupported_parameter", "'background': true"),
    "conversation": Bad({"conversation": "conv_1"}, "conversation", "unsupported_parameter", "'conversation'"),
    "prompt": Bad({"prompt": {"id": "pmpt_1"}}, "prompt", "unsupported_parameter", "'prompt'"),
    "unknown provider": Bad({"model": "nowhere/x"}, "model", "model_not_found", "nowhere/x", 404),
    "unknown model": Bad({"model": "local/missing"}, "model", "model_not_found", "missing", 404),
    "model without a provider": Bad({"model": "missing"}, "model", "model_not_found", "missing", 404),
}


@pytest.mark.parametrize("name", BAD)
def test_a_request_that_is_wrong_says_where(wire: Wire, upstream: Upstream, name: str) -> None:
    bad = BAD[name]
    for stream in (False, True):
        body = {"model": "local/echo", "input": "hello", "stream": stream} | bad.body
        found = error_of(wire.post({key: value for key, value in body.items() if value is not None}), bad.status)
        assert (found["type"], found["param"], found["code"]) == ("invalid_request_error", bad.param, bad.code)
        assert bad.words in found["message"]
    assert upstream.requests("echo") == []
    assert [each for each in wire.listed(limit=10) if each["status"] not in ("completed", "incomplete", "failed", "cancelled")] == []


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b'{"model": "local/echo", "input": "x"', b"\xff\xfe", b"[]", b'"hello"', b"null", b"{'model': 1}", b"[" * 9999],
    ids=["empty", "brace", "cut", "bytes", "array", "string", "null", "quotes", "deep"],
)
def test_a_body_that_is_no_json_object_is_refused(wire: Wire, body: bytes) -> None:
    found = error_of(wire.post(body), 400)
    assert found["type"] == "invalid_request_error"
    assert "JSON" in found["message"]


def test_the_sdk_raises_what_openai_would_make_it_raise(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.responses.create(model="local/echo", input="x", temperature=9)
    assert bad.value.param == "temperature"
    assert bad.value.request_id
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.create(model="local/missing", input="x", stream=True)
    assert missing.value.code == "model_not_found"


@pytest.mark.parametrize("path", ["", "?stream=true", "/input_items", "/cancel", "DELETE"])
def test_an_id_that_leads_nowhere(wire: Wire, path: str) -> None:
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
        assert (found["type"], found["param"], found["code"]) == ("invalid_request_error", "response_id", "invalid_value")


def test_a_chain_that_is_left_without_an_output_is_refused(wire: Wire, upstream: Upstream) -> None:
    upstream.script("calls", [reply(tool_call(0, "call_1", "f", "{}")), reply(text("thanks"))])
    first = wire.create(model="local/calls", input="x", tools=[TOOL])
    body = {"model": "local/calls", "input": "and?", "previous_response_id": first["id"]}
    assert "No tool output found for function call call_1" in error_of(wire.post(body), 400)["message"]
    other = {"type": "function_call_output", "call_id": "call_2", "output": "1"}
    assert "call_2" in error_of(wire.post(body | {"input": [OUTPUT, other]}), 400)["message"]
    assert output_text(wire.create(**body | {"input": [OUTPUT]})) == "thanks"


@dataclass(frozen=True)
class Broken:
    """What the model server answers, and what the client is told."""

    reply: Reply
    status: int
    type: str
    code: str | None
    param: str | None
    words: str
    unheard: str | None = None
    retry_after: str | None = None
    attempts: int = 1


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
TOO_LONG = ("invalid_request_error", "context_length_exceeded", "input")
BUSY = QUICK | {"retry-after": "7"}

BROKEN: dict[str, Broken] = {
    "400": Broken(error(400, "no such thing as min_p"), 400, "invalid_request_error", None, None, "no such thing as min_p"),
    "400 llama.cpp": Broken(Reply(status=400, body=LLAMA_CPP_TOO_LONG), 400, *TOO_LONG, "5210"),
    "400 vLLM": Broken(Reply(status=400, body=VLLM_TOO_LONG), 400, *TOO_LONG, "5210"),
    "400 vLLM, flat": Broken(Reply(status=400, body=VLLM_FLAT), 400, *TOO_LONG, "5210"),
    "400 vLLM, input": Broken(Reply(status=400, body=VLLM_INPUT_TOKENS), 400, *TOO_LONG, "5210"),
    "400 OpenAI": Broken(Reply(status=400, body=OPENAI_TOO_LONG), 400, *TOO_LONG, "context window"),
    "401": Broken(error(401, "Bad key sk-123"), 502, "server_error", None, None, "API key", unheard="sk-123"),
    "403": Broken(error(403, "Not for sk-123"), 502, "server_error", None, None, "API key", unheard="sk-123"),
    "404": Broken(error(404, "no such model"), 404, "invalid_request_error", "model_not_found", "model", "no such model"),
    "408": Broken(error(408, "too slow", headers=QUICK), 504, "server_error", None, None, "timed out", attempts=3),
    "422": Broken(error(422, "cannot process"), 400, "invalid_request_error", None, None, "cannot process"),
    "429": Broken(
        error(429, "queue is full", headers=BUSY),
        429,
        "rate_limit_error",
        "rate_limit_exceeded",
        None,
        "queue is full",
        retry_after="7",
        attempts=3,
    ),
    "500": Broken(error(500, "CUDA error", headers=QUICK), 502, "server_error", None, None, "(500): CUDA error", attempts=3),
    "503": Broken(
        error(503, "loading", headers=BUSY), 502, "server_error", None, None, "(503): loading", retry_after="7", attempts=3
    ),
    "500 without JSON": Broken(
        Reply(status=500, body="<html>oops</html>", headers=QUICK), 502, "server_error", None, None, "(500)", attempts=3
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_model_server_that_refuses_is_explained(wire: Wire, upstream: Upstream, name: str) -> None:
    broken = BROKEN[name]
    upstream.script("broken", broken.reply)
    for stream in (False, True):
        answer = wire.post({"model": "local/broken", "input": "hello", "stream": stream})
        found = error_of(answer, broken.status)
        assert (found["type"], found["code"], found["param"]) == (broken.type, broken.code, broken.param)
        assert broken.words in found["message"]
        assert broken.unheard is None or broken.unheard not in answer.text
        assert answer.headers.get("retry-after") == broken.retry_after
    assert len(upstream.requests("broken")) == 2 * broken.attempts
    assert wire.listed(model="local/broken") == []  # nothing was said, so there is nothing to keep


@dataclass(frozen=True)
class Cut:
    """A stream that breaks, and what the client is told."""

    reply: Reply
    status: int
    code: str
    words: str
    type: str = "server_error"


def cut(end: str, **options: Any) -> Reply:
    """A reply that breaks after some reasoning, some text and half a call."""
    return reply(reasoning("hm"), text("Half an ", "answer"), tool_call(0, "call_1", "f", '{"a'), end=end, **options)


FRAME = {"error": {"message": "the GPU fell off", "type": "server_error", "param": None, "code": 500}}
LIMIT = {"error": {"message": "Too many tokens, please wait before trying again.", "type": "tokens", "param": None, "code": "rate_limit_exceeded"}}
CUT: dict[str, Cut] = {
    "error frame": Cut(cut("error_frame", body=FRAME), 502, "server_error", "the GPU fell off"),
    "rate limit": Cut(
        cut("error_frame", body=LIMIT), 429, "rate_limit_exceeded", "please wait", "rate_limit_error"
    ),
    "context": Cut(
        cut("error_frame", body=LLAMA_CPP_TOO_LONG), 400, "context_length_exceeded", "5210", "invalid_request_error"
    ),
    "connection": Cut(cut("drop"), 502, "server_error", "inference provider"),
    "no finish reason": Cut(cut("no_finish"), 502, "server_error", "before the answer was finished"),
}


@pytest.mark.parametrize("name", CUT)
def test_a_stream_that_breaks_keeps_what_was_said(wire: Wire, upstream: Upstream, name: str) -> None:
    broken, model = CUT[name], f"cut-{name.replace(' ', '-')}"
    upstream.script(model, broken.reply)
    events = wire.stream(model=f"local/{model}", input="hello", tools=[TOOL])
    failed = final(events)
    assert failed["status"] == "failed"
    assert failed["error"]["code"] == broken.code
    assert broken.words in failed["error"]["message"]
    assert (events[-2]["type"], events[-2]["message"]) == ("error", failed["error"]["message"])
    assert wire.retrieve(failed["id"]) == failed

    found = error_of(wire.post({"model": f"local/{model}", "input": "hello", "tools": [TOOL]}), broken.status)
    assert broken.words in found["message"]
    assert found["type"] == broken.type
    kept, first = wire.listed(model=f"local/{model}")
    assert first == failed
    for response in (kept, first):
        assert response["status"] == "failed"
        assert [item["type"] for item in response["output"]] == ["reasoning", "message", "function_call"]
        assert response["output"][0]["content"][0]["text"] == "hm"
        assert output_text(response) == "Half an answer"
        assert response["output"][2]["arguments"] == '{"a'
        assert response["output"][2]["status"] == "incomplete"


@pytest.mark.parametrize(
    "mute",
    [reply(end="drop"), reply(end="no_finish"), reply(end="error_frame"), Reply(body={"hello": "world"})],
    ids=["dropped", "no finish reason", "error frame", "no stream at all"],
)
def test_a_stream_that_breaks_before_its_first_word(wire: Wire, upstream: Upstream, mute: Reply) -> None:
    upstream.script("mute", mute)
    failed = final(wire.stream(model="local/mute", input="hello"))
    assert (failed["status"], failed["output"]) == ("failed", [])
    assert wire.retrieve(failed["id"]) == failed
    error_of(wire.post({"model": "local/mute", "input": "hello"}), 502)


def test_the_sdk_sees_how_a_stream_failed(client: openai.OpenAI, upstream: Upstream) -> None:
    """The `error` event must not hide the one after it, which has what was said."""
    upstream.script("cut", cut("error_frame", body=FRAME))
    stream = client.responses.create(model="local/cut", input="hello", tools=[TOOL], stream=True)  # type: ignore[call-overload]
    events = list(stream)
    assert [event.type for event in events[-2:]] == ["error", "response.failed"]
    assert events[-1].response.output_text == "Half an answer"


def test_a_verdict_that_comes_late_is_an_event(wire: Wire, upstream: Upstream) -> None:
    """The headers of a stream wait two seconds for it, not longer; without a stream there is no hurry."""
    upstream.script("late", error(400, "I thought about it: no.", delay=2.4))
    with ThreadPoolExecutor(1) as other:
        whole = other.submit(wire.post, {"model": "local/late", "input": "hello"})
        begun = time.monotonic()
        with wire.http.stream("POST", "/responses", json={"model": "local/late", "input": "x", "stream": True}) as answer:
            waited = time.monotonic() - begun
            assert answer.status_code == 200
            pieces = answer.iter_bytes()
            first = next(pieces)
            seen = time.monotonic() - begun
            rest = b"".join(pieces)
        assert 1.5 < waited < 2.4
        assert seen < 2.4
        assert first.startswith(b"event: response.created\n")
        assert b"I thought about it: no." in rest
        assert b"event: error\n" in rest
        assert b"event: response.failed\n" in rest
        assert error_of(whole.result(), 400)["message"] == "I thought about it: no."
    statuses = [each["status"] for each in wire.listed(model="local/late")]
    assert statuses == ["failed"]  # the one whose headers had gone out


def test_no_failure_is_a_bare_500(stack: LiveStack) -> None:
    """Whatever the tests of this module sent, the server never met what it did not expect."""
    assert "Traceback" not in stack.log.read_text(errors="replace")
