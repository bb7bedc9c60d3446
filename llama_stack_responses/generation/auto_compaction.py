"""Compaction of a conversation within a generation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from ..concurrency.large_work import LargeWork
from ..core.types import Json
from ..items.compaction import (
    Summary,
    as_message,
    before_question,
    check_not_empty,
    continued,
    has_new_items,
    open_message,
    shown_message,
)
from ..items.kinds.compaction import FORM
from ..requests.request import CreateRequest
from ..sealing.sealer import SEALED
from ..sealing.summaries import PrivateSummaries
from ..stream.assembler import Assembler
from ..stream.deltas import Finish
from ..telemetry.instrumentation import RoundOperation
from ..tools.tool_function import ItemReporter
from .event_buffer import EventBuffer
from .model_round import ModelRound

Compact = Callable[[Sequence[Json], int | None, ItemReporter, RoundOperation], Awaitable[list[Json]]]
"""Compacts a conversation, given the maximum tokens of the summary; returns the items that the model continues from."""


class _Parts(NamedTuple):
    """A conversation that is about to be compacted.

    Attributes:
        settled: its beginning, which the summary replaces.
        question: the user's messages at its end.
        open_message: the content of the user's message that is not yet answered, as it was sent; None if there is none.
        shown_message: the same as the model sees it, if it is not in `question`.
    """

    settled: list[Json]
    question: list[Json]
    open_message: list[Json] | None
    shown_message: list[Json] | None


class AutoCompaction:
    """Replaces a conversation by a summary. Conversations are given as they continue from an earlier summary.

    Args:
        request: the client's request.
        sent: the history and the input, as they were sent.
        model_round: runs the model rounds.
        assembler: builds the response.
        event_buffer: receives the events.
        summaries: seals the summaries.
        large_work: does the work on large conversations.
    """

    __slots__ = ("_assembler", "_entries", "_event_buffer", "_large_work", "_model_round", "_sent", "_summaries")

    def __init__(
        self,
        request: CreateRequest,
        *,
        sent: Sequence[Json],
        model_round: ModelRound,
        assembler: Assembler,
        event_buffer: EventBuffer,
        summaries: PrivateSummaries,
        large_work: LargeWork,
    ) -> None:
        self._entries = request.context_management
        self._sent = sent
        self._model_round = model_round
        self._assembler = assembler
        self._event_buffer = event_buffer
        self._summaries = summaries
        self._large_work = large_work

    async def due(self, items: Sequence[Json], max_tokens: int | None) -> bool:
        """Return whether the conversation can be compacted and exceeds the request's threshold or the model's context.

        Args:
            max_tokens: maximum number of tokens of the answer; None for no bound.
        """
        if not await self.possible(items):
            return False
        thresholds = [entry["compact_threshold"] for entry in self._entries if "compact_threshold" in entry]
        return await self._model_round.passes(items, min(thresholds, default=None), max_tokens)

    async def possible(self, items: Sequence[Json]) -> bool:
        """Return whether the client asked for compaction and there is something to compact."""
        return bool(self._entries) and await self._large_work.run(partial(self._has_new_items, items), items)

    async def continued(self, items: Sequence[Json]) -> list[Json]:
        """Return the items from which the model continues after a compaction item among them."""
        return await self._large_work.run(partial(continued, items, self._summaries.read), items)

    async def before_answer(
        self, items: Sequence[Json], max_tokens: int | None, reporter: ItemReporter, operation: RoundOperation
    ) -> list[Json]:
        """Compact the conversation before a round, and return the items that the model continues from.

        The user's last message is kept. If the model has not begun to answer it, it is left out of the summary.

        Raises:
            ApiError: the model wrote no summary.
        """
        parts = await self._large_work.run(partial(self._parts, items), items)
        compaction = await self._compaction(parts.settled, parts.open_message, max_tokens, reporter, operation)
        summary = self._summaries.read(compaction)
        if parts.shown_message and summary:
            # The sealed item only refers to the message's files and images; here they are already resolved.
            return [compaction, as_message(replace(summary, message=parts.shown_message))]
        return [compaction, *parts.question]

    async def alone(
        self, items: Sequence[Json], max_tokens: int | None, reporter: ItemReporter, operation: RoundOperation
    ) -> list[Json]:
        """Compact the whole conversation, for a request for compaction alone.

        Raises:
            ApiError: there is nothing to compact, or the model wrote no summary.
        """
        check_not_empty(items)
        sent_message = await self._large_work.run(partial(self._open_message, items), self._sent)
        return [await self._compaction(items, sent_message, max_tokens, reporter, operation)]

    def _has_new_items(self, items: Sequence[Json]) -> bool:
        return has_new_items(before_question(items)[0], self._summaries.read)

    def _parts(self, items: Sequence[Json]) -> _Parts:
        settled, question = before_question(items)
        sent_message = self._open_message(items)
        return _Parts(settled, question, sent_message, shown_message(items) if sent_message and not question else None)

    def _open_message(self, items: Sequence[Json]) -> list[Json] | None:
        return open_message(items, self._sent, self._summaries.read)

    async def _compaction(
        self,
        items: Sequence[Json],
        sent_message: list[Json] | None,
        max_tokens: int | None,
        reporter: ItemReporter,
        operation: RoundOperation,
    ) -> Json:
        index = -1

        def begun() -> None:
            nonlocal index
            index = reporter.begin(FORM, {})
            reporter.advance(index, "compacting")

        written = await self._model_round.summarise(items, max_tokens, begun, operation)
        operation.ended(written.finish, ())
        self._event_buffer.put(self._assembler.feed(Finish("stop", written.finish.usage)))
        reporter.conclude(index, {SEALED: await self._summaries.sealed(Summary(written.text, sent_message))})
        compaction: Json = self._assembler.response["output"][index]
        return compaction
