"""Requests to one model server."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from email.utils import parsedate_to_datetime
from time import time
from typing import Any, Final

import httpx2
import openai

from . import errors
from .body import loads
from .config import OpenAIChatConfig
from .frames import FrameSplitter
from .pool import Pool

_DONE: Final = b"[DONE]"
_DRAIN_SECONDS: Final = 0.2
"""How long the end of a body may take to come after `[DONE]`, so that its connection can be kept."""

_RETRIED: Final = frozenset({408, 409, 429, 500, 502, 503, 504})
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 60.0
"""Seconds. A server that asks for more is not asked again."""


class Upstream:
    """One model server.

    Args:
        config: where it is, and what goes with every request.
    """

    def __init__(self, config: OpenAIChatConfig) -> None:
        self._retries = config.max_retries
        self._pool = Pool(config)
        self._base = config.base_url
        self._headers = [("accept-encoding", "identity"), *config.network.headers.items()]
        self._key = config.api_key.get_secret_value() if config.api_key else None
        wait = config.network.timeout
        self._timeouts = {"connect": wait.connect, "read": wait.read, "write": wait.read, "pool": None}

    async def post(self, path: str, body: bytes, key: str | None = None) -> Any:
        """The JSON that the server answers with.

        Args:
            path: below the base URL.
            body: JSON.
            key: goes in the place of the configured one.

        Raises:
            openai.APIError: it refused, failed, or could not be reached.
        """
        request = self._request("POST", path, key, body)
        return await self._json(await self._answer(request), request)

    async def open(
        self, path: str, body: bytes, build: Callable[[Any], Any], key: str | None = None
    ) -> AsyncGenerator[Any]:
        """A stream of events, each built from its JSON; returns once the server has accepted the request.

        Whoever leaves it early, in whatever way, closes the connection, which stops the server's work.

        Raises:
            openai.APIError: the server refused, failed, or could not be reached; also while it streams.
            ValueError: while it streams: an event is not what it should be.
        """
        request = self._request("POST", path, key, body)
        response = await self._answer(request)
        if response.headers.get("content-type", "").startswith("application/json"):
            raise errors.of_frame(_error_in(await self._json(response, request)), request)
        events = _events(response, request, build)
        # A generator that was never begun runs no `finally`.
        weakref.finalize(events, _leave, response, asyncio.get_running_loop()).atexit = False
        return events

    async def models(self, key: str | None = None) -> list[str]:
        """The names of the models that the server has now.

        The host may ask in a loop that ends, so this connection is not kept.

        Raises:
            openai.APIError: it refused, failed, or could not be reached.
            ValueError: what it answers is no list of models.
        """
        request = self._request("GET", "/models", key)
        async with self._pool.another() as transport:
            answer = await self._json(await _checked(transport, request), request)
        try:
            return [str(model["id"]) for model in answer["data"]]
        except (KeyError, TypeError) as error:
            raise ValueError(f"What {request.url} answers is no list of models.") from error

    async def close(self) -> None:
        """Closes the connections that are kept."""
        await self._pool.close()

    def _request(self, method: str, path: str, key: str | None, body: bytes | None = None) -> httpx2.Request:
        headers = list(self._headers)
        if body is not None:
            headers.append(("content-type", "application/json"))
        if key or self._key:
            headers.append(("authorization", f"Bearer {key or self._key}"))
        return httpx2.Request(
            method, self._base + path, headers=headers, content=body, extensions={"timeout": self._timeouts}
        )

    async def _answer(self, request: httpx2.Request) -> httpx2.Response:
        for attempt in range(self._retries):
            try:
                return await _checked(self._pool.transport, request)
            except (openai.APIConnectionError, openai.APIStatusError) as error:
                pause = _pause(error, attempt)
                if pause is None:
                    raise
            await asyncio.sleep(pause)
        return await _checked(self._pool.transport, request)

    async def _json(self, response: httpx2.Response, request: httpx2.Request) -> Any:
        try:
            return loads(await response.aread())
        except httpx2.TransportError as error:
            raise errors.of_transport(error, request) from error
        finally:
            await response.aclose()


async def _checked(transport: httpx2.AsyncBaseTransport, request: httpx2.Request) -> httpx2.Response:
    """The response, if its status is good."""
    try:
        response = await _sent(transport, request)
        if response.status_code < 300:
            return response
        await response.aread()
        await response.aclose()
    except httpx2.TransportError as error:
        raise errors.of_transport(error, request) from error
    response.request = request
    raise errors.of_status(response)


async def _sent(transport: httpx2.AsyncBaseTransport, request: httpx2.Request) -> httpx2.Response:
    """The response, once its status line is there.

    A server drops connections that are idle for long. A request on one that was just being dropped is sent again,
    once: it was not read. On a new connection it may have been.
    """
    connected = False

    async def note(event: str, _: Any) -> None:
        nonlocal connected
        connected = connected or event.startswith("connection.connect")

    request.extensions["trace"] = note
    try:
        return await transport.handle_async_request(request)
    except (httpx2.ReadError, httpx2.WriteError, httpx2.RemoteProtocolError):
        if connected:
            raise
    return await transport.handle_async_request(request)


async def _events(
    response: httpx2.Response, request: httpx2.Request, build: Callable[[Any], Any]
) -> AsyncGenerator[Any]:
    splitter = FrameSplitter()
    pieces = _pieces(response)
    try:
        async for piece in pieces:
            for data in splitter.feed(piece):
                if data == _DONE:
                    await _drain(pieces)
                    return
                yield build(_checked_event(loads(data), request))
        for data in splitter.end():
            if data != _DONE:
                yield build(_checked_event(loads(data), request))
    except httpx2.TransportError as error:
        raise errors.of_transport(error, request) from error
    finally:
        await response.aclose()


def _pieces(response: httpx2.Response) -> AsyncIterator[bytes]:
    """The body as it comes; a server may compress it although it was asked not to."""
    if "content-encoding" in response.headers:
        return response.aiter_bytes()
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    return aiter(response.stream)


async def _drain(pieces: AsyncIterator[bytes]) -> None:
    """Reads a body to its end, if that is near."""
    try:
        async with asyncio.timeout(_DRAIN_SECONDS):
            async for _ in pieces:
                pass
    except (TimeoutError, httpx2.TransportError):
        return


def _checked_event(event: Any, request: httpx2.Request) -> Any:
    if isinstance(event, dict) and event.get("error"):
        raise errors.of_frame(event["error"], request)
    return event


def _error_in(body: Any) -> Any:
    """What to say of JSON that came in the place of a stream."""
    error = body.get("error") if isinstance(body, dict) else None
    return error or "it answered with JSON where a stream was asked for"


def _leave(response: httpx2.Response, loop: asyncio.AbstractEventLoop) -> None:
    if not response.is_closed and not loop.is_closed():
        loop.create_task(response.aclose())


def _pause(error: openai.APIError, attempt: int) -> float | None:
    """Seconds until a failed request is sent again; None if it is not."""
    pause: float = _FIRST_PAUSE * 2**attempt
    if isinstance(error, openai.APIStatusError):
        if error.status_code not in _RETRIED:
            return None
        pause = _retry_after(error.response.headers.get("retry-after", "")) or pause
    return pause if pause <= _LONGEST_PAUSE else None


def _retry_after(value: str) -> float | None:
    """The seconds that a header asks for, as a number or as a moment."""
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time())
    except ValueError:
        return None
