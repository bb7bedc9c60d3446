"""The two ways in which a response goes out: as a stream of events, and as one JSON object."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from llama_stack_responses.core.errors import ApiError, OutcomeUnknown
from llama_stack_responses.core.stream.events import Event
from llama_stack_responses.generation.run import Run
from llama_stack_responses.logs import get_logger
from llama_stack_responses.service.responses import PATIENCE, LetGo

from . import sse
from .json_blocks import BLOCK, dumps

logger = get_logger(__name__)

KEEP_ALIVE_AFTER: Final = 15.0
"""Seconds of silence after which a stream shows that it lives."""


class Json(Response):
    """A JSON answer."""

    media_type = "application/json"

    def __init__(self, content: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        super().__init__(content, status, headers)

    def render(self, content: Any) -> bytes:
        return dumps(content)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if len(self.body) <= BLOCK:
            await super().__call__(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for start in range(0, len(self.body), BLOCK):
            await _send_more(send, bytes(self.body[start : start + BLOCK]))
        await send({"type": "http.response.body", "body": b""})


def failure(error: ApiError) -> Json:
    """The HTTP form of an error."""
    after = error.retry_after
    headers = {"retry-after": f"{after:g}"} if after is not None else {}
    # OpenAI's clients try again by themselves after a 409, which they take for a lock that is about to be free, and
    # after a 503: they would make twice what may be made already.
    final = error.status == 409 or isinstance(error, OutcomeUnknown)
    headers |= {"x-should-retry": "false"} if final else {}
    return Json(error.body(), error.status, headers)


class RunAsJson(Response):
    """Waits for a response and sends it whole."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with _abandoned_with_client(self._run, receive):
            try:
                answer = Json(await self._run.finish())
            except ApiError as error:
                answer = failure(error)
            await answer(scope, receive, send)


class RunAsEvents(Response):
    """Sends a response's events as they come, several that are ready together in one write."""

    def __init__(self, run: Run) -> None:
        super().__init__(media_type="text/event-stream", headers=_stream_headers())
        self._run = run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with _abandoned_with_client(self._run, receive):
            try:
                await self._run.begin(PATIENCE)
            except ApiError as error:
                await failure(error)(scope, receive, send)
                return
            await send({"type": "http.response.start", "status": 200, "headers": self._head()})
            while (events := await self._run.outbox.take(KEEP_ALIVE_AFTER)) is not None:
                for block in _frames(events):
                    await _send_more(send, block)
            # Without [DONE] if the end is unknown: what was sent is not the whole stream.
            await send({"type": "http.response.body", "body": b"" if self._run.unknown else sse.DONE})

    def _head(self) -> list[tuple[bytes, bytes]]:
        return [(name, value) for name, value in self.raw_headers if name != b"content-length"]


class FinishedAsJson(Response):
    """Waits for a response that needs nobody to wait for it, and sends it whole; ends when the client leaves.

    Args:
        finished: waits for the response.
        headers: what else the answer has in its head.
    """

    def __init__(self, finished: Coroutine[Any, Any, Any], headers: dict[str, str]) -> None:
        super().__init__()
        self._finished = finished
        self._extra = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        left, finished = asyncio.ensure_future(gone(receive)), asyncio.ensure_future(self._finished)
        try:
            await asyncio.wait([left, finished], return_when=asyncio.FIRST_COMPLETED)
            if finished.done():
                await self._answer(finished)(scope, receive, send)
        finally:
            left.cancel()
            finished.cancel()

    def _answer(self, finished: asyncio.Future[Any]) -> Response:
        try:
            return Json(finished.result(), headers=self._extra)
        except ApiError as error:
            return failure(error)


def followed(batches: AsyncIterator[list[Event]], headers: Mapping[str, str] | None = None) -> Response:
    """The events of a response that may still be made, as they come; an empty batch keeps the stream alive."""

    async def frames() -> AsyncIterator[bytes]:
        try:
            async for events in batches:
                for block in _frames(events):
                    yield block
        except LetGo:
            return  # Without [DONE]: its reader has to come back for the rest.
        except ApiError as error:
            logger.warning("the readers of a response were left alone: %s", error)
            return
        yield sse.DONE

    return StreamingResponse(frames(), media_type="text/event-stream", headers=_stream_headers() | dict(headers or {}))


def _frames(events: list[Event]) -> Iterable[bytes]:
    """Events as blocks of bytes; none of them is a sign of life."""
    return sse.pieces(events) if events else (sse.KEEP_ALIVE,)


def _stream_headers() -> dict[str, str]:
    # Without the second one, nginx collects the events until its buffer is full.
    return {"cache-control": "no-cache", "x-accel-buffering": "no"}


async def _send_more(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


@contextmanager
def _abandoned_with_client(run: Run, receive: Receive) -> Iterator[None]:
    """Ends the run as soon as the client is gone, and in any case when the block is left early."""
    watcher = asyncio.ensure_future(gone(receive))
    watcher.add_done_callback(lambda _: run.abandon())
    try:
        yield
    finally:
        watcher.cancel()


async def gone(receive: Receive) -> None:
    """Waits until the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
