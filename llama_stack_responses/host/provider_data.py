"""The header with a user's provider data, checked before the host reads it.

The host decodes all headers as UTF-8 and the provider data as JSON in a middleware, ahead of all routes. What it cannot
read there is a 500 of every route: on llama-stack anything that is no object, on both hosts what is nested too deeply
or has a number with too many digits. So the same middleware answers such a request with a 400 first.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final

import orjson
from starlette.types import Receive, Scope, Send

from llama_stack_responses.core.errors import ApiError, bad_request
from llama_stack_responses.logs import get_logger
from llama_stack_responses.wire.headers import request_id

from .platform import PROVIDER_DATA_HEADER, SERVER

logger = get_logger(__name__)

Call = Callable[[Any, Scope, Receive, Send], Awaitable[Any]]

_MOST_BYTES: Final = 65_536
"""Size of the header, at most: that of all headers of a request of ours."""
_CHECKED: Final = "_llama_stack_responses_checks"


def guard_provider_data() -> None:
    """Has the host's middleware refuse what it cannot read. Where no server runs, there is none."""
    middleware: Any = getattr(sys.modules.get(SERVER), "ProviderDataMiddleware", None)
    if middleware is None:
        logger.debug("the host has no middleware that reads provider data")
        return
    if not hasattr(middleware, _CHECKED):
        middleware.__call__ = _checking(middleware.__call__)
        setattr(middleware, _CHECKED, True)


def _checking(call: Call) -> Call:
    """The call of an ASGI middleware, behind the check."""

    async def checked(self: Any, scope: Scope, receive: Receive, send: Send) -> Any:
        try:
            check_headers(scope.get("headers", ()))
        except ApiError as error:
            return await _refuse(error, scope, send)
        return await call(self, scope, receive, send)

    return checked


def check_headers(headers: Any) -> None:
    """Looks at the headers of a request, as ASGI has them.

    Raises:
        ApiError: 400 for what the host cannot read, 431 for more than it should.
    """
    for name, value in headers:
        try:
            name.decode()
            value.decode()
        except UnicodeDecodeError:
            raise bad_request("A header of the request is not UTF-8.") from None
        if name.lower() == PROVIDER_DATA_HEADER.lower().encode() and value:
            _check(value)


def _check(value: bytes) -> None:
    if len(value) > _MOST_BYTES:
        message = f"The header {PROVIDER_DATA_HEADER} is larger than {_MOST_BYTES} bytes."
        raise ApiError(431, message, code="request_header_fields_too_large")
    try:
        # As the host reads it; and as what is stored of it is written, which bounds depth and numbers.
        data = json.loads(value)
        orjson.dumps(data)
    except (ValueError, TypeError, RecursionError):
        data = None
    if not isinstance(data, dict):
        message = f'The header {PROVIDER_DATA_HEADER} must hold a JSON object, such as {{"openai_api_key": "..."}}.'
        raise bad_request(message, code="invalid_provider_data")


async def _refuse(error: ApiError, scope: Scope, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": error.message})
        return
    headers = [(b"content-type", b"application/json"), (b"x-request-id", request_id(scope).encode())]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": orjson.dumps(error.body())})
