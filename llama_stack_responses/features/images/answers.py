"""The answers of an image server, which are read up to a limit: JSON, or a stream of events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import httpx

from ...core.types import Json
from ...fetch.response_bodies import decoded
from ...fetch.server_events import EventParser
from .failure import ImageFailed
from .served_image import ServedImage, served_image, too_large

Hold = Callable[[int], object]
"""Called with the number of bytes that are about to be held; raises if they are too many."""
ShowPartial = Callable[[int, ServedImage], None]
"""Called with the number of an unfinished image, from 0, and the image."""

_AROUND_BYTES: Final = 65_536
"""Bytes of an answer without its image."""
_MAX_LINES: Final = 4_096
"""Lines of a stream."""
_MESSAGE_CHARACTERS: Final = 500
_BLOCKED: Final = "moderation_blocked"
_UNREADABLE: Final = "The image server's answer is not in the form of OpenAI's API for images."
_SECRET_STATUSES: Final = (401, 403, 407)
"""Refusals whose text may repeat a part of the key."""


class AnswerReader:
    """Reads the answers to one call.

    Args:
        answer: an answer that is being streamed.
        max_bytes: maximum size of an image.
        hold: counts what is read.
    """

    def __init__(self, answer: httpx.Response, max_bytes: int, hold: Hold) -> None:
        self._answer = answer
        self._max_bytes = max_bytes
        self._hold = hold
        self._uncounted = self._bytes_of(1)

    async def image(self, partial_images: int, show: ShowPartial) -> ServedImage:
        """Return the image of a successful answer, and show unfinished images before it.

        Raises:
            ImageFailed: there is no image, or the answer is too large.
        """
        try:
            if self._media_type() == "text/event-stream":
                return await self._streamed(partial_images, show)
            body = await decoded(await self._body(self._bytes_of(1)))
            return await served_image(body["data"][0], body, self._max_bytes)
        except (ValueError, TypeError, KeyError, AttributeError, IndexError):
            raise ImageFailed(_UNREADABLE, "an unreadable answer") from None

    async def refusal(self) -> ImageFailed:
        """Return the failure of which an answer with another status tells."""
        status = self._answer.status_code
        if self._answer.is_redirect:
            return ImageFailed("The image server answered with a redirect, which is not followed.", "a redirect")
        error = None if status in _SECRET_STATUSES else await self._error()
        return _failure(f"The image server refused the call with status {status}", error, f"status {status}")

    async def _error(self) -> Any:
        """Return the answer's error, an object or a text, as far as it is in one of the usual forms."""
        try:
            body = await decoded(await self._body(_AROUND_BYTES))
        except (ImageFailed, ValueError):
            return None
        return body.get("error") or body.get("detail") if isinstance(body, dict) else None

    def _media_type(self) -> str:
        media_type: str = self._answer.headers.get("content-type", "").partition(";")[0]
        return media_type.strip().lower()

    def _bytes_of(self, images: int) -> int:
        return images * (self._max_bytes // 2 * 3 + _AROUND_BYTES)

    async def _pieces(self, max_bytes: int) -> AsyncIterator[bytes]:
        if self._answer.headers.get("content-encoding", "identity").lower() != "identity":
            raise ImageFailed("The image server compressed its answer, which was not requested.", "compressed answer")
        async for piece in self._answer.aiter_raw():
            max_bytes -= len(piece)
            if max_bytes < 0:
                raise too_large(self._max_bytes)
            self._count(len(piece))
            yield piece

    def _count(self, size: int) -> None:
        """Count what arrives as held, up to one image: of a stream, only one event is held at a time."""
        counted = min(size, self._uncounted)
        self._uncounted -= counted
        self._hold(2 * counted)  # as bytes, and as text while it is decoded

    async def _body(self, max_bytes: int) -> bytearray:
        body = bytearray()
        async for piece in self._pieces(max_bytes):
            body += piece
        return body

    async def _streamed(self, partial_images: int, show: ShowPartial) -> ServedImage:
        shown = 0
        async for data in self._events(self._bytes_of(partial_images + 1)):
            event = await decoded(data)
            if error := event.get("error"):
                raise _failure("The image server failed", error, "an error in its stream")
            if str(event.get("type")).endswith(".partial_image"):
                if shown < partial_images:
                    show(shown, await served_image(event, event, self._max_bytes))
                    shown += 1
            elif entry := _entry_of(event):
                return await served_image(entry, event, self._max_bytes)
        raise ImageFailed("The image server's stream ended without an image.", "a stream without an image")

    async def _events(self, max_bytes: int) -> AsyncIterator[bytes | bytearray]:
        """Yield the data of the events of a stream."""
        parser, lines = EventParser(max_bytes), 0
        async for piece in self._pieces(max_bytes):
            for event in parser.feed(piece):
                lines += 1
                if lines > _MAX_LINES:
                    raise ImageFailed(_UNREADABLE, "a stream of too many lines")
                if event and event.data and event.data[:16].strip() != b"[DONE]":
                    yield event.data


def _failure(what: str, error: Any, reason: str) -> ImageFailed:
    """Return the failure with a server's error, which is an object in OpenAI's form, a text, or anything else."""
    said, code = (error.get("message"), error.get("code")) if isinstance(error, dict) else (error, None)
    words = f": {' '.join(said.split())[:_MESSAGE_CHARACTERS]}" if isinstance(said, str) and said.strip() else "."
    blocked = code == _BLOCKED
    return ImageFailed(f"{what}{words}", None if blocked else reason, blocked=blocked)


def _entry_of(event: Json) -> Any:
    """Return what has the final image of an event; None if the event has none."""
    if "b64_json" in event:
        return event
    data = event.get("data")
    return data[0] if isinstance(data, list) and data else None
