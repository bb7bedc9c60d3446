"""The requests of a WebSocket pass through the host's middleware, whatever it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from llama_stack_responses.core.owner import Owner
from llama_stack_responses.host.websocket_auth import HostAuthorizer
from llama_stack_responses.wire.websocket.connection import HandshakeRefused

Json = dict[str, Any]


class Quota:
    """Middleware that passes a number of requests on, and records them."""

    def __init__(self, app: ASGIApp, seen: list[Json], most: int, body: bytes) -> None:
        self.app = app
        self.seen = seen
        self.most = most
        self.body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.seen.append({name: scope[name] for name in ("type", "method", "scheme", "path")})
        assert await receive() == {"type": "http.request", "body": b"", "more_body": False}
        if len(self.seen) <= self.most:
            await self.app(scope, receive, send)
            return
        headers = [(b"content-type", b"application/json"), (b"retry-after", b"9")]
        await send({"type": "http.response.start", "status": 429, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


class Access:
    """Access of the only user, ada."""

    def current_user(self) -> Owner:
        return Owner("ada")

    def provider_credentials(self) -> Json:
        return {"key": "hers"}


def gate() -> HostAuthorizer:
    return HostAuthorizer(Access())  # type: ignore[arg-type]  # the rest is not called


def handshake(*middleware: Middleware) -> Scope:
    """Return a WebSocket handshake with an app behind this middleware."""
    app = SimpleNamespace(user_middleware=list(middleware))
    return {
        "type": "websocket",
        "scheme": "wss",
        "path": "/v1/responses",
        "headers": [(b"host", b"here:8321")],
        "app": app,
    }


async def test_each_websocket_request_passes_middleware() -> None:
    seen: list[Json] = []
    body = b'{"error": {"message": "Quota exceeded"}}'
    scope, guarded = handshake(Middleware(Quota, seen=seen, most=2, body=body)), gate()
    for method in ("GET", "POST"):
        caller = await guarded.admit(scope, method)
        assert (caller.owner, caller.keys) == (Owner("ada"), {"key": "hers"})
    with pytest.raises(HandshakeRefused) as refused:
        await guarded.admit(scope, "POST")
    request = {"type": "http", "scheme": "https", "path": "/v1/responses"}
    assert seen == [{**request, "method": method} for method in ("GET", "POST", "POST")]
    assert (refused.value.status, refused.value.body) == (429, body)
    assert refused.value.headers == {"content-type": "application/json", "retry-after": "9"}
    error = refused.value.error
    assert (error.status, error.message, error.retry_after) == (429, "Quota exceeded", 9.0)


@pytest.mark.parametrize("body", [b"", b"no", b"[]", b'{"error": "x"}', b'{"detail": 1}'])
async def test_refusal_without_message_gets_status_text(body: bytes) -> None:
    with pytest.raises(HandshakeRefused) as refused:
        await gate().admit(handshake(Middleware(Quota, seen=[], most=0, body=body)), "GET")
    assert refused.value.error.message == "Too Many Requests"


async def test_middleware_runs_from_outside_in() -> None:
    """The order is the host's: authentication comes before authorization."""
    outer: list[Json] = []
    inner: list[Json] = []
    stack = [Middleware(Quota, seen=outer, most=0, body=b""), Middleware(Quota, seen=inner, most=0, body=b"")]
    with pytest.raises(HandshakeRefused):
        await gate().admit(handshake(*stack), "GET")
    assert (len(outer), len(inner)) == (1, 0)
