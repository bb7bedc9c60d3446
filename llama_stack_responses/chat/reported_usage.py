"""The usage of tokens that a model server reports."""

from __future__ import annotations

from typing import Any, Final

from ..core.stream.usage import Usage
from .pieces import member

_MAX_TOKENS: Final = 2**53
"""Maximum of a reported number of tokens: the largest integer that every JSON decoder reads."""


def reported_usage(usage: Any, timings: Any) -> Usage:
    """Return the usage of a round.

    Args:
        usage: the `usage` of its last chunk that has one; None if none has.
        timings: the `timings` of that chunk. llama.cpp has the cached tokens only there (source: its `tools/server`).
    """
    of_prompt, of_completion = member(usage, "prompt_tokens_details"), member(usage, "completion_tokens_details")
    read = _tokens(usage, "prompt_tokens")
    return Usage(
        input_tokens=read,
        output_tokens=_tokens(usage, "completion_tokens"),
        cached_tokens=_tokens(of_prompt, "cached_tokens") or min(read, _tokens(timings, "cache_n")),
        cache_write_tokens=_tokens(of_prompt, "cache_write_tokens"),
        reasoning_tokens=_tokens(of_completion, "reasoning_tokens"),
    )


def _tokens(usage: Any, name: str) -> int:
    """Return a reported number; 0 if it is none."""
    value = member(usage, name)
    return min(value, _MAX_TOKENS) if isinstance(value, int) and value > 0 else 0
