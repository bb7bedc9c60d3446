"""Check the output of one response, while it streams or when it is complete."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Final

from ...concurrency.offloading import in_thread
from ...core.json_values import is_large
from ...core.moderation_results import NO_OUTPUT
from ...core.types import Json
from ...stream.deltas import Delta, Finish, Reasoning, Refusal, Text, ToolCall
from ...stream.fragments import LARGE_CHARACTERS
from ...stream.usage import UNKNOWN
from .checks import Checks
from .policy import Policy
from .results import merged, refusal
from .texts import output_texts

_BEFORE_CHARACTERS: Final = 1_000
"""Characters of text before a piece with which it is checked, since they may determine its meaning."""


class ModerationFilter:
    """Moderates one response.

    In `block` mode, it is a filter for deltas: they are held until there are enough characters for a check, or the
    round ends, and pass once they are checked. Flagged deltas never pass; a refusal and the end of the round replace
    them.

    Args:
        checks: runs the checks.
        policy: the texts to check.
        moderation: the response's `moderation` so far.
        output: the response's output so far.
    """

    def __init__(self, checks: Checks, policy: Policy, moderation: Json, output: list[Json]) -> None:
        self._checks = checks
        self._policy = policy
        self._input = moderation["input"]
        self._output_before = list(output)
        self._refuses_input = moderation["output"] == NO_OUTPUT
        self._results: list[Json] = []
        self._before = ""
        self._buffered: list[Delta] = []
        self._texts: list[str] = []
        self._length = 0
        self._struck = False

    @property
    def blocks(self) -> bool:
        """Whether deltas have to pass the filter."""
        return self._policy.output == "block"

    @property
    def input_refusal(self) -> str | None:
        """The text that the client reads in place of an answer to a refused input."""
        return refusal("input", self._input) if self._refuses_input else None

    async def feed(self, delta: Delta) -> AsyncGenerator[Delta]:
        """Yield the deltas that may be shown now; none after output was flagged."""
        if self._struck:
            return
        is_end = isinstance(delta, Finish)
        if not is_end and not self._buffered and not _says(delta):
            yield delta
            return
        self._hold(delta)
        if not is_end and self._length < self._checks.held_characters:
            return
        buffered, self._buffered = self._buffered, []
        if reason := await self._check_buffered():
            yield Refusal(refusal("output", reason))
            yield Finish("content_filter", delta.usage if isinstance(delta, Finish) else UNKNOWN)
            return
        if is_end:
            self._before = ""
        for each in buffered:
            yield each

    async def moderation(self, output: list[Json]) -> Json:
        """Return the response's `moderation` at its end.

        Args:
            output: the whole output.

        Raises:
            ApiError: output could not be checked in `block` mode.
        """
        if self._refuses_input:
            return {"input": self._input, "output": NO_OUTPUT}
        if not self.blocks:
            text = await _joined_texts(output)
            return {"input": self._input, "output": await self._checks.scored(self._policy, text, "output")}
        earlier = await _joined_texts(self._output_before)
        if earlier or not self._results:
            # Another server checked and passed the beginning; its scores were not kept.
            self._results.append(await self._checks.check(self._policy, earlier, "output"))
        return {"input": self._input, "output": merged(self._results)}

    def _hold(self, delta: Delta) -> None:
        text = _text(delta)
        if text and self._buffered and type(self._buffered[-1]) is not type(delta):
            text = f"\n{text}"
        self._buffered.append(delta)
        if text:
            self._texts.append(text)
            self._length += len(text)

    async def _check_buffered(self) -> Json | None:
        """Check the held output; return the result if it is flagged."""
        piece, self._texts, self._length = "".join(self._texts), [], 0
        if not piece.strip():
            return None
        result = await self._checks.check(self._policy, self._before + piece, "output")
        self._results.append(result)
        self._before = (self._before + piece)[-_BEFORE_CHARACTERS:]
        self._struck = result["flagged"]
        return result if self._struck else None


async def _joined_texts(output: Sequence[Json]) -> str:
    """Return the texts of an output; a large one is joined in a thread."""

    def joined() -> str:
        return "\n\n".join(output_texts(output))

    return await in_thread(joined) if is_large(output, LARGE_CHARACTERS) else joined()


def _says(delta: Delta) -> bool:
    """Return whether the delta is, or begins, content to check."""
    return isinstance(delta, ToolCall) or bool(_text(delta))


def _text(delta: Delta) -> str:
    match delta:
        case Text() | Reasoning() | Refusal():
            return delta.text
        case ToolCall():
            return delta.arguments
        case _:
            return ""
