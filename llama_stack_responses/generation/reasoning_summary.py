"""Summaries of the reasoning, by one more call of a model where the reasoning ends."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from typing import Any, Final

from ..chat.chunks import ChunkReader, Enough
from ..chat.inference import Inference
from ..chat.profile import Profile
from ..core.errors import ApiError
from ..core.stream.deltas import Delta, Finish, Reasoning, Text, Usage
from ..logs import get_logger
from .stream_close import hanging_up
from .watchdog import Watchdog

Json = dict[str, Any]

logger = get_logger(__name__)

_LONGEST: Final = 1 << 16
"""Characters that the model may say for one summary, its own reasoning included."""


class Summarizing:
    """A gate behind which each stretch of reasoning has a summary.

    What it costs is counted with the round. Where it cannot be had, the answer goes on without it.

    Args:
        inference: runs the call.
        request: makes the chat request for a summary of a text.
        profile: how the answers of the model that summarises are to be read.
        idle_seconds: how long it may stay silent.
    """

    def __init__(
        self, inference: Inference, request: Callable[[str], Json], profile: Profile, idle_seconds: float
    ) -> None:
        self._inference = inference
        self._request = request
        self._profile = profile
        self._idle_seconds = idle_seconds
        self._text: list[str] = []
        self._has_own = False
        self._used = Usage()

    async def feed(self, delta: Delta) -> AsyncGenerator[Delta]:
        """The delta, behind a summary of the reasoning that ends with it."""
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
        try:
            with Watchdog(self._idle_seconds) as watchdog:
                reader = ChunkReader(self._profile, _LONGEST)
                async with hanging_up(await self._inference.open(self._request(text))) as chunks:
                    with suppress(Enough):
                        async for chunk in chunks:
                            for delta in _said(reader, chunk, watchdog):
                                yield delta
                [*_, finish] = reader.end()
                assert isinstance(finish, Finish)
                self._used += finish.usage
        except ApiError as error:
            logger.warning("a summary of the reasoning could not be made: %s", error)
        except Exception as error:  # noqa: BLE001 - whatever the provider's library raised
            logger.warning("a summary of the reasoning could not be made: %s", self._inference.explain(error))


def _said(reader: ChunkReader, chunk: Any, watchdog: Watchdog) -> list[Delta]:
    """What a chunk adds to the summary.

    Raises:
        Enough: the chunks before it have said as much as they may.
        ApiError: they go on and say nothing.
    """
    if deltas := reader.read(chunk):
        watchdog.pat()
    reader.check_progress()
    return [Reasoning(delta.text, summary=True) for delta in deltas if isinstance(delta, Text)]
