"""Requests to one model server."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from time import time
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2
import openai
from opentelemetry import propagate

from . import errors
from .body import loads
from .config import OpenAIChatConfig, check_header
from .connection import Connection
from .events import EventReader
from .pool import Pool

ROOT: Final = "//"
"""What a path begins with that stands beside the `/v1` of the base URL."""

_LONGEST_ANSWER: Final = 1 << 26
LONGEST_VECTORS: Final = 1 << 28
_LONGEST_REFUSAL: Final = 1 << 20
"""Bytes of a body that is read as one."""
_DRAIN_SECONDS: Final = 0.2
"""How long the end of a body may take to come after `[DONE]`, so that its connection can be kept."""

_RETRIED: Final = frozenset({408, 409, 429, 500, 502, 503, 504})
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 60.0
"""Seconds. A server that asks for more is not asked again."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request without what it says, which may be long and is needed no more once the server has begun to answer."""

    method: str
    url: str

    def shown(self) -> httpx2.Request:
        """What errors have of it, which is not the key."""
        return httpx2.Request(self.method, self.url)


class Upstream:
    """One model server.

    Args:
        config: where it is, and what goes with every request.
        pool: the connections to it.
    """

    def __init__(self, config: OpenAIChatConfig, pool: Pool) -> None:
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
        # A key takes the place of it.
        self._authorization = headers.pop("authorization", None)
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in headers.items())

    async def post(
        self,
        path: str,
        body: bytes,
        key: str | None = None,
        build: Callable[[dict[str, Any]], Any] = dict,
        most: int = _LONGEST_ANSWER,
    ) -> Any:
        """What is built from the JSON object that the server answers with.

        Args:
            path: below the base URL, or with `ROOT` before it, beside its `/v1`.
            body: JSON.
            key: goes in the place of the configured one.
            build: a KeyError, a TypeError or a ValueError of it says that the answer is not what it should be.
            most: bytes of the answer, at most.

        Raises:
            openai.APIError: it refused, failed, could not be reached, or answers with something else.
        """
        asked, data = self._asked("POST", path, key, body)
        answer = _object(await self._rest(await self._answer(asked, data), asked, most), asked)
        _refuse_error(answer, asked)
        try:
            return build(answer)
        except (KeyError, TypeError, ValueError) as error:
            raise errors.no_answer(asked.shown(), "it answers with something else than it was asked for") from error

    async def open(
        self, path: str, body: bytes, build: Callable[[Any], Any], key: str | None = None
    ) -> AsyncGenerator[Any]:
        """A stream of events, each built from its JSON; returns once the server has accepted the request.

        Whoever leaves it early, in whatever way, closes the connection, which stops the server's work.

        Raises:
            openai.APIError: the server refused, failed, or could not be reached; also while it streams.
            ValueError: while it streams: an event is not what it should be.
        """
        asked, data = self._asked("POST", path, key, body)
        connection = await self._answer(asked, data)
        assert connection.head
        kind = connection.head.header(b"content-type").lower()
        if kind.startswith((b"application/json", b"text/html")):
            answer = _object(await self._rest(connection, asked), asked)
            _refuse_error(answer, asked)
            raise errors.no_answer(asked.shown(), "it answers with JSON where a stream was asked for")
        events = self._events(connection, asked, build)
        # A generator that was never begun runs no `finally`.
        weakref.finalize(events, _abandon, connection, connection.head).atexit = False
        return events

    async def models(self, key: str | None = None) -> dict[str, int | None]:
        """The names of the models that the server has now, each with the tokens of its context, if it says so.

        The host may ask in a loop that ends, so this connection is not kept.

        Raises:
            openai.APIError: it refused, failed, could not be reached, or answers with something else.
        """
        asked, data = self._asked("GET", "/models", key)
        try:
            connection = await self._pool.connect()
            try:
                await connection.ask(data)
                await self._check(connection, asked)
                answer = _object(await connection.read_all(_LONGEST_ANSWER), asked)
            finally:
                connection.close()
            return {str(model["id"]): _context_length(model) for model in answer["data"]}
        except OSError as error:
            raise errors.of_connection(error, asked.shown()) from error
        except (AttributeError, KeyError, TypeError) as error:
            raise errors.no_answer(asked.shown(), f"what {asked.url} answers is no list of models") from error

    async def close(self) -> None:
        """Closes the connections that nobody uses."""
        self._pool.close()

    def _asked(self, method: str, path: str, key: str | None, body: bytes = b"") -> tuple[_Asked, bytes]:
        """A request, and its bytes."""
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
        return _Asked(method, base + path), head.encode() + b"\r\n" + body

    async def _answer(self, asked: _Asked, data: bytes) -> Connection:
        """The connection on which a good response has begun."""
        for attempt in range(self._retries):
            try:
                return await self._attempt(asked, data)
            except (openai.APIConnectionError, openai.APIStatusError) as error:
                pause = _pause(error, attempt)
                if pause is None:
                    raise
            await asyncio.sleep(pause)
        return await self._attempt(asked, data)

    async def _attempt(self, asked: _Asked, data: bytes) -> Connection:
        try:
            connection = await self._sent(data)
            await self._check(connection, asked)
        except OSError as error:
            raise errors.of_connection(error, asked.shown()) from error
        return connection

    async def _sent(self, data: bytes) -> Connection:
        """The connection on which the response to a request has begun.

        A server drops connections that are idle for long. A request on one that was just being dropped is sent again,
        once: it was not read. On a new connection it may have been.
        """
        if connection := self._pool.reuse():
            try:
                await _ask(connection, data)
                return connection
            except ConnectionError:
                if connection.heard:
                    raise
        connection = await self._pool.connect()
        await _ask(connection, data)
        return connection

    async def _check(self, connection: Connection, asked: _Asked) -> None:
        """Raises what the server says if it refuses."""
        head = connection.head
        assert head
        if 300 <= head.status < 400:
            self._pool.keep(connection)
            to = head.header(b"location").decode(errors="replace").partition("?")[0] or "another address"
            raise errors.no_answer(asked.shown(), f"it redirects to {to}; 'base_url' has to be the address in the end")
        if head.status >= 300:
            raise errors.of_status(asked.shown(), head, await self._rest(connection, asked, _LONGEST_REFUSAL))

    async def _rest(self, connection: Connection, asked: _Asked, most: int = _LONGEST_ANSWER) -> bytes:
        """The whole body of a response, whose connection is free after that."""
        try:
            return await connection.read_all(most)
        except OSError as error:
            raise errors.of_connection(error, asked.shown()) from error
        finally:
            self._pool.keep(connection)

    async def _events(self, connection: Connection, asked: _Asked, build: Callable[[Any], Any]) -> AsyncGenerator[Any]:
        reader = EventReader(build, asked.shown)
        try:
            piece = None
            while piece != b"" and not reader.done:
                piece = await connection.read()
                for event in reader.read(piece):
                    yield event
            if reader.done:
                await _drain(connection)
        except OSError as error:
            raise errors.of_connection(error, asked.shown()) from error
        finally:
            self._pool.keep(connection)


