"""How the model of one response is asked: a round's chat request out, its deltas in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from ..chat.chunks import ChunkReader, Enough
from ..chat.compaction import compaction_request
from ..chat.inference import Inference
from ..chat.messages import chat_messages
from ..chat.profile import Profile
from ..chat.request import chat_request
from ..core.compaction import Summary, continued
from ..core.errors import ApiError, TooLongError
from ..core.schema.request import CreateRequest
from ..core.stream.citing import Citing
from ..core.stream.deltas import Delta, Finish, Text
from ..core.thoughts import Thought, plain_thoughts
from ..telemetry.telemetry import RoundOperation
from ..tools.toolset import Toolset
from .context_fit import Fitting, Make
from .delta_filter import Gate, through
from .event_buffer import Outbox
from .fair_yield import Turnstile
from .stream_close import hanging_up
from .watchdog import Watchdog

Json = dict[str, Any]
Take = Callable[[Delta], Finish | None]
"""Is given each delta of a round, in order; says how the round ends, if it is to end before this one."""

_BURST: Final = 16
"""Chunks after which others get their turn: those that a fast provider sent together come without a pause, and a
stream's first do not wait behind those that run already."""


@dataclass(frozen=True, slots=True)
class Heard:
    """How a round ended.

    Attributes:
        service_tier: the provider's name for the tier that served it, if it said so.
    """

    finish: Finish
    service_tier: str | None


@dataclass(frozen=True, slots=True)
class Written:
    """A text that the model wrote, and how the round ended."""

    text: str
    finish: Finish


@dataclass(frozen=True, slots=True)
class _Round:
    """How one round is read.

    Attributes:
        gates: what its deltas have to pass, the first one first.
        told: is shown what is sent and what comes first.
        full: whether the response that comes of it is as large as it may be.
    """

    reader: ChunkReader
    citing: Citing | None
    gates: Sequence[Gate]
    take: Take
    told: RoundOperation
    full: Callable[[], bool]

    def cited(self, deltas: list[Delta]) -> list[Delta]:
        """The deltas, with the citations that the model wrote into its text."""
        return deltas if self.citing is None else [shown for delta in deltas for shown in self.citing.feed(delta)]

    def taken(self, deltas: list[Delta]) -> Finish | None:
        """Takes the deltas, where there are no gates; how the round ended, if it did."""
        for delta in deltas if self.citing is None else self.cited(deltas):
            if end := self.take(delta):
                return end
        return None

    async def passed(self, deltas: list[Delta]) -> Finish | None:
        """Takes what comes of the deltas behind the gates; how the round ended, if it did."""
        for delta in self.cited(deltas):
            # What ends the round also ends the work of the gates on this delta.
            async with aclosing(through(self.gates, delta)) as passing:
                async for shown in passing:
                    if end := self.take(shown) or (shown if isinstance(shown, Finish) else None):
                        return end
        return None


