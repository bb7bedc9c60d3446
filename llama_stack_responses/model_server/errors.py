"""What the failures of model servers mean, as errors of the API.

A refusal of a request becomes a `RefusedError` with what the server said, by which the request can be changed.
"""

from __future__ import annotations

import math
import re
import time
from email.utils import parsedate_to_datetime
from typing import Final

import openai

from llama_stack_openai_chat.errors import message_of, status_in, whole
from llama_stack_openai_chat.moderation import is_of_content
from llama_stack_openai_chat.retries import is_of_request, says_of_request

from ..chat.adaptation.refusal import Refusal, RefusedError, places_of, plain
from ..chat.context_errors import says_rate, says_too_long, too_long
from ..chat.malformed_calls import malformed_call
from ..core.errors import ApiError, ConnectionFailedError, TooLongError, Upstream, refused_credentials
from ..logs import get_logger

logger = get_logger(__name__)

_INVALID_ANSWER: Final = "invalid_answer"
"""The code with which `remote::openai-chat` reports an answer of another kind than it asked for."""

_RATE_LIMIT: Final = "rate_limit_exceeded"
"""The code of a limit on rates; Groq has it with status 413 too, for a request over a limit on tokens per minute."""

_NO_QUOTA: Final = "insufficient_quota"
"""The code of an account without credit."""

_OTHER_REASONS: Final = frozenset({401, 403, 404, 408, 429})
"""Statuses that are never about the length of a request."""

_NOT_OF_REQUEST: Final = frozenset({401, 402, 403, 408, 429, 502, 503, 504})
"""Statuses that no change of a request helps against, unless a gateway quotes a refusal with 502 or 503."""

_AWAY: Final = re.compile(
    r"\bdegraded function\b|\bmodel unloaded\b|\bmodel has crashed\b|\bstream (?:disconnected|closed) before\b",
    re.IGNORECASE,
)
"""Words that say that the server is not there now, although its status blames the request: NVIDIA NIM (freellmapi issue
522), LM Studio, gateways (litellm issue 41777)."""

_SHOWN_CHARACTERS: Final = 1_000
"""Characters of the text of a failure that are passed on."""

_RETRY_AFTER_CHARACTERS: Final = 64
"""Characters of a retry-after header that are read."""

_NOT_THERE: Final = (
    "The inference provider does not know this model, or its URL in the stack's configuration is wrong: "
    "its answer is '{}'."
)


def to_api_error(error: Exception) -> ApiError:
    """Return the API error for the error of a provider or a model server: never a bare 500, never a secret of it."""
    match error := whole(error):
        case ApiError():
            return error
        case openai.APIError() if is_of_content(error):
            return ApiError(400, _message(error), code=_code(error))
        case openai.APIError() if malformed := malformed_call(_message(error), error.code, error.body):
            malformed.refusal = _of_request(error) if malformed.by_words else None
            return malformed
        case openai.APITimeoutError() | TimeoutError():
            message = "The inference provider did not answer in time. Try again, or raise its timeout."
            return ApiError(504, message, upstream=Upstream("timeout"))
        case openai.APIConnectionError() | ConnectionError():
            return _unreachable(error)
        case openai.APIError():
            return _of_request(error)
        case ValueError():
            return ApiError(502, "The inference provider sent an event that is not JSON, or no chunk of an answer.")
    return _of_transport(error)


def _of_request(error: openai.APIError) -> ApiError:
    """Return the error of a request that a model server has answered with an error."""
    if isinstance(error, openai.APIStatusError):
        return _refused(_from_status(error), error, error.status_code)
    return _refused(_from_event(error), error, status_in(error.body) or 400)


def _refused(result: ApiError, error: openai.APIError, status: int) -> ApiError:
    """Return the error with what the model server said, if a change of the request may help."""
    if isinstance(result, TooLongError) or error.code == _INVALID_ANSWER:
        return result
    if isinstance(error, openai.APIStatusError) and result.status >= 500 > status:
        return result  # The server is away.
    if status in _NOT_OF_REQUEST and not says_of_request(status, message_of(error)):
        return result
    code = next((str(each) for each in (error.code, error.type) if each), "")
    places = places_of(error.body, message_of(error))
    return RefusedError(result, Refusal(status, _shown(_message(error)), code, places, is_of_request(error)))


