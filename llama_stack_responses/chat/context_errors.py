"""Recognize error messages of model servers about requests that exceed the model's context."""

from __future__ import annotations

import re
from typing import Final

from ..core.errors import TooLongError

_READ_CHARACTERS: Final = 10_000
"""Maximum characters of a message that are searched: a server may repeat the request in it."""

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
    """Return whether a server's message reports a request that is too long."""
    return _TOO_LONG.search(message, 0, _READ_CHARACTERS) is not None


def too_long(message: str) -> TooLongError:
    """Return the error, with the lengths of the context and the request as far as the message gives them."""
    length, tokens = _LENGTH.search(message, 0, _READ_CHARACTERS), _TOKENS.search(message, 0, _READ_CHARACTERS)
    return TooLongError(
        message,
        length=int(length[1]) if length else None,
        tokens=int(next(filter(None, tokens.groups()))) if tokens else None,
    )
