"""The one vocabulary that every inference dialect is translated into.

A dialect adapter yields these and nothing else; the assembler consumes these
and nothing else. They are values: no ids, no indices, no sequence numbers.
They are not frozen only because a frozen dataclass costs three times as much
to make, and one is made for every streamed token.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Literal

FinishReason = Literal["stop", "tool_calls", "length", "content_filter", "cancelled", "steered"]


@dataclass(slots=True)
class Text:
    """A piece of the visible answer.

    `logprobs` holds one `{token, bytes, logprob, top_logprobs}` for each token of the piece,
    as `openai.types.responses.response_output_text.Logprob` has them.
    """

    text: str
    logprobs: list[dict[str, Any]] | None = None


@dataclass(slots=True)
class Refusal:
    """A piece of the model's refusal."""

    text: str


@dataclass(slots=True)
class Reasoning:
    """A piece of the model's reasoning, or of the provider's summary of it.

    A `signature` is the provider's, on all reasoning since the last one, or on the call with this `call_id`.
    """

    text: str
    summary: bool = False
    signature: str | None = None
    call_id: str | None = None


@dataclass(slots=True)
class Annotation:
    """A citation on the text so far: one of `ResponseOutputText.annotations`.

    `length` says on how many characters, at the end of that text; its places are filled in then. None: they are there.
    """

    value: dict[str, Any]
    length: int | None = None


@dataclass(slots=True)
class ToolCall:
    """A fragment of a tool call; the fragments with the same `key` are one call."""

    key: Hashable
    name: str = ""
    call_id: str = ""
    arguments: str = ""


@dataclass(slots=True)
class Usage:
    """The tokens of one model round, or of several together.

    Attributes:
        cached_tokens: of `input_tokens`, those read from a cache.
        cache_write_tokens: of `input_tokens`, those written to a cache.
        reasoning_tokens: of `output_tokens`, those that are reasoning.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        """The tokens of both."""
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )


@dataclass(slots=True)
class Finish:
    """The end of one model round; always its last delta."""

    reason: FinishReason
    usage: Usage = field(default_factory=Usage)


Delta = Text | Refusal | Reasoning | Annotation | ToolCall | Finish
