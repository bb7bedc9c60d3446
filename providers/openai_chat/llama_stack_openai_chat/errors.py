"""What goes wrong with a model server, as the `openai` package's errors: those that the hosts know."""

from __future__ import annotations

from typing import Any, Final

import httpx2
import openai

from .body import loads

_KINDS: Final[dict[int, type[openai.APIStatusError]]] = {
    400: openai.BadRequestError,
    401: openai.AuthenticationError,
    403: openai.PermissionDeniedError,
    404: openai.NotFoundError,
    409: openai.ConflictError,
    422: openai.UnprocessableEntityError,
    429: openai.RateLimitError,
}


def of_status(response: httpx2.Response) -> openai.APIStatusError:
    """The error that a read response with a status of 400 or more is."""
    body: Any
    try:
        body = loads(response.content)
    except ValueError:
        body = response.text
    status = response.status_code
    kind = _KINDS.get(status) or (openai.InternalServerError if status >= 500 else openai.APIStatusError)
    inner = body.get("error", body) if isinstance(body, dict) else body
    return kind(f"Error code: {status} - {body}", response=response, body=inner)


def of_frame(error: Any, request: httpx2.Request) -> openai.APIError:
    """An error that came in the place of a chunk."""
    message = error.get("message") if isinstance(error, dict) else error
    return openai.APIError(str(message or "An error occurred during streaming"), request, body=error)


def of_transport(error: httpx2.TransportError, request: httpx2.Request) -> openai.APIConnectionError:
    """A connection that could not be made, broke, or stayed silent for too long."""
    if isinstance(error, httpx2.TimeoutException):
        return openai.APITimeoutError(request)
    return openai.APIConnectionError(message=f"Connection error: {error}", request=request)
