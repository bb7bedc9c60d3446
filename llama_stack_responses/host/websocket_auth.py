"""Authorizes WebSocket connections: a user may connect if the host would accept the same request over HTTP.

llama-stack's middleware for auth, route policy, quota and provider data handles HTTP requests only, so a WebSocket
would be open to everyone. Some of OGX's handles both. So the handshake goes through the same middleware as the HTTP
request that it begins with, and so does each request on the connection, with the handshake's headers: once a token has
expired or a quota is used up, further requests are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final

import orjson
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..core.access import Access
from ..core.errors import ApiError
from ..wire.websocket.connection import HandshakeRefused
from ..wire.websocket.session import Caller

_ADMITTED: Final = "llama_stack_responses.admitted"
"""Key in a request's scope of the list that receives its caller once all middleware has let it pass."""
_SCHEMES: Final[Mapping[str, str]] = {"ws": "http", "wss": "https"}


class HostAuthorizer:
    """Authorizes requests through the host's own middleware.

    Args:
        access: identifies the user after the host has authenticated the request.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self._way_in: ASGIApp | None = None

    async def admit(self, scope: Scope, method: str) -> Caller:
        """Send a request with the handshake's headers through the host's middleware, and return its caller.

        Raises:
            HandshakeRefused: the middleware refused it.
        """
        self._way_in = self._way_in or self._through(scope["app"])
        admitted: list[Caller] = []
        scheme = _SCHEMES.get(scope["scheme"], "http")
        request = {**scope, "type": "http", "method": method, "scheme": scheme, _ADMITTED: admitted}
        answer = _Answer()
        await self._way_in(request, _no_body, answer.send)
        if not admitted:
            raise _refused(answer.status, answer.headers, answer.body)
        return admitted[0]

    def _through(self, app: Any) -> ASGIApp:
        way_in: ASGIApp = self._inside
        for middleware, args, kwargs in reversed(app.user_middleware):
            way_in = middleware(way_in, *args, **kwargs)
        return way_in

    async def _inside(self, scope: Scope, _: Receive, send: Send) -> None:
        scope[_ADMITTED].append(Caller(self._access.current_user(), self._access.provider_credentials()))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


class _Answer:
    """The answer to a request."""

    def __init__(self) -> None:
        self.status = 500
        self.headers: Mapping[str, str] = {}
        self.body = b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], Headers(raw=list(message.get("headers", [])))
        elif message["type"] == "http.response.body":
            self.body += message.get("body", b"")


async def _no_body() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


def _refused(status: int, headers: Mapping[str, str], body: bytes) -> HandshakeRefused:
    message = HTTPStatus(status).phrase
    with suppress(orjson.JSONDecodeError, KeyError, TypeError):
        message = orjson.loads(body)["error"]["message"]
    after = headers.get("retry-after", "")
    error = ApiError(status, message, retry_after=float(after) if re.fullmatch("[0-9]{1,9}", after) else None)
    forwarded = {name: value for name, value in headers.items() if name in ("content-type", "retry-after")}
    return HandshakeRefused(
        status, {"content-type": "application/json"} | forwarded, body or orjson.dumps(error.body()), error
    )
