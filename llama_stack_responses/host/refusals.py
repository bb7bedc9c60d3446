"""Error answers that are sent before any route is reached."""

from __future__ import annotations

import orjson
from starlette.types import Scope, Send

from ..core.errors import ApiError
from ..wire.headers import has_large_body, request_id


async def refuse(error: ApiError, scope: Scope, send: Send) -> None:
    """Answer a request or a WebSocket handshake with an error; the rest of a large body is not read."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": error.message})
        return
    headers = [(b"content-type", b"application/json"), (b"x-request-id", request_id(scope).encode())]
    if has_large_body(scope):
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": orjson.dumps(error.body())})
