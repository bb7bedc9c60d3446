"""The way to one MCP server: what goes out and what comes back, with nothing secret where it might be logged.

The `mcp` package, and the HTTP library below it, write the addresses that they use to the log, and errors too. So they
get one that says only the host; the real one is put in here. And an answer that says that a request failed is made the
answer to that very request, where the package would else end the session, or forget to tell.

What a server sends is read, bounded and judged here (`incoming.py`). The package gets answers that are made anew: a few
headers, and of a stream one piece for each event that it needs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import orjson

from llama_stack_responses.fetch.address_policy import Refused
from llama_stack_responses.telemetry.trace_context import trace_headers

from .answers import AnswerEvents, Body, SessionEvents
from .failure import BAD_GATEWAY, GATEWAY_TIMEOUT, REFUSED, Broken, Failure, no_protocol, too_large
from .incoming import Incoming, error_in
from .versions import http

Json = dict[str, Any]

HTTP_STATUS: Final = "http_status"
"""In the `data` of an error that is made here: the HTTP status that it stands for."""

_CREDENTIALS: Final = "Send credentials that it takes, in the 'authorization' or the 'headers' of the MCP tool."
_BESIDE: Final = "/-/"
_HIDDEN: Final = f"{_BESIDE}mcp"
_SERVER_ERROR: Final = -32000
_ERROR_BYTES: Final = 65_536
_EVENTS: Final = "text/event-stream"
_JSON: Final = {"content-type": "application/json"}
_HEADER_BYTES: Final = {"location": 8_192, "mcp-session-id": 1_024, "set-cookie": 4_096}
"""The headers that the package reads, and their sizes, at most."""

_RESUMED: Final = "last-event-id"
_VISIBLE: Final = re.compile("[!-~]+")
"""What an address is made of, and a session's id.

Source: https://modelcontextprotocol.io/specification/2025-06-18/basic/transports, "Session Management".
"""

_MOST_STREAMS: Final = 100
"""How often a session's stream may be asked for, at first and after it broke."""


class Door(http.AsyncBaseTransport):
    """An HTTP transport to one server.

    Args:
        inner: connects.
        url: the server's real address.
        incoming: bounds what comes.
        answers: whether a request is answered where it was sent to, and not on a stream of its own.
        failed: is told of a failure that cannot be the answer to a request: the session is at its end.
    """

    def __init__(
        self, inner: Any, url: str, incoming: Incoming, *, answers: bool, failed: Callable[[Failure], None]
    ) -> None:
        self._inner = inner
        self._url = url
        self._incoming = incoming
        self._streams = _MOST_STREAMS
        self._answers = answers
        self._failed = failed

    @property
    def shown_url(self) -> str:
        """The address for those who may log it."""
        parts = urlsplit(self._url)
        return f"{parts.scheme}://{parts.netloc}{_HIDDEN}"

    async def handle_async_request(self, request: Any) -> Any:
        """Sends a request, and makes its failure an answer that the package understands."""
        for name, value in trace_headers().items():
            request.headers.setdefault(name, value)
        request_id = await _id_of(request)
        if request_id is not None:
            self._incoming.expect(request_id)
        try:
            return await self._asked(request, request_id)
        except Failure as failure:
            return self._told(request, request_id, failure)
        except Refused as error:
            return self._told(request, request_id, Failure(BAD_GATEWAY, str(error)))
        except (http.TransportError, OSError) as error:
            return self._told(request, request_id, _unreached(error))

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._inner.aclose()

    def _addressed(self, request: Any) -> Any:
        """The request as it goes to the real address; those that the server gave are as they are, or beside it."""
        path: str = request.url.path
        if path == _HIDDEN:
            url = self._url
        elif path.startswith(_BESIDE):
            query = request.url.query.decode("ascii")
            url = urljoin(self._url, path.removeprefix(_BESIDE) + (f"?{query}" if query else ""))
        else:
            return request
        return http.Request(
            request.method, url, headers=request.headers, stream=request.stream, extensions=request.extensions
        )

    async def _asked(self, request: Any, request_id: Any) -> Any:
        if request.method == "GET":
            self._streams -= 1
            if self._streams < 0:
                raise self._ended_too_often(request)
        response = await self._inner.handle_async_request(self._addressed(request))
        try:
            return await self._answer(request, request_id, response)
        except BaseException:
            await response.aclose()
            raise

    async def _answer(self, request: Any, request_id: Any, response: Any) -> Any:
        """The server's answer, as the package gets it.

        Raises:
            Failure: it is none.
        """
        await self._check(request, response)
        headers = _headers(response)
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        waited_for = self._answers and request_id is not None
        if "location" in response.headers or (request.method != "GET" and not waited_for):
            await response.aclose()
            return http.Response(response.status_code, headers=headers, request=request)
        if request.method == "GET":
            return await self._stream(request, response, kind)
        body = Body(response, self._incoming, self._incoming.limits.answer_bytes)
        if kind == _EVENTS:
            stream = AnswerEvents(body, lambda failure: self._error(request_id, failure))
            return _events(request, response, headers, stream)
        content = await self._incoming.answer(await body.read(), request_id)
        await response.aclose()
        return http.Response(response.status_code, headers=[*headers, *_JSON.items()], content=content, request=request)

    def _ended_too_often(self, request: Any) -> Failure:
        failure = Failure(BAD_GATEWAY, "The server has ended its streams of events too often.")
        if _RESUMED in request.headers:
            # The answer to a request may have been in it, which would be waited for.
            self._failed(failure)
        return failure

    def _broke(self, failure: Failure) -> None:
        """A stream of the session failed. The package opens a broken one again, except for that of an old server."""
        if not (self._answers and isinstance(failure, Broken)):
            self._failed(failure)

    async def _stream(self, request: Any, response: Any, kind: str) -> Any:
        """A stream of the whole session."""
        if kind != _EVENTS:
            raise no_protocol()
        size = self._incoming.limits.session_bytes
        body = Body(response, self._incoming, size, endpoint=not self._answers)
        return _events(request, response, _headers(response), SessionEvents(body, self._broke))

    def _error(self, request_id: Any, failure: Failure) -> bytes:
        self._incoming.answered(request_id)
        return _error(request_id, failure)

    async def _check(self, request: Any, response: Any) -> None:
        status = response.status_code
        if status >= http.codes.BAD_REQUEST:
            message = f"The server answered {status} {http.codes.get_reason_phrase(status)}".rstrip() + "."
            if status in REFUSED:
                raise Failure(status, f"{message} {_CREDENTIALS}")
            raise Failure(status, message, _error_in(await _start_of(response)))
        if response.headers.get("content-encoding", "identity") != "identity":
            raise Failure(BAD_GATEWAY, "The server compressed its answer, which was not asked for.")
        if "location" in response.headers and not _stays(request, response, self._url):
            raise Failure(status, "The server redirects to another one. Use the address that it redirects to.")

    def _told(self, request: Any, request_id: Any, failure: Failure) -> Any:
        """The answer that says so to whoever waits for it."""
        if not self._answers and failure.status in REFUSED:
            self._failed(failure)
        if request.method != "POST":
            # The stream of an old server, without which there is no session; or one that nobody needs.
            return http.Response(405 if self._answers else failure.status, request=request)
        if not self._answers:
            self._failed(failure)
        if request_id is None or not self._answers:
            return http.Response(202, request=request)
        return http.Response(200, headers=_JSON, content=self._error(request_id, failure), request=request)


