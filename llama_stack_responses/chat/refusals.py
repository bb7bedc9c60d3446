"""What model servers say when a request is longer than the model's context."""

from __future__ import annotations

import re
from typing import Final

from llama_stack_responses.core.errors import TooLongError

_TOO_LONG: Final = re.compile(
    r"context[ _](?:length|size|window)|maximum context|prompt is too long|maximum number of tokens", re.IGNORECASE
)

_LENGTH: Final = re.compile(
    r"(?:context (?:length|size|window)[^\d.]{0,30}?|number of tokens allowed \(|tokens > )(\d+)", re.IGNORECASE
)

_TOKENS: Final = re.compile(
    r"(\d+) in the messages"
    r"|(?:has|passed|contains|contains at least|resulted in) (\d+) (?:input )?tokens"
    r"|(?:request|input|too long:|token count) \(?(\d+)",
    re.IGNORECASE,
)


def says_too_long(message: str) -> bool:
    """Whether a server's message is about a request that is too long."""
    return _TOO_LONG.search(message) is not None


def too_long(message: str) -> TooLongError:
    """The error, with what the message says of the context's length and the request's."""
    length, tokens = _LENGTH.search(message), _TOKENS.search(message)
    return TooLongError(
        message,
        length=int(length[1]) if length else None,
        tokens=int(next(filter(None, tokens.groups()))) if tokens else None,
    )
