"""What goes wrong with a model server, as the `openai` package's errors: those that the hosts know."""

from __future__ import annotations

from typing import Any, Final

import httpx2
import openai

from .body import loads
from .connection import Head

_KINDS: Final[dict[int, type[openai.APIStatusError]]] = {
    400: openai.BadRequestError,
    401: openai.AuthenticationError,
    403: openai.PermissionDeniedError,
    404: openai.NotFoundError,
    409: openai.ConflictError,
    422: openai.UnprocessableEntityError,
    429: openai.RateLimitError,
}


def of_status(request: httpx2.Request, head: Head, content: bytes) -> openai.APIStatusError:
    """The error that a response is whose status is none of success."""
    body: Any
    try:
        body = loads(content)
    except ValueError:
        body = content.decode(errors="replace")
    response = httpx2.Response(head.status, headers=_readable(head), content=content, request=request)
    inner = body.get("error", body) if isinstance(body, dict) else body
    message = inner.get("message") if isinstance(inner, dict) else None
    return _of_response(response, str(message or body), inner)


class NoAnswerError(openai.InternalServerError):
    """The server has accepted the request, and what it sends is no answer to it."""


def no_answer(request: httpx2.Request, why: str) -> NoAnswerError:
    """The error that this is."""
    return NoAnswerError(f"Error code: 502 - {why}", response=httpx2.Response(502, request=request), body=why)


def of_answer(request: httpx2.Request, error: Any) -> openai.APIStatusError:
    """An error in the place of an answer, with a status of success; some servers have the real one in it."""
    code, message = (error.get("code"), error.get("message")) if isinstance(error, dict) else (None, error)
    status = code if isinstance(code, int) and 400 <= code < 600 else 502
    return _of_response(httpx2.Response(status, request=request), str(message or error), error)


def _of_response(response: httpx2.Response, message: str, body: Any) -> openai.APIStatusError:
    status = response.status_code
    kind = _KINDS.get(status) or (openai.InternalServerError if status >= 500 else openai.APIStatusError)
    return kind(f"Error code: {status} - {message}", response=response, body=body)


def of_frame(error: Any, request: httpx2.Request) -> openai.APIError:
    """An error that came in the place of a chunk."""
    message = error.get("message") if isinstance(error, dict) else error
    return openai.APIError(str(message or "An error occurred during streaming"), request, body=error)


def of_connection(error: OSError, request: httpx2.Request) -> openai.APIConnectionError:
    """A connection that could not be made, broke, or stayed silent for too long."""
    if isinstance(error, TimeoutError):
        return openai.APITimeoutError(request)
    return openai.APIConnectionError(message=f"Connection error: {error}", request=request)


def why_unlisted(error: Exception) -> str:
    """What the operator is to know of a server that does not list its models."""
    if isinstance(error, openai.AuthenticationError | openai.PermissionDeniedError):
        return f"The model server refuses the key (status {error.status_code}): check 'api_key'."
    if isinstance(error, openai.APIStatusError):
        return f"The model server answers with status {error.status_code}: check 'base_url'."
    if isinstance(error, openai.APIConnectionError):
        return "The model server cannot be reached: check 'base_url', and that the server runs."
    return "The model server's answer is no list of models: check 'base_url'."


def _readable(head: Head) -> list[tuple[bytes, bytes]]:
    """The headers of a body that has been read: how it was sent says nothing about it any more."""
    hidden = (b"content-encoding", b"content-length", b"transfer-encoding")
    return [(name, value) for name, value in head.headers if name.lower() not in hidden]
