"""Requests to one model server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2
import openai
from opentelemetry import propagate

from . import errors
from .config import OpenAIChatConfig, check_header
from .connection import Connection
from .events import EventReader
from .json_encoding import loads_few
from .pool import Pool
from .retries import seconds_before_retry
from .stream import Delivery, EventStream

ROOT: Final = "//"
"""The prefix of paths that are siblings of the base URL's `/v1`."""

_ANSWER_BYTES: Final = 1 << 26
VECTORS_BYTES: Final = 1 << 28
_MAX_VALUES: Final = 1 << 20
"""Maximum values of a body, except one with vectors: twenty alternatives to each of some thousand tokens."""
_REFUSAL_BYTES: Final = 1 << 20
"""Maximum size of a body that is read as a whole, in bytes."""
_DRAIN_SECONDS: Final = 0.2
"""Time limit for the end of a body after `[DONE]`, so that its connection can be reused."""


@dataclass(frozen=True, slots=True)
class _Request:
    """A request without its body, which may be large and is not needed once the response has begun."""

    method: str
    url: str

    def without_key(self) -> httpx2.Request:
        """Return the request for use in errors, without the key."""
        return httpx2.Request(self.method, self.url)


type _Data = tuple[bytes, bytes | bytearray]
"""The head of a request, and its body."""


