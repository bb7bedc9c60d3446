"""The log line of each response that has ended, as text and as JSON."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.openai_client import MODEL, NAME
from tests.support.reader import Reader
from tests.support.snippet_programs import LOG_LINE
from tests.support.snippets import blocks
from tests.support.stack import STARTER, Host, LiveStack
from tests.support.upstream import Reply, Upstream, UpstreamProcess, error, reply, text
from tests.support.waiting import wait_until
from tests.support.websocket_client import WebSocketClient
from tests.support.wire import Json, Wire, final

pytestmark = [pytest.mark.live, pytest.mark.both_hosts]

OWN_ID: Final = "of-my-own.7"
ANSWER: Final = reply(text("one", "two"), usage={"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9})
OF_THE_HOST: Final = {"level", "timestamp", "event", "category", "logger", "trace_id", "span_id"}
NUMBERS: Final = ("input_tokens", "output_tokens", "milliseconds")


@pytest.fixture(scope="module")
def json_stack(
    host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveStack]:
    """A stack that logs in JSON."""
    env = {
        **stack_env,
        "INFERENCE_URL": upstream_process.client.base_url,
        "LLAMA_STACK_LOG_FORMAT": "json",
        "OGX_LOG_FORMAT": "json",
    }
    with LiveStack(STARTER, env, tmp_path_factory.mktemp("json-logs"), host=host) as live:
        yield live


@pytest.fixture(params=["text", "json"])
def logging_stack(request: pytest.FixtureRequest) -> LiveStack:
    """A stack that logs in this form."""
    found: LiveStack = request.getfixturevalue("json_stack" if request.param == "json" else "stack")
    return found


def line_of(log: Path, response_id: str) -> Json:
    """Wait for the line of a response that has ended, and return its fields."""
    found: list[Json] = []

    def logged() -> bool:
        # The host wraps lines of text, so a line here is all words from its logger's name to the next level.
        output = log.read_text(errors="replace")
        found[:] = [each for each in [*of_json(output), *of_text(output)] if each["response_id"] == response_id]
        return bool(found)

    wait_until(logged)
    [line] = found
    return line


def of_json(log_text: str) -> list[Json]:
    """Return the lines of a JSON log with a response's tokens."""
    lines = [json.loads(line) for line in log_text.splitlines() if line.startswith("{")]
    return [line for line in lines if "milliseconds" in line]


def of_text(log_text: str) -> list[Json]:
    """Return the fields of the lines of a text log with a response's tokens."""
    lines = re.split(r"\b(?:DEBUG|INFO|WARNING|ERROR) +[0-9-]{10}T", " ".join(log_text.split()))
    found = [dict(re.findall(r"(\w+)=(\S+)", line)) for line in lines]
    return [line | {name: int(line[name]) for name in NUMBERS} for line in found if "milliseconds" in line]


def check(line: Json, **expected: Any) -> None:
    assert {name: line.get(name) for name in expected} == expected
    assert 0 < line["milliseconds"] < 60_000


@pytest.mark.parametrize("more", [{}, {"stream": True}, {"background": True}, {"store": False}], ids=str)
def test_ended_response_has_one_log_line_with_ids_model_status_tokens_and_time(
    logging_stack: LiveStack, upstream: Upstream, more: Json
) -> None:
    upstream.script(NAME, ANSWER)
    with Wire(logging_stack, headers={"x-request-id": OWN_ID}) as wire:
        response = (
            final(wire.stream(model=MODEL, input="x"))
            if "stream" in more
            else wire.create(model=MODEL, input="x", **more)
        )
        line = line_of(logging_stack.log, response["id"])
    check(line, x_request_id=OWN_ID, model_name=MODEL, status="completed", input_tokens=7, output_tokens=2)
    assert "error" not in line
    [documented] = of_text(blocks()[LOG_LINE].text)
    assert documented.keys() <= line.keys()
    assert documented.keys() >= line.keys() - OF_THE_HOST


def test_compaction_and_websocket_response_have_a_log_line(logging_stack: LiveStack, upstream: Upstream) -> None:
    upstream.script(NAME, ANSWER)
    with Wire(logging_stack, headers={"x-request-id": OWN_ID}) as wire:
        body = {"model": MODEL, "input": [{"role": "user", "content": "x"}]}
        compacted = wire.http.post("/responses/compact", json=body).json()
        check(line_of(logging_stack.log, compacted["id"]), x_request_id=OWN_ID, status="completed", input_tokens=7)
    with WebSocketClient(logging_stack, headers={"x-request-id": OWN_ID}) as websocket:
        websocket.ask(model=MODEL, input="x")
        response = websocket.response()
        check(line_of(logging_stack.log, response["id"]), x_request_id=OWN_ID, status="completed", output_tokens=2)


def response_of(log: Path, request_id: str) -> str:
    """Wait for a line with the tokens of the response to a request, and return the response's id."""
    found: list[str] = []

    def logged() -> bool:
        output = log.read_text(errors="replace")
        lines = [*of_json(output), *of_text(output)]
        found[:] = [each["response_id"] for each in lines if each.get("x_request_id") == request_id]
        return bool(found)

    wait_until(logged)
    return found[-1]