async def _ask(connection: Connection, data: bytes) -> None:
    """Sends a request; whoever leaves before the response has begun closes the connection."""
    try:
        await connection.ask(data)
    except BaseException:
        connection.close()
        raise


async def _drain(connection: Connection) -> None:
    """Reads a body to its end, if that is near."""
    try:
        async with asyncio.timeout(_DRAIN_SECONDS):
            await connection.read_all(_LONGEST_REFUSAL)
    except OSError:
        return


def _object(content: bytes, asked: _Asked) -> dict[str, Any]:
    """The JSON object that a body is."""
    try:
        answer = loads(content)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise errors.no_answer(asked.shown(), "it answers with something that is no JSON object")
    return answer


def _refuse_error(answer: dict[str, Any], asked: _Asked) -> None:
    """Raises what an answer says went wrong."""
    if answer.get("error"):
        raise errors.of_answer(asked.shown(), answer["error"])


def _abandon(connection: Connection, head: object) -> None:
    """Closes the connection of a stream that nobody has, unless it serves another one by now."""
    if connection.head is head and connection.busy:
        connection.close()


def _trace_headers() -> dict[str, str]:
    """What has the server's work belong to the caller's trace."""
    headers: dict[str, str] = {}
    propagate.inject(headers)
    return headers


def _context_length(model: Any) -> int | None:
    """The context of a listed model, as vLLM and SGLang (`max_model_len`) or OpenRouter and others say it."""
    length = model.get("max_model_len") or model.get("context_length")
    return length if isinstance(length, int) and length > 0 else None


def _pause(error: openai.APIError, attempt: int) -> float | None:
    """Seconds until a failed request is sent again; None if it is not."""
    pause: float = _FIRST_PAUSE * 2**attempt
    if isinstance(error, openai.APIStatusError):
        if error.status_code not in _RETRIED or isinstance(error, errors.NoAnswerError):
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