class Upstream:
    """A client of one model server.

    Args:
        config: address, and settings of every request.
        pool: connections.
        drain_seconds: time limit for reading the rest of a body, so that its connection can be reused.
    """

    def __init__(self, config: OpenAIChatConfig, pool: Pool, drain_seconds: float = _DRAIN_SECONDS) -> None:
        self._drain_seconds = drain_seconds
        self._retries = config.max_retries
        self._pool = pool
        self._base = config.base_url
        self._key = config.api_key.get_secret_value() if config.api_key else None
        address = urlsplit(config.base_url)
        self._target = f"{self._pool.prefix}{address.path}"
        headers = {"host": address.netloc, "accept-encoding": "identity", "user-agent": "llama-stack-openai-chat"}
        headers |= {name.lower(): value for name, value in config.network.headers.items()}
        if self._pool.proxy_authorization:
            headers["proxy-authorization"] = self._pool.proxy_authorization
        # A key overrides it.
        self._authorization = headers.pop("authorization", None)
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in headers.items())

    async def post(
        self,
        path: str,
        body: bytes | bytearray,
        key: str | None = None,
        build: Callable[[dict[str, Any]], Any] = dict,
        max_bytes: int = _ANSWER_BYTES,
    ) -> Any:
        """Send a request and build the result from the JSON object in the answer.

        Args:
            path: path below the base URL or, with the prefix `ROOT`, next to its `/v1`.
            body: JSON.
            key: overrides the configured key.
            build: builds the result; raises KeyError, TypeError or ValueError if the answer is invalid.
            max_bytes: maximum size of the answer, in bytes.

        Raises:
            openai.APIError: the request was refused, failed, or has an invalid answer.
        """
        request, data = self._request("POST", path, key, body)
        connection = await self._answer(request, data)
        head = connection.head
        assert head
        content = await self._rest(connection, request, max_bytes)
        answer = _object(content, _MAX_VALUES if max_bytes <= _ANSWER_BYTES else VECTORS_BYTES)
        if answer is None:
            raise errors.unexpected(request.without_key(), head, "a JSON object")
        _refuse_error(answer, request)
        try:
            return build(answer)
        except (KeyError, TypeError, ValueError) as error:
            message = f"The model server's answer to {request.url} has other fields than it should: check 'base_url'."
            raise errors.no_answer(request.without_key(), message) from error

    async def open_stream(
        self, path: str, body: bytes | bytearray, build: Callable[[Any], Any], key: str | None = None
    ) -> EventStream:
        """Open a stream; return the built events once the server has accepted the request.

        Leaving the stream early in any way closes the connection, which stops the server's work.

        Raises:
            openai.APIError: the request was refused or failed; also raised while streaming.
            ValueError: raised while streaming: an event is invalid.
        """
        request, data = self._request("POST", path, key, body)
        connection = await self._answer(request, data)
        head = connection.head
        assert head
        reader = EventReader(build, request.without_key)
        delivery = Delivery(reader)
        begun = b""
        if head.header(b"content-type").lower().startswith((b"application/json", b"text/html")):
            begun = await self._beginning(connection, request)
            if not begun.lstrip().startswith((b"data", b"event", b":", b"id")):
                return self._whole(connection, request, build, begun + await self._rest(connection, request))
        head.drop_headers()
        return EventStream(self._events(connection, request, reader, delivery, begun), delivery, connection)

    async def _beginning(self, connection: Connection, request: _Request) -> bytes:
        """Return the first bytes of a body, with something that is not whitespace if there is anything."""
        begun = b""
        try:
            while len(begun) < _REFUSAL_BYTES and (piece := await connection.read()):
                begun += piece
                if piece.strip():
                    break
        except OSError as error:
            self._pool.release(connection)
            raise errors.from_connection(error, request.without_key()) from error
        except asyncio.CancelledError:
            self._pool.release(connection)
            raise
        return begun

    def _whole(
        self, connection: Connection, request: _Request, build: Callable[[Any], Any], content: bytes
    ) -> EventStream:
        """Return the stream of a body that is a whole answer.

        Raises:
            openai.APIError: it is an error, or anything else.
        """
        answer, head = _object(content) or {}, connection.head
        assert head
        _refuse_error(answer, request)
        if not answer.get("choices"):
            raise errors.unexpected(request.without_key(), head, "an event stream")
        try:
            only = build(answer)
        except ValueError as error:
            raise errors.unexpected(request.without_key(), head, "an event stream") from error
        return EventStream(_one(only), Delivery(EventReader(build, request.without_key)), connection)

    async def models(self, key: str | None = None) -> dict[str, int | None]:
        """Return the server's models by name, with their context length in tokens, if known.

        The host may call this in an event loop that ends, so the connection is not pooled.

        Raises:
            openai.APIError: the request was refused, failed, or has an invalid answer.
        """
        request, data = self._request("GET", "/models", key)
        try:
            connection = await self._pool.connect()
            try:
                await connection.ask(*data)
                await self._check(connection, request)
                answer = _object(await connection.read_all(_ANSWER_BYTES)) or {}
            finally:
                connection.close()
            return {str(model["id"]): _context_length(model) for model in answer["data"]}
        except OSError as error:
            raise errors.from_connection(error, request.without_key()) from error
        except (AttributeError, KeyError, TypeError) as error:
            assert connection.head
            raise errors.unexpected(request.without_key(), connection.head, "a list of models") from error

    async def close(self) -> None:
        """Close the idle connections."""
        self._pool.close()

    def _request(
        self, method: str, path: str, key: str | None, body: bytes | bytearray = b""
    ) -> tuple[_Request, _Data]:
        """Return a request and its encoding."""
        key = key or self._key
        base, target = self._base, self._target
        if path.startswith(ROOT):
            path = path[1:]
            base, target = base.removesuffix("/v1"), target.removesuffix("/v1")
        head = f"{method} {target}{path} HTTP/1.1\r\n{self._headers}"
        authorization = f"Bearer {check_header(key)}" if key else self._authorization
        if authorization:
            head += f"authorization: {authorization}\r\n"
        for name, value in _trace_headers().items():
            head += f"{name}: {check_header(value)}\r\n"
        if method == "POST":
            head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        return _Request(method, base + path), (head.encode() + b"\r\n", body)

    async def _answer(self, request: _Request, data: _Data) -> Connection:
        """Send a request with retries; return the connection after the head of a successful response."""
        for attempt in range(self._retries):
            try:
                return await self._attempt(request, data)
            except (openai.APIConnectionError, openai.APIStatusError) as error:
                pause = seconds_before_retry(error, attempt)
                if pause is None:
                    raise
            await asyncio.sleep(pause)
        return await self._attempt(request, data)

    async def _attempt(self, request: _Request, data: _Data) -> Connection:
        try:
            connection = await self._sent(data)
            await self._check(connection, request)
        except OSError as error:
            raise errors.from_connection(error, request.without_key()) from error
        return connection

    async def _sent(self, data: _Data) -> Connection:
        """Send a request; return the connection after the head of the response.

        Servers close idle connections. A request on a reused connection that breaks without a response is sent again,
        once, since it was not read. On a new connection it may have been read.
        """
        if connection := self._pool.reuse():
            try:
                await _ask(connection, data)
                return connection
            except ConnectionError:
                if connection.received:
                    raise
        connection = await self._pool.connect()
        await _ask(connection, data)
        return connection

    async def _check(self, connection: Connection, request: _Request) -> None:
        """Raise the server's error if the response has an error status."""
        head = connection.head
        assert head
        if 300 <= head.status < 400:
            self._pool.release(connection)
            to = head.header(b"location").decode(errors="replace").partition("?")[0] or "another address"
            message = f"The model server redirects to {to}: set 'base_url' to the final address."
            raise errors.no_answer(request.without_key(), message)
        if head.status >= 300:
            raise errors.from_status(request.without_key(), head, await self._rest(connection, request, _REFUSAL_BYTES))

    async def _rest(self, connection: Connection, request: _Request, max_bytes: int = _ANSWER_BYTES) -> bytes:
        """Read the whole body of a response and return its connection to the pool."""
        try:
            return await connection.read_all(max_bytes)
        except OSError as error:
            raise errors.from_connection(error, request.without_key()) from error
        finally:
            self._pool.release(connection)

    async def _events(
        self, connection: Connection, request: _Request, reader: EventReader, delivery: Delivery, begun: bytes = b""
    ) -> AsyncGenerator[Any]:
        """Yield the events that are not pushed; `begun` is what was read of the body."""
        try:
            ended = False
            if begun:
                delivery.feed(begun)
                while left := delivery.left():
                    yield left[0]
                    delivery.advance()
            while not (ended or reader.done):
                if ended := await connection.deliver(delivery.feed):
                    delivery.feed(b"")
                while left := delivery.left():
                    yield left[0]
                    delivery.advance()
            if reader.done:
                await _drain(connection, self._drain_seconds)
            else:
                _check_end(reader, connection)
        except OSError as error:
            raise errors.from_connection(error, request.without_key()) from error
        finally:
            self._pool.release(connection)


