"""What the host's application answers without a route."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.host.patches import extend_server
from llama_stack_responses.host.platform import SERVER


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> TestClient:
    """A client of an application like the host's, with two routes of the host."""

    class StackApp(FastAPI):
        stack = SimpleNamespace(run_config=SimpleNamespace(server=SimpleNamespace(host=None)))

    monkeypatch.setitem(sys.modules, SERVER, SimpleNamespace(StackApp=StackApp))
    extend_server(ResponsesConfig())
    app = StackApp()
    app.get("/v1/models")(lambda: {"data": []})
    app.get("/v1/models/{name}")(lambda name: {"id": name})
    return TestClient(app, base_url="http://localhost")


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/v1/respones"), ("GET", "/v1//responses"), ("DELETE", "/v1/"), ("PUT", "/v1/a/b")]
)
def test_unknown_url_is_answered_in_the_form_of_openai(client: TestClient, method: str, path: str) -> None:
    for _ in range(2):
        answer = client.request(method, path)
        assert answer.status_code == 404
        assert answer.headers["x-request-id"].startswith("req_")
        message = (
            f"Unknown request URL: {method} {path}. Check the URL for typos, and whether this stack has the API: "
            "GET /openapi.json lists its routes."
        )
        assert answer.json() == {
            "error": {"message": message, "type": "invalid_request_error", "param": None, "code": "unknown_url"}
        }


def test_path_of_any_length_is_named_in_part(client: TestClient) -> None:
    assert len(client.get("/v1/" + "x" * 9_000).content) < 1_000


@pytest.mark.parametrize(
    ("method", "path", "status", "body"),
    [
        ("GET", "/v1/models", 200, {"data": []}),
        ("GET", "/v1/models/a", 200, {"id": "a"}),
        ("POST", "/v1/models", 405, {"detail": "Method Not Allowed"}),
        ("GET", "/elsewhere", 404, {"detail": "Not Found"}),
        ("GET", "/v1", 404, {"detail": "Not Found"}),
        ("GET", "/v1beta/models", 404, {"detail": "Not Found"}),
    ],
)
def test_other_answers_of_the_host_stay(client: TestClient, method: str, path: str, status: int, body: object) -> None:
    answer = client.request(method, path)
    assert (answer.status_code, answer.json()) == (status, body)


def test_websocket_without_a_route_is_closed(client: TestClient) -> None:
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/v1/respones"):
        pass
