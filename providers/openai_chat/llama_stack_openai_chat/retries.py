"""Which failed requests to a model server are retried, and when."""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime
from time import time
from typing import Final

import openai

from .errors import NoAnswerError, message_of, status_in
from .moderation import is_of_content

_RETRY_AFTER_CHARACTERS: Final = 64
"""Maximum length of a `retry-after` header, in characters."""

_RETRIED: Final = frozenset({408, 409, 429, 500, 502, 503, 504})
_OF_CLIENT: Final = frozenset({400, 413, 415, 422})
"""Statuses of errors that concern the request."""
_REFUSALS: Final = frozenset({"badrequesterror", "exceed_context_size_error", "invalid_request_error"})
"""Types and codes of such errors, in lower case. Some servers have them with a status of the server (llama.cpp)."""
_OF_REQUEST: Final = re.compile(
    r"unsupported|not (?:\w+ )?support|unrecogni[sz]ed|extra_forbidden|extra inputs"
    r"|unexpected (?:keyword|reasoning|message)"
    r"|unknown (?:parameter|field|argument|variant|name)|validation error|must alternate|jinja|chat template"
    r"|has no attribute '(?:items|get|keys)'|item pairs from a mapping|failed to parse (?:grammar|tool call)"
    r"|error parsing tool call|failed to (?:parse input at pos|generate a tool call)|does not match the expected"
    # A place in a chat template (llama.cpp)
    r"|\bat row \d{1,9}, column \d{1,9}\b",
    re.IGNORECASE,
)
"""Words of errors that concern the request, for servers that give each error the status 500."""
_OF_MACHINE: Final = re.compile(
    r"\b(?:cuda|rocm|hip|nccl|gpus?|devices?|dtypes?|kernels?|compute capability|out of memory)\b", re.IGNORECASE
)
"""Words about the server's machine: what it does not support there is no fault of the request."""
_QUOTING: Final = frozenset({502, 503})
_REFUSED_BEHIND: Final = re.compile(
    r"\b4(?:00|22)\b|invalid_request|extra_forbidden|unsupported_(?:parameter|value)|bad request", re.IGNORECASE
)
"""Words of a refusal that a gateway quotes."""
_READ_CHARACTERS: Final = 10_000
_FIRST_PAUSE_SECONDS: Final = 0.5
_MAX_PAUSE_SECONDS: Final = 60.0
"""In seconds. If a server asks for a longer pause, the request is not retried."""


def seconds_before_retry(error: openai.APIError, attempt: int) -> float | None:
    """Return the seconds before a retry; None for no retry.

    Args:
        attempt: retries of the request so far.
    """
    pause: float = _FIRST_PAUSE_SECONDS * 2**attempt
    if isinstance(error, openai.APIStatusError):
        if error.status_code not in _RETRIED or isinstance(error, NoAnswerError) or is_of_request(error):
            return None
        headers = error.response.headers
        pause = (
            _milliseconds(headers.get("retry-after-ms", "")) or _retry_after(headers.get("retry-after", "")) or pause
        )
    return pause if pause <= _MAX_PAUSE_SECONDS else None


def is_of_request(error: openai.APIError) -> bool:
    """Return whether an error concerns the request, so that the same request would fail again.

    An error event that names no status is read like an error with the status 500.
    """
    status = error.status_code if isinstance(error, openai.APIStatusError) else status_in(error.body) or 500
    if status in _OF_CLIENT or not _REFUSALS.isdisjoint((str(error.type).lower(), str(error.code).lower())):
        return True
    if is_of_content(error):
        return True
    return says_of_request(status, message_of(error))


def says_of_request(status: int, text: str) -> bool:
    """Return whether the text of an error concerns the request although its status is one of the server.

    A gateway that says 502 or 503 may quote the refusal of the server behind it.
    """
    if status not in _QUOTING and status != 500:
        return False
    if status in _QUOTING and _REFUSED_BEHIND.search(text, 0, _READ_CHARACTERS) is None:
        return False
    if _OF_MACHINE.search(text, 0, _READ_CHARACTERS):
        return False
    return _OF_REQUEST.search(text, 0, _READ_CHARACTERS) is not None


def _milliseconds(value: str) -> float | None:
    """Parse a `retry-after-ms` header as seconds."""
    try:
        return max(0.0, float(value[:_RETRY_AFTER_CHARACTERS]) / 1000)
    except ValueError:
        return None


def _retry_after(value: str) -> float | None:
    """Parse a `retry-after` header, a number of seconds or a date."""
    value = value[:_RETRY_AFTER_CHARACTERS]
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time())
    except (ValueError, OverflowError):
        return None
