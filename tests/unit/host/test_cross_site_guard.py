"""The host's application asks the policy before any of its middleware."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn import Config

from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.host.patches import extend_server
from llama_stack_responses.host.platform import SERVER

Json = dict[str, Any]


class AuthenticationMiddleware:
    """A stand-in for the host's, which is known by its name."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


class App:
    """A stand-in for the host's application that answers everything."""

    def __init__(self, *middleware: Middleware, host: str | None = None) -> None:
        self.user_middleware = list(middleware)
        self.router = SimpleNamespace(default=self.__call__)
        self.stack = SimpleNamespace(run_config=SimpleNamespace(server=SimpleNamespace(host=host)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "passed"})


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> type[App]:
    """The guarded class, with one allowed host and one allowed origin."""
    kind: type[App] = type("Guarded", (App,), {"__call__": App.__call__})
    monkeypatch.setitem(sys.modules, SERVER, SimpleNamespace(StackApp=kind))
    extend_server(ResponsesConfig())
    config = {"allowed_hosts": ["a.example"], "allowed_origins": ["https://app.example"]}
    extend_server(ResponsesConfig.model_validate(config))
    return kind


async def answered(app: App, scope: Json, **headers: str) -> list[Json]:
    """Return the messages that answer a request."""
    sent: list[Json] = []

    async def send(message: Any) -> None:
        sent.append(message)

    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    made = {"type": "http", "method": "POST", "server": ("127.0.0.1", 1), **scope, "headers": encoded}
    await app(made, None, send)  # type: ignore[arg-type]
    return sent


async def is_let_in(app: App, **headers: str) -> bool:
    return await answered(app, {}, **headers) == [{"type": "passed"}]


def test_uvicorn_takes_the_application_for_one_of_asgi_3(guarded: type[App]) -> None:
    loaded = Config(guarded(), log_config=None)
    loaded.load()
    assert loaded.interface == "asgi3"


async def test_foreign_request_is_answered_with_403(guarded: type[App]) -> None:
    start, body = await answered(guarded(), {}, host="evil.test")
    assert (start["type"], start["status"]) == ("http.response.start", 403)
    assert orjson.loads(body["body"])["error"]["code"] == "host_not_allowed"


async def test_foreign_handshake_is_answered_with_403(guarded: type[App]) -> None:
    handshake = {"type": "websocket", "extensions": {"websocket.http.response": {}}}
    start, body = await answered(guarded(), handshake, host="localhost", origin="https://evil.test")
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 403)
    assert body["type"] == "websocket.http.response.body"
    assert orjson.loads(body["body"])["error"]["code"] == "origin_not_allowed"


async def test_foreign_handshake_is_closed_where_it_cannot_be_answered(guarded: type[App]) -> None:
    [closed] = await answered(guarded(), {"type": "websocket"}, host="evil.test")
    assert (closed["type"], closed["code"]) == ("websocket.close", 1008)


async def test_lifespan_is_not_checked(guarded: type[App]) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await guarded()({"type": "lifespan"}, None, send)  # type: ignore[arg-type]
    assert sent == [{"type": "passed"}]


async def test_settings_are_the_last_ones(guarded: type[App]) -> None:
    assert await is_let_in(guarded(), host="a.example", origin="https://app.example")
    assert not await is_let_in(guarded(), host="b.example")


async def test_name_that_the_host_listens_on_is_answered(guarded: type[App]) -> None:
    assert await is_let_in(guarded(host="Box.example"), host="box.example:8321")
    assert not await is_let_in(guarded(host="127.0.0.1"), host="box.example:8321")


async def test_authentication_replaces_the_check_of_the_name(guarded: type[App]) -> None:
    app = guarded(Middleware(AuthenticationMiddleware))
    assert await is_let_in(app, host="evil.test")
    assert await is_let_in(app, host="evil.test", origin="https://other.test", authorization="Bearer x")
    assert not await is_let_in(app, host="evil.test", origin="https://other.test")


async def test_origin_of_cors_settings_is_let_in(guarded: type[App]) -> None:
    app = guarded(Middleware(CORSMiddleware, allow_origins=["https://b.example"], allow_origin_regex=r"http://c:\d+"))
    for origin, let_in in (("https://b.example", True), ("http://c:1", True), ("http://c:1.evil.test", False)):
        assert await is_let_in(app, host="localhost", origin=origin) == let_in
    assert await is_let_in(guarded(Middleware(CORSMiddleware, allow_origins=["*"])), host="localhost", origin="null")


def test_without_a_server_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, SERVER, raising=False)
    extend_server(ResponsesConfig())