def _check_end(reader: EventReader, connection: Connection) -> None:
    """Raise ConnectionResetError if a stream without `[DONE]` may have been cut off."""
    if reader.is_cut or connection.ends_unmarked:
        raise ConnectionResetError("the connection may have ended before the answer")


async def _one(event: Any) -> AsyncGenerator[Any]:
    """Yield one event."""
    yield event


async def _ask(connection: Connection, data: _Data) -> None:
    """Send a request; on any exception before the head of the response, close the connection."""
    try:
        await connection.ask(*data)
    except BaseException:
        connection.close()
        raise


async def _drain(connection: Connection, seconds: float) -> None:
    """Read a body to its end, within a short time limit."""
    try:
        async with asyncio.timeout(seconds):
            await connection.read_all(_REFUSAL_BYTES)
    except OSError:
        return


def _object(content: bytes, values: int = _MAX_VALUES) -> dict[str, Any] | None:
    """Decode a body; return None if it is not a JSON object of at most this many values."""
    try:
        answer = loads_few(content, values)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _refuse_error(answer: dict[str, Any], request: _Request) -> None:
    """Raise the error in an answer, if there is one."""
    if error := errors.reported(answer):
        raise errors.from_answer(request.without_key(), error)


def _trace_headers() -> dict[str, str]:
    """Return the headers that propagate the caller's trace context."""
    headers: dict[str, str] = {}
    propagate.inject(headers)
    return headers


def _context_length(model: Any) -> int | None:
    """Return a listed model's context length (vLLM and SGLang: `max_model_len`, others: `context_length`)."""
    length = model.get("max_model_len") or model.get("context_length")
    return length if isinstance(length, int) and length > 0 else None
