"""Reasoning summaries, written by a model call when the reasoning ends."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from typing import Any, Final

from ..chat.answer_end import OutputLimitReached
from ..chat.chunks import ChunkReader
from ..chat.inference import Inference
from ..chat.profile import Profile
from ..core.errors import ApiError
from ..core.types import Json
from ..logs import get_logger
from ..stream.deltas import Delta, Finish, Reasoning, Text
from ..stream.usage import Usage
from .model_server_queues import ModelServerQueues
from .request_adaptation import AdaptedRequest, ModelServers
from .shared_timer import SharedTimer
from .stream_close import ClosedStream
from .watchdog import Watchdog

logger = get_logger(__name__)

_MAX_CHARACTERS: Final = 1 << 16
"""Maximum number of characters that the model may write for one summary, its own reasoning included."""


class ReasoningSummarizer:
    """A delta filter that adds a summary after each stretch of reasoning.

    The tokens of the call are added to the round's usage. If the call fails, the answer continues without the summary.

    Args:
        inference: runs the call.
        servers: changes the chat request as its model server needs it.
        queues: count it at its model server. It waits for no slot: the round that it is part of holds one.
        request: builds the chat request for a summary of a text.
        profile: the profile of the model that writes the summary.
        idle_seconds: timeout for the model server's next data.
        timer: has the timeouts of concurrent streams.
    """

    def __init__(
        self,
        inference: Inference,
        servers: ModelServers,
        queues: ModelServerQueues,
        request: Callable[[str], Json],
        profile: Profile,
        idle_seconds: float,
        timer: SharedTimer,
    ) -> None:
        self._inference = inference
        self._servers, self._queues = servers, queues
        self._request = request
        self._profile = profile
        self._idle_seconds = idle_seconds
        self._timer = timer
        self._text: list[str] = []
        self._has_own = False
        self._used = Usage()

    async def feed(self, delta: Delta) -> AsyncGenerator[Delta]:
        """Yield the delta, after a summary of the reasoning that ends before it."""
        if isinstance(delta, Reasoning):
            self._has_own = self._has_own or delta.summary
            self._text.append(delta.text)
            yield delta
            return
        text, self._text = "".join(self._text), []
        is_cut = isinstance(delta, Finish) and delta.reason not in ("stop", "tool_calls")
        if text.strip() and not self._has_own and not is_cut:
            async with aclosing(self._summary(text)) as summary:
                async for piece in summary:
                    yield piece
        if isinstance(delta, Finish):
            delta = Finish(delta.reason, delta.usage + self._used)
            self._used, self._has_own = Usage(), False
        yield delta

    async def _summary(self, text: str) -> AsyncGenerator[Delta]:
        chat = self._request(text)
        try:
            with Watchdog(self._idle_seconds, self._timer) as watchdog:
                reader, request = ChunkReader(self._profile, _MAX_CHARACTERS), await self._servers.prepare(chat)
                async with self._queues.beyond(request.provider), ClosedStream(await self._opened(request)) as chunks:
                    with suppress(OutputLimitReached):
                        async for chunk in chunks:
                            for delta in _new_text(reader, chunk, watchdog):
                                yield delta
                [*_, finish] = reader.end()
                assert isinstance(finish, Finish)
                self._used += finish.usage
        except ApiError as error:
            logger.warning("reasoning summary failed: %s", error)
        except Exception as error:  # noqa: BLE001 - any error of the provider's library
            logger.warning("reasoning summary failed: %s", self._inference.to_api_error(error))

    async def _opened(self, request: AdaptedRequest) -> AsyncGenerator[Any]:
        """Return the chunks of the answer to a request, which is changed as refusals ask."""
        while True:
            assert request.chat is not None
            try:
                stream = await self._inference.open_stream(request.chat)
            except ApiError as error:
                if not await request.recover(error):
                    raise
            else:
                request.begun()
                return stream


def _new_text(reader: ChunkReader, chunk: Any, watchdog: Watchdog) -> list[Delta]:
    """Return the deltas that a chunk adds to the summary.

    Raises:
        OutputLimitReached: the summary has reached its limit.
        ApiError: the stream makes no progress.
    """
    deltas = watchdog.read(reader, chunk)
    reader.check_progress()
    return [Reasoning(delta.text, summary=True) for delta in deltas if isinstance(delta, Text)]
