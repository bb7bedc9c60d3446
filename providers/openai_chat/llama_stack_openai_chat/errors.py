"""Conversion of a model server's failures to errors of the `openai` package, which the hosts handle."""

from __future__ import annotations

from typing import Any, Final

import httpx2
import openai

from .connection import Head
from .json_encoding import loads

_KINDS: Final[dict[int, type[openai.APIStatusError]]] = {
    400: openai.BadRequestError,
    401: openai.AuthenticationError,
    403: openai.PermissionDeniedError,
    404: openai.NotFoundError,
    409: openai.ConflictError,
    422: openai.UnprocessableEntityError,
    429: openai.RateLimitError,
}


def from_status(request: httpx2.Request, head: Head, content: bytes) -> openai.APIStatusError:
    """Convert a response with an error status."""
    body: Any
    try:
        body = loads(content)
    except ValueError:
        body = content.decode(errors="replace")
    response = httpx2.Response(head.status, headers=_readable(head), content=content, request=request)
    inner = body.get("error", body) if isinstance(body, dict) else body
    message = inner.get("message") if isinstance(inner, dict) else None
    return _from_response(response, str(message or body), inner)


_INVALID_ANSWER: Final = "invalid_answer"
"""The code of errors whose status is not the server's."""

_KIND_CHARACTERS: Final = 100
"""Characters of a content type that an error quotes."""


class NoAnswerError(openai.InternalServerError):
    """The server has accepted the request, but its response is not a valid answer."""


def no_answer(request: httpx2.Request, why: str) -> NoAnswerError:
    """Create the error for an invalid answer; `why` is a sentence."""
    body = {"message": why, "code": _INVALID_ANSWER}
    return NoAnswerError(why, response=httpx2.Response(502, request=request), body=body)


def unexpected(request: httpx2.Request, head: Head, expected: str) -> NoAnswerError:
    """Create the error for an answer of another kind than `expected`."""
    kind = head.header(b"content-type").decode(errors="replace")[:_KIND_CHARACTERS]
    came = f"content type '{kind}'" if kind else "no content type"
    return no_answer(
        request,
        f"The model server answered with status {head.status} and {came} instead of {expected}: check 'base_url'.",
    )


def from_answer(request: httpx2.Request, error: Any) -> openai.APIStatusError:
    """Convert an error in a response with a success status; some servers give the real status inside it."""
    code, message = (error.get("code"), error.get("message")) if isinstance(error, dict) else (None, error)
    status = code if isinstance(code, int) and 400 <= code < 600 else 502
    return _from_response(httpx2.Response(status, request=request), str(message or error), error)


def _from_response(response: httpx2.Response, message: str, body: Any) -> openai.APIStatusError:
    status = response.status_code
    kind = _KINDS.get(status) or (openai.InternalServerError if status >= 500 else openai.APIStatusError)
    return kind(f"Error code: {status} - {message}", response=response, body=body)


def from_event(error: Any, request: httpx2.Request) -> openai.APIError:
    """Convert an error sent instead of a chunk."""
    message = error.get("message") if isinstance(error, dict) else error
    return openai.APIError(str(message or "An error occurred during streaming"), request, body=error)


def from_connection(error: OSError, request: httpx2.Request) -> openai.APIConnectionError:
    """Convert a failed connection or a timeout."""
    if isinstance(error, TimeoutError):
        return openai.APITimeoutError(request)
    return openai.APIConnectionError(message=f"Connection error: {error}", request=request)


def why_unlisted(error: Exception) -> str:
    """Return a message for the operator about a server that does not list its models."""
    if isinstance(error, openai.AuthenticationError | openai.PermissionDeniedError):
        return f"The model server refuses the key (status {error.status_code}): check 'api_key'."
    if isinstance(error, NoAnswerError):
        return error.message
    if isinstance(error, openai.APIStatusError):
        return f"The model server answers with status {error.status_code}: check 'base_url'."
    if isinstance(error, openai.APIConnectionError):
        return "The model server cannot be reached: check 'base_url', and that the server runs."
    return "The model server's answer is not a list of models: check 'base_url'."


def _readable(head: Head) -> list[tuple[bytes, bytes]]:
    """Return the headers without those about the transfer of the body, which has been decoded."""
    hidden = (b"content-encoding", b"content-length", b"transfer-encoding")
    return [(name, value) for name, value in head.headers if name.lower() not in hidden]
