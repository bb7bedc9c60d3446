"""The rest of a stream is sent after the routes have returned, but inside the middlewares that act on its end."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Awaitable, Callable
from inspect import currentframe
from traceback import walk_stack
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fastapi import Request, Response
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.host.patches import extend_server
from llama_stack_responses.host.platform import SERVER
from llama_stack_responses.wire.request_cycle import RequestCycle, cycle_of
from tests.support.asgi import App, Body, scope_of
from tests.support.memory import count_of, no_garbage_collection
from tests.support.waiting import until

type Json = dict[str, Any]


class Middleware:
    """A stand-in for the host's middleware, and for the one of its metrics.

    Attributes:
        ended: what the client had got when the application returned.
    """

    ended: list[Message] | None = None

    def __init__(self, app: ASGIApp, sent: list[Message] | None = None) -> None:
        self._app = app
        self._sent = sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        finally:
            type(self).ended = list(self._sent or ())


class Served:
    """A request to a server with a stream.

    Attributes:
        frames: the names of the functions that were running while the rest was sent.
        scope: the scope of the request.
        scope_bytes: its size while the rest was sent.
        sent: what the client got.
        app: the application.
        left: how often the stream was abandoned.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        members = {"__call__": Middleware.__call__, "__module__": "llama_stack.core.server.server"}
        self.inner: Any = type("Inner", (Middleware,), members)
        self.outer: Any = type("Outer", (Middleware,), members)
        monkeypatch.setitem(sys.modules, SERVER, SimpleNamespace(ProviderDataMiddleware=self.inner))
        extend_server(ResponsesConfig())
        extend_server(ResponsesConfig())
        self.frames: list[str] = []
        self.sent: list[Message] = []
        self.scope = scope_of()
        self.scope_bytes = 0
        self.left = 0
        self._app = App()
        self.app = cast("Any", self._app.serve(self._answer))
        self.error: Exception | None = None
        self.later: bool | None = None
        self.waits: asyncio.Event | None = None
        self.app.add_middleware(self.inner)
        self.app.add_middleware(self.outer, sent=self.sent)

    @property
    def broken_off(self) -> list[Scope]:
        """Scopes of the connections that were closed."""
        return self._app.broken_off

    async def run(self) -> list[Any]:
        """Send the request; return the bodies that the client got."""

        async def send(message: Message) -> None:
            self.sent.append(message)

        await self.app(self.scope, Body().receive, send)
        return [message.get("body") for message in self.sent]

    async def _answer(self, _: Request) -> Response:
        return _Stream(self)

    def leave(self) -> None:
        """Count that the stream was abandoned."""
        self.left += 1


class _Stream(Response):
    """Sends a head, and the rest later."""

    def __init__(self, served: Served) -> None:
        super().__init__()
        self._served = served

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        served, cycle = self._served, cycle_of(scope)
        cycle.abandon_with_client(served.leave)
        await send({"type": "http.response.start", "status": 200, "headers": []})

        async def rest() -> None:
            served.scope_bytes = sys.getsizeof(served.scope)
            served.frames += [frame.f_code.co_qualname for frame, _ in walk_stack(currentframe())]
            await cycle.send({"type": "http.response.body", "body": b"x", "more_body": True})
            if served.waits:
                await served.waits.wait()
            if served.error:
                raise served.error
            assert served.left == 0
            await cycle.send({"type": "http.response.body", "body": b""})

        served.later = cycle.send_later(rest)
        if not served.later:
            await rest()


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Served:
    """A server whose host has the middleware."""
    return Served(monkeypatch)


async def test_routes_have_returned_while_the_rest_is_sent(served: Served) -> None:
    assert await served.run() == [None, b"x", b""]
    assert served.later
    assert not any(name.split(".")[0] in {"Router", "APIRouter", "JsonErrorRoute", "Route"} for name in served.frames)
    assert served.frames[:3] == [
        "_Stream.__call__.<locals>.rest",
        "sending_rest.<locals>.called",
        "Middleware.__call__",
    ]
    assert "ServerErrorMiddleware.__call__" in served.frames


async def test_outer_middleware_sees_the_end_of_the_answer(served: Served) -> None:
    await served.run()
    assert [message.get("body") for message in served.outer.ended] == [None, b"x", b""]


async def test_cycle_ends_after_the_rest(served: Served) -> None:
    await served.run()
    assert served.left == 1
    assert not [name for name in served.scope if name.startswith("llama_stack_responses")]


async def test_scope_holds_nothing_for_the_routes_while_the_rest_is_sent(served: Served) -> None:
    await served.run()
    assert "fastapi_middleware_astack" not in served.scope
    assert served.scope["route"]  # which tracing middlewares read at the end
    assert served.scope_bytes <= sys.getsizeof(dict.fromkeys(served.scope))


async def test_failure_of_the_rest_breaks_off_the_connection(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    served.error = ValueError("wrong")
    assert await served.run() == [None, b"x"]
    assert len(served.broken_off) == served.left == 1
    [record] = [each for each in caplog.records if each.name.endswith("wire.request_cycle")]
    assert (record.levelname, record.getMessage().splitlines()[0]) == ("ERROR", "request failed: POST '/'")
    assert record.x_request_id  # type: ignore[attr-defined]


async def test_cancelled_rest_ends_the_cycle(served: Served) -> None:
    served.waits = asyncio.Event()
    task = asyncio.create_task(served.run())
    await until(lambda: len(served.sent) == 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert served.left == 1


async def test_failure_of_a_middleware_before_the_rest_ends_the_cycle(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(Middleware):
        __module__ = "llama_stack.core.server.server"

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await self._app(scope, receive, send)
            raise ValueError("wrong")

    served.app.user_middleware.append(type(served.app.user_middleware[0])(Failing))
    with pytest.raises(ValueError, match="wrong"):
        await served.run()
    assert served.frames == []
    assert served.left == 1


async def test_unknown_middleware_has_the_route_send_the_rest(served: Served) -> None:
    served.app.add_middleware(GZipMiddleware)
    assert await served.run() == [None, b"x", b""]
    assert served.later is False
    assert served.left == 1


async def test_request_is_freed_without_garbage_collection(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    send_later = RequestCycle.send_later

    def noted(cycle: RequestCycle, rest: Callable[[], Awaitable[None]]) -> bool:
        counts.append(count_of(RequestCycle))
        return send_later(cycle, rest)

    monkeypatch.setattr(RequestCycle, "send_later", noted)
    gc.collect()
    before = count_of(RequestCycle)
    with no_garbage_collection():
        await served.run()
        assert [*counts, count_of(RequestCycle)] == [before + 1, before]
