"""How the model of one response is asked: a round's chat request out, its deltas in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .chat.chunks import ChunkReader
from .chat.inference import Inference
from .chat.messages import chat_messages
from .chat.profile import Profile
from .chat.request import chat_request
from .core.citing import Citing
from .core.deltas import Delta, Finish
from .core.errors import ApiError, TooLongError
from .core.request import CreateRequest
from .core.thoughts import Thought, plain_thoughts
from .fitting import Fitting
from .gates import Gate, through
from .hangup import hanging_up
from .outbox import Outbox
from .telemetry.telemetry import RoundOperation
from .tools.toolset import Toolset
from .turnstile import Turnstile
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


class Asking:
    """Asks the model.

    Args:
        request: what the client asked for.
        fitting: makes the conversation as short as the model takes it.
        outbox: where what is said goes; while it is full, the model has to wait.
        idle_seconds: how long the provider may stay silent.
        turnstile: where this and other rounds let one another through.
        instructions: what it hears first.
        read_reasoning: what a reasoning item holds for the model.
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
        turnstile: Turnstile,
        instructions: str | None = None,
        read_reasoning: Callable[[Json], Sequence[Thought]] = plain_thoughts,
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
        self._turnstile = turnstile
        self._instructions = instructions
        self._read_reasoning = read_reasoning
        self._gates = gates

    async def ask(self, items: Sequence[Json], max_tokens: int | None, take: Take, told: RoundOperation) -> Heard:
        """Has the model go on from `items`; `told` is shown what is sent and what comes first.

        Raises:
            ApiError: the provider failed; `TooLongError` if it has no room for so much. What came so far was taken.
        """
        chat = await self.chat(items, max_tokens)
        told.asked(chat)
        reader = ChunkReader(self._profile, summaries=self._request.reasoning_summary is not None)
        citing = self._toolset.citing()
        try:
            end = await self._hear(chat, reader, citing, take, told)
        except ApiError:
            raise
        except Exception as error:
            raise self._inference.explain(error) from error
        end = end or await self._pass(_cited(reader.end(), citing), take)
        assert end, "a round ends with its Finish"
        return Heard(end, reader.service_tier)

    async def chat(self, items: Sequence[Json], max_tokens: int | None) -> Json:
        """The chat request that has the model go on from `items`."""
        offer = self._toolset.offer()

        def made(shown: Sequence[Json]) -> Json:
            return chat_request(self._request, self._profile, self._messages(shown), offer, max_tokens)

        if self._request.truncation == "disabled":
            return made(items)
        return await self._fitting.fit(items, made, max_tokens)

    def shorten(self, refusal: TooLongError) -> bool:
        """Whether the request that was refused may be sent again, and will be shorter then."""
        return self._request.truncation == "auto" and self._fitting.shorten(refusal)

    def accept(self) -> None:
        """Lets the answer count as begun."""
        if not self.accepted.done():
            self.accepted.set_result(None)

    async def _hear(
        self, chat: Json, reader: ChunkReader, citing: Citing | None, take: Take, told: RoundOperation
    ) -> Finish | None:
        with Watchdog(self._idle_seconds) as watchdog:
            stream = await self._inference.open(chat)
            self.accept()
            async with hanging_up(stream) as chunks:
                return await self._read(chunks, reader, citing, watchdog, take, told)

    async def _read(
        self,
        chunks: AsyncIterator[Any],
        reader: ChunkReader,
        citing: Citing | None,
        watchdog: Watchdog,
        take: Take,
        told: RoundOperation,
    ) -> Finish | None:
        """Takes what the provider streams; how the round ended, if one of the gates ended it."""
        read, pause = 0, 1
        async for chunk in chunks:
            watchdog.pat()
            deltas = _cited(reader.read(chunk), citing)
            if self._gates:
                with watchdog.asleep():
                    if end := await self._pass(deltas, take):
                        return end
            else:
                for delta in deltas:
                    if end := take(delta):
                        return end
            if self._outbox.full:
                with watchdog.asleep():
                    await self._outbox.drained()
            read += 1
            if read == pause:
                told.hear(chunk)
                pause = await self._pause(read)
        return None

    async def _pause(self, read: int) -> int:
        """Lets others have their turn, but for a stream's first chunk; after how many to do so next."""
        if read > 1:
            await self._turnstile.through()
        return read - read % _BURST + _BURST

    async def _pass(self, deltas: Iterable[Delta], take: Take) -> Finish | None:
        """Takes what comes of the deltas behind the gates; how the round ended, if it did."""
        for delta in deltas:
            end: Finish | None = None
            async for shown in through(self._gates, delta):
                end = end or take(shown)
                if isinstance(shown, Finish):
                    end = end or shown
            if end:
                return end
        return None

    def _messages(self, items: Sequence[Json]) -> list[Json]:
        return chat_messages(
            items,
            self._profile,
            instructions=self._instructions,
            all_reasoning=self._profile.replayed_reasoning(self._request.reasoning) == "all_turns",
            names=self._toolset.names,
            read_reasoning=self._read_reasoning,
        )


def _cited(deltas: list[Delta], citing: Citing | None) -> list[Delta]:
    """The deltas, with the citations that the model wrote into its text."""
    return deltas if citing is None else [shown for delta in deltas for shown in citing.feed(delta)]