class Asking:
    """Asks the model.

    Args:
        request: what the client asked for.
        fitting: makes the conversation as short as the model takes it.
        outbox: where what is said goes; while it is full, the model has to wait.
        idle_seconds: how long the provider may say nothing.
        output_bytes: characters that all rounds may say together; the round that says more ends there, as incomplete.
        turnstile: where this and other rounds let one another through.
        instructions: what it hears first.
        read_reasoning: what a reasoning item holds for the model.
        read_summary: what a compaction item holds for the model.
        gates: what the deltas of a round have to pass, the first one first.

    Attributes:
        accepted: done once the provider has accepted the first request.
    """

    def __init__(
        self,
        request: CreateRequest,
        *,
        profile: Profile,
        toolset: Toolset,
        inference: Inference,
        fitting: Fitting,
        outbox: Outbox,
        idle_seconds: float,
        output_bytes: int,
        turnstile: Turnstile,
        instructions: str | None = None,
        read_reasoning: Callable[[Json], Sequence[Thought]] = plain_thoughts,
        read_summary: Callable[[Json], Summary | None] = lambda _: None,
        gates: Sequence[Gate] = (),
    ) -> None:
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._profile = profile
        self._toolset = toolset
        self._inference = inference
        self._fitting = fitting
        self._outbox = outbox
        self._idle_seconds = idle_seconds
        self._left = output_bytes
        self._turnstile = turnstile
        self._instructions = instructions
        self._read_reasoning = read_reasoning
        self._read_summary = read_summary
        self._gates = gates

    async def ask(
        self,
        items: Sequence[Json],
        max_tokens: int | None,
        take: Take,
        told: RoundOperation,
        full: Callable[[], bool],
    ) -> Heard:
        """Has the model go on from `items`; `told` is shown what is sent and what comes first.

        Args:
            full: whether the response is as large as it may be, after what was taken. It is asked now and then; the
                round then ends as incomplete.

        Raises:
            ApiError: the provider failed; `TooLongError` if it has no room for so much. What came so far was taken.
        """
        chat = await self.chat(items, max_tokens)
        reader = ChunkReader(self._profile, self._left, summaries=self._request.reasoning_summary is not None)
        return await self._heard(chat, _Round(reader, self._toolset.citing(), self._gates, take, told, full))

    async def summarise(
        self, items: Sequence[Json], max_tokens: int | None, begun: Callable[[], None], told: RoundOperation
    ) -> Written:
        """Has the model write a summary of a conversation, which nobody is shown.

        What of it the model has no room for, the oldest turns, is left out.

        Args:
            begun: is called once the model writes.
            told: is shown what is sent and what comes first.

        Raises:
            ApiError: the provider failed, or the model wrote nothing.
        """
        while True:
            make = self._compacting(max_tokens)
            chat = await self._fitting.fit(self._continued(items), make, max_tokens, to_answer=False)
            try:
                return await self._written(chat, begun, told)
            except TooLongError as refusal:
                if not self._fitting.shorten(refusal):
                    raise

    async def passes(self, items: Sequence[Json], threshold: int | None, max_tokens: int | None) -> bool:
        """Whether a request with these items has more tokens than the threshold, or than the model takes."""
        room = await self._fitting.room(max_tokens)
        bounds = [bound for bound in (threshold, room) if bound is not None]
        if not bounds:
            return False
        return await self._fitting.tokens(self._chatting(max_tokens)(self._continued(items)), min(bounds)) > min(bounds)

    async def chat(self, items: Sequence[Json], max_tokens: int | None) -> Json:
        """The chat request that has the model go on from `items`."""
        shown, make = self._continued(items), self._chatting(max_tokens)
        if self._request.truncation == "auto":
            return await self._fitting.fit(shown, make, max_tokens)
        return self._fitting.leave(make(shown))

    def shorten(self, refusal: TooLongError, *, otherwise: bool) -> bool:
        """Whether the request that was refused may be sent again, and will be shorter then.

        Args:
            otherwise: whether the caller has made the conversation shorter.
        """
        shorter = self._fitting.shorten(refusal)
        return otherwise or (shorter and self._request.truncation == "auto")

    def accept(self) -> None:
        """Lets the answer count as begun."""
        if not self.accepted.done():
            self.accepted.set_result(None)

    async def _heard(self, chat: Json, this: _Round) -> Heard:
        this.told.asked(chat)
        try:
            end = await self._read(chat, this)
        except Enough:
            end = None
        except ApiError:
            raise
        except Exception as error:
            raise self._inference.explain(error) from error
        finally:
            self._left -= this.reader.said
        end = end or await this.passed(this.reader.end())
        assert end, "a round ends with its Finish"
        return Heard(end, this.reader.service_tier)

    async def _read(self, chat: Json, this: _Round) -> Finish | None:
        """Takes what the provider streams; how the round ended, if one of the gates ended it."""
        with Watchdog(self._idle_seconds) as watchdog:
            stream = await self._inference.open(chat)
            self.accept()
            async with hanging_up(stream) as chunks:
                read, pause = 0, 1
                async for chunk in chunks:
                    if deltas := this.reader.read(chunk):
                        watchdog.pat()
                    if end := await _gated(this, deltas, watchdog) if this.gates else this.taken(deltas):
                        return end
                    if self._outbox.full:
                        with watchdog.asleep():
                            await self._outbox.drained()
                    read += 1
                    if read == pause:
                        this.told.hear(chunk)
                        pause = await self._pause(read, this)
        return None

    async def _pause(self, read: int, this: _Round) -> int:
        """Lets others have their turn, but for a stream's first chunk; after how many to do so next.

        Raises:
            Enough: the response is full.
            ApiError: the stream says nothing.
        """
        this.reader.check_progress()
        if this.full():
            raise this.reader.cut()
        if read > 1:
            await self._turnstile.through()
        return read - read % _BURST + _BURST

    async def _written(self, chat: Json, begun: Callable[[], None], told: RoundOperation) -> Written:
        texts: list[str] = []

        def take(delta: Delta) -> None:
            if isinstance(delta, Text):
                if not texts:
                    begun()
                texts.append(delta.text)

        reader = ChunkReader(self._profile, self._left)
        finish = (await self._heard(chat, _Round(reader, None, (), take, told, lambda: False))).finish
        text = "".join(texts).strip()
        if not text or finish.reason in ("content_filter", "cancelled"):
            raise ApiError(502, f"The model wrote no summary of the conversation: it ended with '{finish.reason}'.")
        return Written(text, finish)

    def _continued(self, items: Sequence[Json]) -> list[Json]:
        return continued(items, self._read_summary)

    def _chatting(self, max_tokens: int | None) -> Make:
        offer = self._toolset.offer()
        return lambda shown: chat_request(self._request, self._profile, self._messages(shown), offer, max_tokens)

    def _compacting(self, max_tokens: int | None) -> Make:
        return lambda shown: compaction_request(self._request, self._profile, self._messages(shown), max_tokens)

    def _messages(self, items: Sequence[Json]) -> list[Json]:
        return chat_messages(
            items,
            self._profile,
            instructions=self._instructions,
            all_reasoning=self._profile.replayed_reasoning(self._request.reasoning) == "all_turns",
            names=self._toolset.names,
            read_reasoning=self._read_reasoning,
        )


async def _gated(this: _Round, deltas: list[Delta], watchdog: Watchdog) -> Finish | None:
    """Takes what comes of the deltas behind the gates, whose time is not the provider's silence."""
    if not deltas:
        return None
    with watchdog.asleep():
        return await this.passed(deltas)
