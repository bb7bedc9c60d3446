"""Error answers that are sent before any route is reached, or in place of a host's."""

from __future__ import annotations

from typing import Final

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..core.errors import ApiError
from ..wire.request_headers import has_large_body, request_id

_DENIAL: Final = "websocket.http.response"
"""The extension of ASGI with which a handshake gets an answer over HTTP."""


async def refuse(error: ApiError, scope: Scope, send: Send, own_id: str = "") -> None:
    """Answer a request or a WebSocket handshake with an error; the rest of a large body is not read.

    Args:
        own_id: the request's id, if it has one already.
    """
    websocket = scope["type"] == "websocket"
    if websocket and _DENIAL not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008, "reason": error.message})
        return
    body = orjson.dumps(error.body())
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    headers.append((b"x-request-id", (own_id or request_id(scope)).encode()))
    headers += [(name.encode(), value.encode()) for name, value in {**error.retry_headers, **error.headers}.items()]
    if not websocket and has_large_body(scope):
        headers.append((b"connection", b"close"))
    prefix = _DENIAL if websocket else "http.response"
    await send({"type": f"{prefix}.start", "status": error.status, "headers": headers})
    await send({"type": f"{prefix}.body", "body": body})


class Refusal(Response):
    """The answer of a route of the host that this package refuses."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(status_code=error.status)
        self._error = error

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        """Send it."""
        await refuse(self._error, scope, send)