def _from_status(error: openai.APIStatusError) -> ApiError:
    message = _message(error)
    if error.status_code not in _OTHER_REASONS and error.code != _INVALID_ANSWER and _is_too_long(error):
        return too_long(message)
    match error.status_code:
        case 401 | 403:
            return refused_credentials(error.status_code)
        case 404:
            return no_model(message if "model" in message.lower() else _NOT_THERE.format(message))
        case 408:
            return ApiError(504, f"The inference provider timed out: {message}", upstream=Upstream("timeout", 408))
        case status if status in (402, 429) or error.code == _RATE_LIMIT:
            usual = _NO_QUOTA if status == 402 else _RATE_LIMIT
            code, failure = _code(error) or usual, Upstream("rate_limit", status)
            return ApiError(429, message, code=code, retry_after=_retry_after(error), upstream=failure)
        case status if status >= 500 and error.code == _INVALID_ANSWER:
            return ApiError(502, message, upstream=Upstream("invalid_answer"))
        case status if status >= 500 or _is_away(message, error):
            return _failed(message, error)
    return ApiError(400, message, code=_code(error))


def _is_away(message: str, error: openai.APIStatusError) -> bool:
    return error.code == "request_timeout" or _AWAY.search(message[:_SHOWN_CHARACTERS]) is not None


def _failed(message: str, error: openai.APIStatusError) -> ApiError:
    status = error.status_code
    shown = f"The inference provider failed ({status}): {_shown(message)}"
    return ApiError(502, shown, retry_after=_retry_after(error), upstream=Upstream("server_error", status))


def _from_event(error: openai.APIError) -> ApiError:
    """Return the API error for an error event in the provider's stream."""
    message = _message(error)
    status = status_in(error.body)
    if error.code == _NO_QUOTA or status == 402:
        return ApiError(429, message, code=_NO_QUOTA, upstream=Upstream("rate_limit", 402))
    if error.code == _RATE_LIMIT or str(error.type).startswith("rate_limit") or status == 429:
        return ApiError(429, message, code=_RATE_LIMIT, upstream=Upstream("rate_limit", 429))
    if _is_too_long(error):
        return too_long(message)
    if status == 404:
        return no_model(message if "model" in message.lower() else _NOT_THERE.format(message))
    if status in (401, 403):
        return refused_credentials(status)
    return ApiError(
        502,
        f"The inference provider failed in the middle of its answer: {_shown(message)}",
        upstream=Upstream("server_error", status),
    )


def _of_transport(error: Exception) -> ApiError:
    """Return the API error for an error of a provider's HTTP library, identified by the names of its base classes."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if "TimeoutException" in names:
        return ApiError(504, "The inference provider did not answer in time.", upstream=Upstream("timeout"))
    if names & {"TransportError", "HTTPError", "ClientError"}:
        return _unreachable(error)
    logger.error("unexpected error from the inference provider", exc_info=error)
    return ApiError(502, f"The inference provider failed ({type(error).__name__}). The server's log has the details.")


def _unreachable(error: Exception) -> ConnectionFailedError:
    cause = error.__cause__ or error
    return ConnectionFailedError(
        f"The connection to the inference provider failed ({type(cause).__name__}). "
        "Check that the model server is running and that the stack's configuration has its URL.",
    )


def no_model(message: str) -> ApiError:
    """Return the error for a model that does not exist."""
    return ApiError(404, message, param="model", code="model_not_found")


def _is_too_long(error: openai.APIError) -> bool:
    """Return whether an error is about the length of the request; any 413 is, unless it is about a rate."""
    message = _message(error)
    if isinstance(error, openai.APIStatusError) and error.status_code == 413:
        return error.code != _RATE_LIMIT and not says_rate(message)
    return says_too_long(message, error.code, error.type)


def _message(error: openai.APIError) -> str:
    return plain(message_of(error))


def _shown(message: str) -> str:
    """Return what a client reads of the text of a failure."""
    return message if len(message) <= _SHOWN_CHARACTERS else f"{message[:_SHOWN_CHARACTERS]}..."


def _code(error: openai.APIError) -> str | None:
    """Return the provider's code if it is a word, like OpenAI's; many servers repeat the status there."""
    return error.code if isinstance(error.code, str) and re.fullmatch("[a-z_]+", error.code) else None


def _retry_after(error: openai.APIStatusError) -> float | None:
    """Return the retry-after header in seconds. It may hold a date instead (RFC 9110, section 10.2.3)."""
    milliseconds = error.response.headers.get("retry-after-ms", "")[:_RETRY_AFTER_CHARACTERS]
    if re.fullmatch(r"[0-9]{1,12}(\.[0-9]+)?", milliseconds):
        return float(milliseconds) / 1000
    value = error.response.headers.get("retry-after", "")[:_RETRY_AFTER_CHARACTERS]
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]+)?", value):
        return float(value)
    try:
        moment = parsedate_to_datetime(value).timestamp()
    except (ValueError, OverflowError):
        return None
    return float(max(0, math.ceil(moment - time.time())))