async def _start_of(response: Any) -> bytes:
    said = bytearray()
    async for chunk in response.stream:
        said += chunk
        if len(said) > _ERROR_BYTES:
            break
    return bytes(said)


def _error_in(said: bytes) -> Json | None:
    """The error of a JSON-RPC answer."""
    try:
        return error_in(orjson.loads(said))
    except ValueError:
        return None


async def _id_of(request: Any) -> Any:
    """The id of the JSON-RPC request that an HTTP request carries; None if nobody waits for an answer."""
    if request.method != "POST":
        return None
    message = orjson.loads(await request.aread())
    return message.get("id") if "method" in message else None


def _unreached(error: Exception) -> Failure:
    if isinstance(error, http.TimeoutException):
        return Failure(GATEWAY_TIMEOUT, "The server did not answer in time.")
    return Failure(BAD_GATEWAY, f"The server could not be reached ({type(error).__name__}).")


def _error(request_id: Any, failure: Failure) -> bytes:
    """The JSON-RPC answer that says so."""
    error = {"code": _SERVER_ERROR, "message": failure.message, **(failure.error or {})}
    return orjson.dumps({"jsonrpc": "2.0", "id": request_id, "error": {**error, "data": {HTTP_STATUS: failure.status}}})


def _events(request: Any, response: Any, headers: list[tuple[str, str]], stream: http.AsyncByteStream) -> Any:
    headers = [*headers, ("content-type", _EVENTS)]
    return http.Response(response.status_code, headers=headers, stream=stream, request=request)


def _headers(response: Any) -> list[tuple[str, str]]:
    """The headers that the package reads.

    Raises:
        Failure: one of them is too large, or has characters that it cannot have.
    """
    kept = [(name, value) for name, value in response.headers.multi_items() if name in _HEADER_BYTES]
    sizes = dict.fromkeys(_HEADER_BYTES, 0)
    for name, value in kept:
        sizes[name] += len(value)
        if sizes[name] > _HEADER_BYTES[name]:
            raise too_large()
        if name == "mcp-session-id" and not _VISIBLE.fullmatch(value):
            raise no_protocol()
    return kept


def _stays(request: Any, response: Any, url: str) -> bool:
    """Whether a redirect is one that the package follows: to the same server, with what was sent."""
    if request.method != "GET" and response.status_code not in (307, 308):
        return False
    location = response.headers["location"]
    try:
        old, new = http.URL(url), http.URL(url).join(location)
    except (ValueError, http.InvalidURL):
        return False
    return bool(_VISIBLE.fullmatch(location)) and (new.scheme, new.netloc) == (old.scheme, old.netloc)