@pytest.mark.parametrize("more", [{}, {"store": False}], ids=str)
def test_response_whose_client_left_has_a_log_line(logging_stack: LiveStack, upstream: Upstream, more: Json) -> None:
    upstream.script(NAME, reply(text("one ", "two"), hold=1))
    own_id = f"left.{len(more)}"
    with Wire(logging_stack, headers={"x-request-id": own_id}) as wire:
        with Reader.create(wire, model=MODEL, input="x", **more) as reader:
            reader.read_to("one ")
        line = line_of(logging_stack.log, response_of(logging_stack.log, own_id))
    check(line, x_request_id=own_id, model_name=MODEL, status="cancelled")


def test_cancelled_background_response_has_a_log_line(logging_stack: LiveStack, upstream: Upstream) -> None:
    upstream.script(NAME, reply(text("one ", "two"), hold=1))
    with Wire(logging_stack, headers={"x-request-id": OWN_ID}) as wire:
        response = wire.post({"model": MODEL, "input": "x", "background": True}).json()
        upstream.wait_for(NAME, chunks=1)
        assert wire.http.post(f"/responses/{response['id']}/cancel").status_code == 200
        line = line_of(logging_stack.log, response["id"])
    check(line, x_request_id=OWN_ID, model_name=MODEL, status="cancelled")


def test_failed_response_has_its_error_code_in_its_log_line(logging_stack: LiveStack, upstream: Upstream) -> None:
    upstream.script(NAME, reply(text("one"), end="drop"))
    with Wire(logging_stack) as wire:
        response = final(wire.stream(model=MODEL, input="x"))
    check(line_of(logging_stack.log, response["id"]), status="failed", error=response["error"]["code"])


@pytest.mark.parametrize(
    ("answer", "cause", "status"),
    [
        (error(500, "An otter."), "server_error", 500),
        (error(401, "The key of an otter."), "credentials", 401),
        (reply(text("one"), end="drop"), "stream", None),
    ],
    ids=["server_error", "credentials", "stream"],
)
def test_failure_of_a_model_server_is_a_warning_with_its_cause(
    logging_stack: LiveStack, upstream: Upstream, answer: Reply, cause: str, status: int | None
) -> None:
    upstream.script(NAME, answer)
    own_id, said_before = f"failing.{cause}", logging_stack.log.stat().st_size
    with Wire(logging_stack, headers={"x-request-id": own_id}) as wire:
        wire.post({"model": MODEL, "input": "x", "stream": True})

    def fields() -> Json:
        flat = re.split(r"(?=\{\"|\b(?:DEBUG|INFO|WARNING|ERROR) +[0-9-]{10}T)", read(logging_stack.log))
        [line] = [each for each in flat if "model server failed" in each and own_id in each] or [""]
        return dict(re.findall(r"(\w+)\"?[=:] ?\"?([\w./-]+)", line)) | {"is_warning": "warning" in line.lower()}

    wait_until(lambda: "cause" in fields())
    expected = {"provider": "local", "model_name": MODEL, "cause": cause, "is_warning": True}
    assert expected.items() <= fields().items()
    assert fields().get("upstream_status") == (str(status) if status else None)
    assert "otter" not in logging_stack.log.read_bytes()[said_before:].decode(errors="replace")


def read(log: Path) -> str:
    return " ".join(log.read_text(errors="replace").split())


def refused_ids(log: Path) -> list[str]:
    """Return the request id of each line of a refused request."""
    flat = " ".join(log.read_text(errors="replace").split())
    return re.findall(r"request refused.*?x_request_id\W+([\w.-]+)", flat)


def test_refused_request_has_one_log_line_with_its_id(logging_stack: LiveStack, upstream: Upstream) -> None:
    headers = {
        name: {"x-request-id": f"refused.{name}"} for name in ("invalid", "whole", "streamed", "socket", "failed")
    }
    upstream.script(NAME, reply(text("one"), end="drop"))
    for name, body in {
        "invalid": {"model": MODEL, "input": 5},
        "whole": {"model": "local/unknown", "input": "x"},
        "streamed": {"model": "local/unknown", "input": "x", "stream": True},
    }.items():
        with Wire(logging_stack, headers=headers[name]) as wire:
            assert wire.post(body).status_code in (400, 404)
    with WebSocketClient(logging_stack, headers=headers["socket"]) as websocket:
        websocket.ask(model="local/unknown", input="x")
        assert websocket.error()["status"] == 404
    with Wire(logging_stack, headers=headers["failed"]) as wire:
        assert wire.post({"model": MODEL, "input": "x"}).status_code == 502  # and there is a response
    own = [headers[name]["x-request-id"] for name in ("invalid", "whole", "streamed", "socket")]
    wait_until(lambda: "refused.socket" in refused_ids(logging_stack.log))
    assert [each for each in refused_ids(logging_stack.log) if each.startswith("refused.")] == own
