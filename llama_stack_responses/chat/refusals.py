"""What model servers say when a request is longer than the model's context."""

from __future__ import annotations

import re
from typing import Final

from llama_stack_responses.core.errors import TooLongError

_READ: Final = 10_000
"""Characters of a message that are read: a server may repeat the request in it."""

_TOO_LONG: Final = re.compile(
    r"context[ _](?:length|size|window)|maximum context|prompt is too long|maximum number of tokens", re.IGNORECASE
)

_LENGTH: Final = re.compile(
    r"(?:context (?:length|size|window)[^\d.]{0,30}?|number of tokens allowed \(|tokens > )(\d{1,15})", re.IGNORECASE
)

_TOKENS: Final = re.compile(
    r"(?<!\d)(\d{1,15}) in the messages"
    r"|(?:has|passed|contains|contains at least|resulted in) (\d{1,15}) (?:input )?tokens"
    r"|(?:request|input|too long:|token count) \(?(\d{1,15})",
    re.IGNORECASE,
)


def says_too_long(message: str) -> bool:
    """Whether a server's message is about a request that is too long."""
    return _TOO_LONG.search(message, 0, _READ) is not None


def too_long(message: str) -> TooLongError:
    """The error, with what the message says of the context's length and the request's."""
    length, tokens = _LENGTH.search(message, 0, _READ), _TOKENS.search(message, 0, _READ)
    return TooLongError(
        message,
        length=int(length[1]) if length else None,
        tokens=int(next(filter(None, tokens.groups()))) if tokens else None,
    )
