"""How a conversation is compacted while a response is made of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from ..core.compaction import (
    Summary,
    as_message,
    before_question,
    check_not_empty,
    has_news,
    open_message,
    shown_message,
)
from ..core.schema.request import CreateRequest
from ..core.stream.assembler import Assembler
from ..core.stream.calls import COMPACTION
from ..core.stream.deltas import Finish
from ..sealing.sealer import SEALED
from ..sealing.summaries import PrivateSummaries
from ..telemetry.telemetry import RoundOperation
from ..tools.tool import Stagehand
from .event_buffer import Outbox
from .model_round import Asking

Json = dict[str, Any]

Compact = Callable[[Sequence[Json], int | None, Stagehand, RoundOperation], Awaitable[list[Json]]]
"""Compacts a conversation, the answer having so many tokens; what the model goes on from."""


class Compacting:
    """Puts a summary in the place of a conversation.

    Args:
        request: what the client asked for.
        sent: the history and the input, as they were sent.
        asking: asks the model.
        assembler, outbox: build the response, and take its events.
        summaries: seals what the model writes.
    """

    def __init__(
        self,
        request: CreateRequest,
        *,
        sent: Sequence[Json],
        asking: Asking,
        assembler: Assembler,
        outbox: Outbox,
        summaries: PrivateSummaries,
    ) -> None:
        self._entries = request.context_management
        self._sent = sent
        self._asking = asking
        self._assembler = assembler
        self._outbox = outbox
        self._summaries = summaries

    async def due(self, items: Sequence[Json], max_tokens: int | None) -> bool:
        """Whether the conversation has grown past the threshold, or past what the model takes.

        Args:
            max_tokens: what the answer may have, or None.
        """
        if not self.possible(items):
            return False
        thresholds = [entry["compact_threshold"] for entry in self._entries if "compact_threshold" in entry]
        return await self._asking.passes(items, min(thresholds, default=None), max_tokens)

    def possible(self, items: Sequence[Json]) -> bool:
        """Whether the client wants it, and there is something to compact."""
        return bool(self._entries) and has_news(before_question(items)[0], self._summaries.read)

    async def before_answer(
        self, items: Sequence[Json], max_tokens: int | None, stagehand: Stagehand, told: RoundOperation
    ) -> list[Json]:
        """Compacts what came before a round; what the model goes on from.

        What the user asked last stays. If nobody has answered any of it, it is not summarised either.

        Raises:
            ApiError: the model wrote no summary.
        """
        settled, question = before_question(items)
        asked = open_message(items, self._sent, self._summaries.read)
        made = await self._made(settled, asked, max_tokens, stagehand, told)
        summary = self._summaries.read(made)
        if asked and summary and not question:
            # The item only names the files and images of the message; for this model they are read already.
            question = [as_message(replace(summary, message=shown_message(items)))]
        return [made, *question]

    async def alone(
        self, items: Sequence[Json], max_tokens: int | None, stagehand: Stagehand, told: RoundOperation
    ) -> list[Json]:
        """Compacts all of the conversation, since the client asked for that and nothing else.

        Raises:
            ApiError: there is nothing to compact, or the model wrote no summary.
        """
        check_not_empty(items)
        asked = open_message(items, self._sent, self._summaries.read)
        return [await self._made(items, asked, max_tokens, stagehand, told)]

    async def _made(
        self,
        items: Sequence[Json],
        asked: list[Json] | None,
        max_tokens: int | None,
        stagehand: Stagehand,
        told: RoundOperation,
    ) -> Json:
        index = -1

        def begun() -> None:
            nonlocal index
            index = stagehand.begin(COMPACTION, {})
            stagehand.advance(index, "compacting")

        written = await self._asking.summarise(items, max_tokens, begun, told)
        told.ended(written.finish, ())
        self._outbox.put(self._assembler.feed(Finish("stop", written.finish.usage)))
        stagehand.conclude(index, {SEALED: self._summaries.seal(Summary(written.text, asked))})
        made: Json = self._assembler.response["output"][index]
        return made
