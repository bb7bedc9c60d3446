"""How an answer ends, from its chunks: its finish reason, its error, its usage."""

from __future__ import annotations

from typing import Any, Final

from ..core.errors import ApiError, Upstream, refused_credentials
from ..logs import get_logger
from ..stream.deltas import FinishReason
from ..stream.usage import Usage
from .answer_so_far import AnswerSoFar
from .finish_reasons import guessed_meaning, meaning_of, reason_of, worse
from .malformed_calls import failed_call
from .pieces import member, text
from .reported_usage import is_empty, reported_usage, usage_of_chunk

logger = get_logger(__name__)

_ERROR_CHARACTERS: Final = 1_000
"""Characters of the words of an error that are passed on."""


class OutputLimitReached(Exception):  # noqa: N818 (a normal end of a round)
    """The round has reached its limit on output, and ends like one that reached its limit on tokens."""


class AnswerEnd:
    """How one answer ends.

    Attributes:
        reason: the worst finish reason so far; None if the server has not said that the answer is over.
        service_tier: the provider's name for the tier that served the round, if it reported one.
    """

    __slots__ = ("_answer", "_error", "_timings", "_usage", "reason", "service_tier")

    def __init__(self, answer: AnswerSoFar) -> None:
        self.reason: str | None = None
        self.service_tier: str | None = None
        self._answer = answer
        self._error: Any = None  # of the choice
        self._usage: Any = None
        self._timings: Any = None

    @property
    def usage(self) -> Usage:
        """The usage that counts of those that were reported."""
        return reported_usage(self._usage, self._timings)

    def cut(self) -> OutputLimitReached:
        """End the answer here as incomplete."""
        self.reason = worse(self.reason, "length")
        return OutputLimitReached()

    def note(self, chunk: Any, choice: Any, extra: Any) -> None:
        """Note how the answer ends, with which it may go on: the worst of its reasons counts."""
        self._note_error(member(extra, "error"))
        self.note_reason(chunk, choice)

    def note_reason(self, chunk: Any, choice: Any) -> None:
        """Note the reason of a chunk that has one; its choice is None if it has none."""
        if reason := reason_of(chunk, choice):
            self.reason = worse(self.reason, reason)
            given = member(choice, "finish_reason")
            self._note_error(member(choice, "error") or (text(given, "message") and given))
            self.service_tier = text(chunk, "service_tier") or None
            self.note_usage(chunk, usage_of_chunk(chunk))

    def _note_error(self, error: Any) -> None:
        if error and not self._error and (not isinstance(error, dict) or any(error.values())):
            self._error = error

    def note_usage(self, chunk: Any, usage: Any) -> None:
        """Note a usage, unless it is empty behind another one."""
        if usage is not None and not (self._usage and is_empty(usage)):
            self._usage, self._timings = usage, getattr(chunk, "timings", None)

    def meaning(self, *, only_words: bool) -> FinishReason:
        """Return how the answer ended.

        Args:
            only_words: whether nothing is called.

        Raises:
            ApiError: it did not end, or with a reason that reports a failure.
        """
        if self.reason is None:
            return self._without_reason()
        meaning = meaning_of(self.reason)
        if meaning is None:
            meaning = guessed_meaning(self.reason)
            logger.warning("unknown finish_reason %r treated as '%s'", self.reason, meaning)
        if meaning == "malformed_call":
            raise failed_call(f"the model server ended the answer with '{self.reason}'")
        if self._error:
            raise _failure(self._error)
        if meaning == "tool_calls" and not (self._answer.has_begun or only_words):
            # The parsers of some servers lose calls (sglang issue 35564).
            raise failed_call(f"the model server ended the answer with '{self.reason}' and sent no call")
        if meaning == "failed":
            raise ApiError(
                502,
                f"The inference provider aborted the answer: {self.reason}.",
                upstream=Upstream("server_error"),
            )
        return meaning

    def _without_reason(self) -> FinishReason:
        """Return how the round ended without a reason; errors as above. Some servers end an answer with `[DONE]`."""
        if self._error:
            raise _failure(self._error)
        if not self._answer.has_begun:  # Reasoning alone is no answer.
            raise ApiError(
                502,
                "The inference provider's stream ended before the answer was finished.",
                upstream=Upstream("stream"),
            )
        return "stop"


def _failure(error: Any) -> ApiError:
    """Return the error that a choice has (OpenRouter): its `message`, and its `code`, which is an HTTP status."""
    if str(member(error, "code")) == "401":
        return refused_credentials(401)
    words, code = (text(error, "message") or str(error))[:_ERROR_CHARACTERS], member(error, "code")
    if str(code) == "429":
        return ApiError(429, words, code="rate_limit_exceeded", upstream=Upstream("rate_limit", 429))
    shown = f"The inference provider failed in the middle of its answer: {words}"
    return ApiError(502, shown, upstream=Upstream("server_error", code if isinstance(code, int) else None))
