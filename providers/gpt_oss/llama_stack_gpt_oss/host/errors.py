"""Conversion of errors to those of the `openai` package, which the hosts handle for other providers too."""

import httpx2
import openai

from ..engine.errors import EngineError, QueueFullError, RequestError
from ..errors import InvalidRequest

URL = "http://gpt-oss.invalid/v1"  # the error classes require a request, although none was made over HTTP
RETRY_AFTER = "2"  # seconds


def status_error(error: InvalidRequest | EngineError) -> openai.APIStatusError:
    """Convert an error to one with the matching HTTP status.

    In the middle of a stream too: there, the hosts report an error without a status as an unexpected one.
    """
    match error:
        case InvalidRequest():
            kind = "invalid_request_error"
            body = {"message": error.message, "type": kind, "param": error.param, "code": error.code}
            return openai.BadRequestError(error.message, response=_response(400), body=body)
        case RequestError():
            body = {"message": str(error), "type": "invalid_request_error", "param": None, "code": None}
            return openai.BadRequestError(str(error), response=_response(400), body=body)
        case QueueFullError():
            body = {"message": str(error), "type": "rate_limit_error", "param": None, "code": "rate_limit_exceeded"}
            return openai.RateLimitError(str(error), response=_response(429), body=body)
    body = {"message": str(error), "type": "server_error", "param": None, "code": None}
    return openai.InternalServerError(str(error), response=_response(503), body=body)


def _response(status: int) -> httpx2.Response:
    headers = {"retry-after": RETRY_AFTER} if status in (429, 503) else {}
    return httpx2.Response(status, headers=headers, request=httpx2.Request("POST", URL))
