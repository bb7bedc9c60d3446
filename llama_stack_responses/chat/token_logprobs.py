"""The logprobs of tokens, as the Responses API has them."""

from __future__ import annotations

from typing import Any, Final

from ..core.surrogates import without_surrogates
from .pieces import member, text

ENTRY_CHARACTERS: Final = 64
"""Characters counted for an annotation, a token's logprob or an alternative, in addition to its text."""
_MAX_LOGPROB: Final = 9999.0
_MAX_TOP_LOGPROBS: Final = 20
"""Maximum alternatives to a token: clients cannot request more."""
_TOKEN_CHARACTERS: Final = 256
"""Maximum characters, and bytes, of a token with a logprob; no tokenizer has longer ones."""


def logprob_weight(value: dict[str, Any]) -> int:
    """Return the approximate size of a token's logprobs as JSON, in characters."""
    tops = value["top_logprobs"]
    return ENTRY_CHARACTERS * (1 + len(tops)) + len(value["bytes"]) + sum(len(top["bytes"]) for top in tops)


def logprobs_of(choice: Any) -> list[dict[str, Any]]:
    """Return the logprobs of all tokens of a choice that has some."""
    return [logprob(entry) for entry in choice.logprobs.content or ()]


def is_half(value: dict[str, Any]) -> bool:
    """Return whether the token is part of a character; it is then sent with the token that completes the character."""
    try:
        bytes(value["bytes"]).decode()
    except UnicodeDecodeError:
        return True
    return False


def logprob(entry: Any) -> dict[str, Any]:
    """Return the logprob of a token with its alternatives."""
    tops = (member(entry, "top_logprobs") or ())[:_MAX_TOP_LOGPROBS]
    return _token(entry) | {"top_logprobs": [_token(top) for top in tops]}


def _token(entry: Any) -> dict[str, Any]:
    token, value, encoded = text(entry, "token"), member(entry, "logprob"), member(entry, "bytes")
    token = token[:_TOKEN_CHARACTERS]
    raw = bytes(encoded[:_TOKEN_CHARACTERS]) if isinstance(encoded, list) else token.encode(errors="replace")
    return {
        "token": without_surrogates(token),
        "bytes": list(raw),
        # JSON has no -inf and NaN, which some servers send for an impossible token; others send null.
        "logprob": value if isinstance(value, int | float) and abs(value) <= _MAX_LOGPROB else -_MAX_LOGPROB,
    }
