"""Pieces of a large chunk, which are built one after another, so that none of them holds the event loop for long."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import batched, islice
from typing import Any, Final

from ..core.errors import ApiError
from ..core.surrogates import without_surrogates
from ..stream.deltas import Delta, ToolCall

PIECE_CHARACTERS: Final = 4_096
"""Maximum characters of one delta's text or arguments."""
FEW: Final = 16
"""Maximum deltas of a chunk that are built at once, and tokens with logprobs of such a delta."""
_MENDED_CHARACTERS: Final = 1_024
"""Maximum characters of a text that does not stream and is not ASCII."""
_TOKENS: Final = 4
"""Tokens with logprobs of one delta of a large chunk: each can have twenty alternatives."""
_MAX_TOKENS: Final = 4
"""Maximum tokens of one character."""
_MAX_ENTRIES: Final = 1_024
"""Maximum number of content parts, thinking blocks or annotations in one chunk."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The logprobs of a choice, as in `openai.types.chat.chat_completion_chunk.ChoiceLogprobs`."""

    content: Sequence[Any]


@dataclass(frozen=True, slots=True)
class ContentPart:
    """A part of a choice's content."""

    content: str
    logprobs: Tokens | None


def few(deltas: Iterator[Delta]) -> list[Delta | Iterator[Delta]]:
    """Return the first deltas and, if these are not all, an iterator of the rest."""
    first = list(islice(deltas, FEW))
    return [*first] if len(first) < FEW else [*first, deltas]


def flattened(deltas: Iterable[Delta | Iterator[Delta]]) -> Iterator[Delta]:
    """Yield the deltas and those of the iterators among them."""
    for each in deltas:
        if isinstance(each, Iterator):
            yield from each
        else:
            yield each


def sliced(text: str) -> Iterator[str]:
    """Yield a text in pieces of `PIECE_CHARACTERS` characters; an empty text has none."""
    return (text[start : start + PIECE_CHARACTERS] for start in range(0, len(text), PIECE_CHARACTERS))


def call_parts(call: ToolCall, arguments: Callable[[str], str]) -> Iterator[Delta]:
    """Yield a fragment of a call as several ones with fewer arguments; `arguments` converts those of each."""
    first, *rest = sliced(call.arguments)
    yield ToolCall(call.key, call.name, call.call_id, arguments(first))
    for piece in rest:
        yield ToolCall(call.key, arguments=arguments(piece))


def content_parts(content: str, tokens: Sequence[Any]) -> Iterator[ContentPart]:
    """Yield a text in parts, each with the tokens that it begins with or consists of, as far as their texts show it."""
    tokens = tokens[: _MAX_TOKENS * len(content) + FEW]
    at, left = 0, -(-len(tokens) // _TOKENS)
    for some in batched(tokens, _TOKENS):
        left -= 1
        size = sum(len(text(token, "token")) for token in some)
        # Each of the other parts needs at least one character, regardless of the server's tokens.
        end = max(at, min(at + size, len(content) - left)) if left else len(content)
        first, *rest = *sliced(content[at:end]), ""
        yield ContentPart(first, Tokens(some))
        yield from (ContentPart(piece, None) for piece in rest if piece)
        at = end
    yield from (ContentPart(piece, None) for piece in sliced(content[at:]))


def entries(values: Any) -> Sequence[Any]:
    """Return the entries of a list in a chunk.

    Raises:
        ApiError: it is not a list, or too long.
    """
    if not isinstance(values, list | tuple):
        raise ApiError(502, "The model server's stream has an invalid chunk.")
    if len(values) > _MAX_ENTRIES:
        raise ApiError(502, f"The model server's stream has a chunk with a list of over {_MAX_ENTRIES} entries.")
    return values


def member(value: Any, name: str) -> Any:
    """Return a member of a JSON object, or an attribute of an object that was built from one; None if it is absent."""
    return value.get(name) if isinstance(value, dict) else getattr(value, name, None)


def text(value: Any, name: str) -> str:
    """Return a member that is a text; empty if it is absent or anything else."""
    content = member(value, name)
    return content if isinstance(content, str) else ""


def mended(value: str) -> str | None:
    """Return a text that does not stream, without halves of surrogate pairs: a seal with one would not open.

    None stands for a long text that is not ASCII. Mending it would take long, and signatures and URLs are ASCII.
    """
    if value.isascii():
        return value
    return without_surrogates(value) if len(value) <= _MENDED_CHARACTERS else None
