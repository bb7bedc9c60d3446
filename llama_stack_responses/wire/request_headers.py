"""The request id, the trace context and the body's length in the headers of a request."""

from __future__ import annotations

import re
from typing import Final

from starlette.datastructures import Headers
from starlette.types import Scope

from ..core.errors import bad_request
from ..core.ids import new_id
from ..logs import Attached, about
from ..telemetry.trace_context import is_traced, trace_of

_DRAINED_BYTES: Final = 65_536
"""Bytes of an unread body that the server may read and discard to keep the connection open."""
_LENGTH: Final = re.compile(b"[0-9]{1,18}")
_KEY: Final = re.compile("[ -~]{1,255}")
_REQUEST_ID: Final = re.compile("[A-Za-z0-9._:-]{1,128}")


def request_id(scope: Scope) -> str:
    """Return the request's `x-request-id` if there is one that is safe to log, otherwise a new id."""
    match Headers(scope=scope).getlist("x-request-id"):
        case [given] if _REQUEST_ID.fullmatch(given):
            return given
    return new_id("req")


def known(scope: Scope, request_id: str) -> Attached:
    """Join the client's trace within the block, and add the request id to its log lines.

    If the operator instruments the host's HTTP server, the trace is already active.
    """
    headers = Headers(scope=scope)
    joins = "traceparent" in headers and not is_traced()
    return about(trace_of(headers) if joins else None, x_request_id=request_id)


def idempotency_key(headers: Headers) -> str | None:
    """Return the Idempotency-Key of a request; None if it has none.

    Raises:
        ApiError: 400, it is sent twice, or has other characters than it may.
    """
    match headers.getlist("idempotency-key"):
        case []:
            return None
        case [key] if _KEY.fullmatch(key):
            return key
    raise bad_request(
        "The Idempotency-Key header must be sent once, with 1 to 255 printable ASCII characters.",
        code="invalid_idempotency_key",
    )


def body_length(scope: Scope) -> int | None:
    """Return the size of the request's body in bytes, or None if the headers do not declare it."""
    headers = dict(scope["headers"])
    length = headers.get(b"content-length", b"0")
    return int(length) if b"transfer-encoding" not in headers and _LENGTH.fullmatch(length) else None


def has_large_body(scope: Scope) -> bool:
    """Return whether the request's body is, or may be, too large to be read and discarded."""
    length = body_length(scope)
    return length is None or length > _DRAINED_BYTES
