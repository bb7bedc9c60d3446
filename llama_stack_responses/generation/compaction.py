"""Compaction of a conversation within a generation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from ..core.compaction import (
    Summary,
    as_message,
    before_question,
    check_not_empty,
    has_new_items,
    open_message,
    shown_message,
)
from ..core.schema.request import CreateRequest
from ..core.stream.assembler import Assembler
from ..core.stream.calls import COMPACTION
from ..core.stream.deltas import Finish
from ..core.types import Json
from ..sealing.sealer import SEALED
from ..sealing.summaries import PrivateSummaries
from ..telemetry.telemetry import RoundOperation
from ..tools.tool_function import ItemReporter
from .event_buffer import EventBuffer
from .model_round import ModelRound

Compact = Callable[[Sequence[Json], int | None, ItemReporter, RoundOperation], Awaitable[list[Json]]]
"""Compacts a conversation, given the maximum tokens of the summary; returns the items that the model continues from."""


class AutoCompaction:
    """Replaces a conversation by a summary.

    Args:
        request: the client's request.
        sent: the history and the input, as they were sent.
        model_round: runs the model rounds.
        assembler: builds the response.
        event_buffer: receives the events.
        summaries: seals the summaries.
    """

    __slots__ = ("_assembler", "_entries", "_event_buffer", "_model_round", "_sent", "_summaries")

    def __init__(
        self,
        request: CreateRequest,
        *,
        sent: Sequence[Json],
        model_round: ModelRound,
        assembler: Assembler,
        event_buffer: EventBuffer,
        summaries: PrivateSummaries,
    ) -> None:
        self._entries = request.context_management
        self._sent = sent
        self._model_round = model_round
        self._assembler = assembler
        self._event_buffer = event_buffer
        self._summaries = summaries

    async def due(self, items: Sequence[Json], max_tokens: int | None) -> bool:
        """Return whether the conversation can be compacted and exceeds the request's threshold or the model's context.

        Args:
            max_tokens: maximum number of tokens of the answer; None for no bound.
        """
        if not self.possible(items):
            return False
        thresholds = [entry["compact_threshold"] for entry in self._entries if "compact_threshold" in entry]
        return await self._model_round.passes(items, min(thresholds, default=None), max_tokens)

    def possible(self, items: Sequence[Json]) -> bool:
        """Return whether the client asked for compaction and there is something to compact."""
        return bool(self._entries) and has_new_items(before_question(items)[0], self._summaries.read)

    async def before_answer(
        self, items: Sequence[Json], max_tokens: int | None, reporter: ItemReporter, operation: RoundOperation
    ) -> list[Json]:
        """Compact the conversation before a round, and return the items that the model continues from.

        The user's last message is kept. If the model has not begun to answer it, it is left out of the summary.

        Raises:
            ApiError: the model wrote no summary.
        """
        settled, question = before_question(items)
        open_question = open_message(items, self._sent, self._summaries.read)
        compaction = await self._compaction(settled, open_question, max_tokens, reporter, operation)
        summary = self._summaries.read(compaction)
        if open_question and summary and not question:
            # The sealed item only refers to the message's files and images; here they are already resolved.
            question = [as_message(replace(summary, message=shown_message(items)))]
        return [compaction, *question]

    async def alone(
        self, items: Sequence[Json], max_tokens: int | None, reporter: ItemReporter, operation: RoundOperation
    ) -> list[Json]:
        """Compact the whole conversation, for a request for compaction alone.

        Raises:
            ApiError: there is nothing to compact, or the model wrote no summary.
        """
        check_not_empty(items)
        open_question = open_message(items, self._sent, self._summaries.read)
        return [await self._compaction(items, open_question, max_tokens, reporter, operation)]

    async def _compaction(
        self,
        items: Sequence[Json],
        open_question: list[Json] | None,
        max_tokens: int | None,
        reporter: ItemReporter,
        operation: RoundOperation,
    ) -> Json:
        index = -1

        def begun() -> None:
            nonlocal index
            index = reporter.begin(COMPACTION, {})
            reporter.advance(index, "compacting")

        written = await self._model_round.summarise(items, max_tokens, begun, operation)
        operation.ended(written.finish, ())
        self._event_buffer.put(self._assembler.feed(Finish("stop", written.finish.usage)))
        reporter.conclude(index, {SEALED: await self._summaries.sealed(Summary(written.text, open_question))})
        compaction: Json = self._assembler.response["output"][index]
        return compaction
