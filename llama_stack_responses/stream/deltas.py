"""Deltas: the common vocabulary into which every inference dialect is translated.

Dialect adapters yield only deltas, and the assembler consumes only deltas. They are values without ids, indices or
sequence numbers. They are not frozen, because creating a frozen dataclass takes three times as long, and one is created
for every streamed token.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Literal

from .usage import Usage

FinishReason = Literal["stop", "tool_calls", "length", "content_filter", "steered"]


@dataclass(slots=True)
class Text:
    """A piece of the visible answer.

    `logprobs` holds one `{token, bytes, logprob, top_logprobs}` for each token of the piece, as in
    `openai.types.responses.response_output_text.Logprob`.
    """

    text: str
    logprobs: list[dict[str, Any]] | None = None


@dataclass(slots=True)
class Refusal:
    """A piece of the model's refusal."""

    text: str


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a piece of reasoning was in the model server's message, to which it goes back.

    Attributes:
        source: the members of the message that had the text, separated by spaces; None for `reasoning_content`.
        entry: JSON of `[place, value]`: what came with all reasoning since the last entry or signature, without the
            text. A place is the name of a list of the message, of which the value is an entry; or `message` or
            `tool_call`, of which the value has members.
        call: the `key` of the call that the piece belongs to; None if it belongs to the text.
    """

    source: str | None = None
    entry: str | None = None
    call: Hashable | None = None


@dataclass(slots=True)
class Reasoning:
    """A piece of the model's reasoning, or of the provider's summary of it.

    A `signature` of the provider covers all reasoning since the last one, or the call with this `call_id`. The `origin`
    is None for text that came in `reasoning_content`, and for its signatures.
    """

    text: str
    summary: bool = False
    signature: str | None = None
    call_id: str | None = None
    origin: Origin | None = field(default=None, compare=False)


@dataclass(slots=True)
class Annotation:
    """A citation in the text so far: one of `ResponseOutputText.annotations`.

    `length` is the number of cited characters at the end of that text, from which its positions are filled in; None:
    they are already set.
    """

    value: dict[str, Any]
    length: int | None = None


@dataclass(slots=True)
class ToolCall:
    """A fragment of a tool call; fragments with the same `key` belong to the same call."""

    key: Hashable
    name: str = ""
    call_id: str = ""
    arguments: str = ""


@dataclass(slots=True)
class Finish:
    """The end of one model round; always its last delta."""

    reason: FinishReason
    usage: Usage = field(default_factory=Usage)


Delta = Text | Refusal | Reasoning | Annotation | ToolCall | Finish
