"""Checks request headers, and the one with a user's provider data, before the host decodes them.

The host decodes all headers as UTF-8 and the provider data as JSON in middlewares that run before all routes. A value
that it cannot decode is a 500 of every route: on llama-stack anything that is not an object, on both hosts JSON that is
nested too deeply or has a number with too many digits, and any header that is not UTF-8. So the same middlewares are
extended to answer such a request with a 400 first.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import orjson
from starlette.types import Receive, Scope, Send

from ..core.errors import ApiError, bad_request
from ..generation.response_log import log_refused
from ..wire.noted_requests import creates_response
from ..wire.request_headers import known, request_id
from .platform import PROVIDER_DATA_HEADER, ServerCall
from .refusals import refuse

_MAX_BYTES: Final = 65_536
"""Maximum size of the header: that of all headers of a request to this package."""


type Noted = Callable[[ApiError, Scope], None]
"""Notes a request for a response that was refused after the host had authenticated its user."""


def checking_text(call: ServerCall) -> ServerCall:
    """Return the `__call__` of a middleware of the host that decodes headers as text, with the check before it."""
    return partial(_checking, check_text, None)(call)


def checking_headers(note: Noted | None) -> Callable[[ServerCall], ServerCall]:
    """Return what puts the check of all headers before the `__call__` of a middleware behind the host's auth."""
    return partial(_checking, check_headers, note)


def _checking(check: Callable[[Any], None], note: Noted | None, call: ServerCall) -> ServerCall:
    def checked(self: Any, scope: Scope, receive: Receive, send: Send) -> Awaitable[Any]:
        try:
            check(scope.get("headers", ()))
        except ApiError as error:
            own_id = request_id(scope)
            with known(scope, own_id):
                log_refused(error)
                if note and creates_response(scope):
                    note(error, scope)
            return refuse(error, scope, send, own_id)
        return call(self, scope, receive, send)

    return checked


def check_text(headers: Any) -> None:
    """Raise `ApiError` 400 if a header of a request in ASGI form is not UTF-8."""
    for name, value in headers:
        try:
            name.decode()
            value.decode()
        except UnicodeDecodeError:
            raise bad_request("A header of the request is not UTF-8.") from None


def check_headers(headers: Any) -> None:
    """Check the headers of a request in ASGI form.

    Raises:
        ApiError: 400 for a header that the host cannot decode; 431 for provider data that are too large.
    """
    check_text(headers)
    for name, value in headers:
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
