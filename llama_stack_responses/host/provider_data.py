"""Checks request headers, and the one with a user's provider data, before the host decodes them.

The host decodes all headers as UTF-8 and the provider data as JSON in middlewares that run before all routes. A value
that it cannot decode is a 500 of every route: on llama-stack anything that is not an object, on both hosts JSON that is
nested too deeply or has a number with too many digits, and any header that is not UTF-8. So the same middlewares are
extended to answer such a request with a 400 first.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable
from typing import Any, Final

import orjson
from starlette.types import Receive, Scope, Send

from ..core.errors import ApiError, bad_request
from .platform import PROVIDER_DATA_HEADER, ServerCall
from .refusals import refuse

_MAX_BYTES: Final = 65_536
"""Maximum size of the header: that of all headers of a request to this package."""


def checking_headers(call: ServerCall) -> ServerCall:
    """Return the `__call__` of a middleware of the host that decodes headers, with the check before it."""

    def checked(self: Any, scope: Scope, receive: Receive, send: Send) -> Awaitable[Any]:
        try:
            check_headers(scope.get("headers", ()))
        except ApiError as error:
            return refuse(error, scope, send)
        return call(self, scope, receive, send)

    return checked


def check_headers(headers: Any) -> None:
    """Check the headers of a request in ASGI form.

    Raises:
        ApiError: 400 for a header that the host cannot decode; 431 for provider data that are too large.
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
    if len(value) > _MAX_BYTES:
        message = f"The header {PROVIDER_DATA_HEADER} is larger than {_MAX_BYTES} bytes."
        raise ApiError(431, message, code="request_header_fields_too_large")
    try:
        # Parsed as the host parses it, and encoded as the store does, which limits depth and numbers.
        data = json.loads(value)
        orjson.dumps(data)
    except (ValueError, TypeError, RecursionError):
        data = None
    if not isinstance(data, dict):
        message = f'The header {PROVIDER_DATA_HEADER} must contain a JSON object, such as {{"openai_api_key": "..."}}.'
        raise bad_request(message, code="invalid_provider_data")
