"""The usage of tokens that a model server reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from ..stream.usage import UNKNOWN, Usage
from .pieces import member

_MAX_TOKENS: Final = 2**53
"""Maximum of a reported number of tokens: the largest integer that every JSON decoder reads."""


_INPUT: Final = ("prompt_tokens", "input_tokens")
_OUTPUT: Final = ("completion_tokens", "output_tokens")
_TOTAL: Final = ("total_tokens",)
_CACHED: Final = (
    "cached_tokens",  # Kimi
    "prompt_cache_hit_tokens",  # DeepSeek
    "cache_read_input_tokens",  # Anthropic, Bedrock, LiteLLM
)
_WRITTEN: Final = ("cache_creation_input_tokens",)
"""Members of a usage that have a number of tokens, in the order in which they are asked."""
_DIGITS: Final = 16
_NOTHING: Final = MappingProxyType[str, Any]({})


def usage_of_chunk(chunk: Any) -> Any:
    """Return the usage of a chunk whose member `usage` is empty; None if it has none.

    Kimi has it in the choice, Groq in `x_groq`.
    """
    choices = member(chunk, "choices")
    return (choices and member(choices[0], "usage")) or member(member(chunk, "x_groq"), "usage") or None


def is_empty(usage: Any) -> bool:
    """Return whether a usage has no tokens: some servers send zeros after the real one."""
    counts = _members(usage)
    return not (_tokens(counts, *_INPUT) or _tokens(counts, *_OUTPUT))


def reported_usage(usage: Any, timings: Any) -> Usage:
    """Return the usage of a round; `UNKNOWN` if the tokens that it read, or wrote, are not known.

    Args:
        usage: the `usage` of its last chunk that has one; None if none has.
        timings: the `timings` of that chunk. llama.cpp has the cached tokens only there (source: its `tools/server`).
    """
    counts = _members(usage)
    of_prompt = _members(counts.get("prompt_tokens_details"))
    of_completion = _members(counts.get("completion_tokens_details"))
    read, written, total = (_known(counts, names) for names in (_INPUT, _OUTPUT, _TOTAL))
    read = read or None  # No prompt is empty.
    if total and (read is None) != (written is None) and total >= (read or written or 0):
        read, written = (total - (written or 0) or None, written) if read is None else (read, total - read)
    if read is None or written is None:
        return UNKNOWN
    cached = _tokens(of_prompt, "cached_tokens") or _tokens(counts, *_CACHED) or _tokens(_members(timings), "cache_n")
    return Usage(
        input_tokens=read,
        output_tokens=written,
        cached_tokens=min(read, cached),
        cache_write_tokens=_tokens(of_prompt, "cache_write_tokens") or _tokens(counts, *_WRITTEN),
        reasoning_tokens=_tokens(of_completion, "reasoning_tokens"),
    )


def _members(value: Any) -> Mapping[str, Any]:
    """Return the members of a JSON object, or those that an object was built from.

    Such an object has a 0 for a number that the server did not send, and takes long to say that it has no attribute.
    """
    if isinstance(value, dict):
        return value
    fields: Mapping[str, Any] = getattr(value, "__dict__", _NOTHING)
    sent = getattr(value, "__pydantic_fields_set__", fields)
    extra = getattr(value, "__pydantic_extra__", None) or {}
    return {name: each for name, each in fields.items() if name in sent} | extra


def _tokens(counts: Mapping[str, Any], *names: str) -> int:
    """Return the first reported number of these; 0 if there is none."""
    for name in names:
        if (value := counts.get(name)) is not None and (number := _number(value)):
            return number
    return 0


def _known(counts: Mapping[str, Any], names: Iterable[str]) -> int | None:
    """Return the first reported number of these, as `_tokens`; None if there is none."""
    values = [value for name in names if _is_number(value := counts.get(name))]
    return next(filter(None, map(_number, values)), 0 if values else None)


def _is_number(value: Any) -> bool:
    if isinstance(value, str):
        return value.isascii() and value.isdigit()
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _number(value: Any) -> int:
    """Return a number of tokens, which some servers send as a float or as text; 0 if it is none."""
    if isinstance(value, str):
        value = int(value) if len(value) <= _DIGITS and value.isascii() and value.isdigit() else 0
    return int(min(value, _MAX_TOKENS)) if isinstance(value, int | float) and value > 0 else 0
