"""The usage of tokens: of one model round, of several together, and in a response."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(slots=True)
class Usage:
    """The tokens of one model round, or of several together.

    Attributes:
        cached_tokens: the part of `input_tokens` that was read from a cache.
        cache_write_tokens: the part of `input_tokens` that was written to a cache.
        reasoning_tokens: the part of `output_tokens` that is reasoning.
        is_partial: whether tokens are missing that are not known.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    is_partial: bool = field(default=False, kw_only=True)

    def __add__(self, other: Usage) -> Usage:
        """Return the sum."""
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            is_partial=self.is_partial or other.is_partial,
        )


UNKNOWN: Final = Usage(is_partial=True)
"""The usage of a round of which the tokens are not known."""


def known(used: Usage) -> dict[str, Any] | None:
    """Return a response's `usage`, in tokens; None if a part of it is not known, or if nothing was used so far."""
    return None if used.is_partial or used == Usage() else usage_of(used)


def usage_of(used: Usage) -> dict[str, Any]:
    """Return a response's `usage`, in tokens."""
    return {
        "input_tokens": used.input_tokens,
        "input_tokens_details": {"cached_tokens": used.cached_tokens, "cache_write_tokens": used.cache_write_tokens},
        "output_tokens": used.output_tokens,
        "output_tokens_details": {"reasoning_tokens": used.reasoning_tokens},
        "total_tokens": used.input_tokens + used.output_tokens,
    }
