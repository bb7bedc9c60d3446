"""The HTTP transport to one MCP server. It keeps secrets out of logs and limits what the server sends.

The `mcp` package and its HTTP library log the URLs that they use, also in errors. So they get a URL with only the host,
and the transport inserts the real one. HTTP errors are converted into a JSON-RPC error for the request that caused
them: the package would otherwise end the session or drop the error.

Everything that a server sends is size-limited and checked here (`incoming_messages.py`). The package gets rebuilt
answers: a few headers, and one chunk for each event that it needs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import orjson

from ...core.types import Json
from ...fetch.address_policy import UrlRefused
from ...telemetry.trace_context import trace_headers
from .failure import BAD_GATEWAY, GATEWAY_TIMEOUT, REFUSED, BrokenConnection, Failure, no_protocol, too_large
from .http_bodies import AnswerEvents, Body, SessionEvents
from .incoming_messages import IncomingMessages, error_in
from .versions import http

HTTP_STATUS: Final = "http_status"
"""The key in an error's `data` for the HTTP status that the error was built from."""

_CREDENTIALS: Final = "Send valid credentials in the 'authorization' or the 'headers' of the MCP tool."
_RELATIVE: Final = "/-/"
_HIDDEN: Final = f"{_RELATIVE}mcp"
_SERVER_ERROR: Final = -32000
_ERROR_BYTES: Final = 65_536
_EVENTS: Final = "text/event-stream"
_JSON: Final = {"content-type": "application/json"}
_HEADER_BYTES: Final = {"location": 8_192, "mcp-session-id": 1_024, "set-cookie": 4_096}
"""The headers that the package reads, and their maximum sizes."""

_RESUMED: Final = "last-event-id"
_VISIBLE: Final = re.compile("[!-~]+")
"""The characters of a URL and of a session id.

Source: https://modelcontextprotocol.io/specification/2025-06-18/basic/transports, "Session Management".
"""

_MAX_STREAMS: Final = 100
"""How often a session's stream may be opened, including reconnections."""


class McpTransport(http.AsyncBaseTransport):
    """An HTTP transport to one server.

    Args:
        inner: the transport that connects.
        url: the server's real URL.
        incoming: checks incoming messages.
        answers: whether answers come in the response to the request, and not on a separate stream.
        failed: called with a failure that cannot be the answer to a request; it ends the session.
    """

    def __init__(
        self, inner: Any, url: str, incoming: IncomingMessages, *, answers: bool, failed: Callable[[Failure], None]
    ) -> None:
        self._inner = inner
        self._url = url
        self._incoming = incoming
        self._streams = _MAX_STREAMS
        self._answers = answers
        self._failed = failed

    @property
    def public_url(self) -> str:
        """The URL without secrets, for use in logs."""
        parts = urlsplit(self._url)
        return f"{parts.scheme}://{parts.netloc}{_HIDDEN}"

    async def handle_async_request(self, request: Any) -> Any:
        """Send a request; convert a failure to an answer that the package understands."""
        for name, value in trace_headers().items():
            request.headers.setdefault(name, value)
        request_id = await _id_of(request)
        if request_id is not None:
            self._incoming.expect(request_id)
        try:
            return await self._send(request, request_id)
        except Failure as failure:
            return self._failure_answer(request, request_id, failure)
        except UrlRefused as error:
            return self._failure_answer(request, request_id, Failure(BAD_GATEWAY, str(error)))
        except (http.TransportError, OSError) as error:
            return self._failure_answer(request, request_id, _unreached(error))

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()

    def _addressed(self, request: Any) -> Any:
        """Replace the placeholder URL with the real one, or resolve against it. URLs from the server stay unchanged."""
        path: str = request.url.path
        if path == _HIDDEN:
            url = self._url
        elif path.startswith(_RELATIVE):
            query = request.url.query.decode("ascii")
            url = urljoin(self._url, path.removeprefix(_RELATIVE) + (f"?{query}" if query else ""))
        else:
            return request
        return http.Request(
            request.method, url, headers=request.headers, stream=request.stream, extensions=request.extensions
        )

    async def _send(self, request: Any, request_id: Any) -> Any:
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
        """Check the server's answer and rebuild it for the package.

        Raises:
            Failure: it is not a valid answer.
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
        try:
            content = await self._incoming.answer(await body.read(), request_id)
        finally:
            await body.aclose()
        return http.Response(response.status_code, headers=[*headers, *_JSON.items()], content=content, request=request)

    def _ended_too_often(self, request: Any) -> Failure:
        failure = Failure(BAD_GATEWAY, "The server has closed its event streams too often.")
        if _RESUMED in request.headers:
            # The stream may have carried the answer to a request, which would be waited for.
            self._failed(failure)
        return failure

    def _broke(self, failure: Failure) -> None:
        """Handle a failed stream of the session. The package reopens a broken one, except with the older transport."""
        if not (self._answers and isinstance(failure, BrokenConnection)):
            self._failed(failure)

    async def _stream(self, request: Any, response: Any, kind: str) -> Any:
        """Return the event stream of the session."""
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
            raise Failure(BAD_GATEWAY, "The server compressed its answer, which was not requested.")
        if "location" in response.headers and not _stays(request, response, self._url):
            raise Failure(status, "The server redirects to another one. Use the address that it redirects to.")

    def _failure_answer(self, request: Any, request_id: Any, failure: Failure) -> Any:
        """Return the answer that reports a failure to the request's sender."""
        if not self._answers and failure.status in REFUSED:
            self._failed(failure)
        if request.method != "POST":
            # For the older transport, the session's required stream; otherwise an optional one.
            return http.Response(405 if self._answers else failure.status, request=request)
        if not self._answers:
            self._failed(failure)
        if request_id is None or not self._answers:
            return http.Response(202, request=request)
        return http.Response(200, headers=_JSON, content=self._error(request_id, failure), request=request)


async def _start_of(response: Any) -> bytes:
    content = bytearray()
    async for chunk in response.stream:
        content += chunk
        if len(content) > _ERROR_BYTES:
            break
    return bytes(content)


def _error_in(content: bytes) -> Json | None:
    """Return the error of a JSON-RPC answer, if it is one."""
    try:
        return error_in(orjson.loads(content))
    except ValueError:
        return None


async def _id_of(request: Any) -> Any:
    """Return the id of the JSON-RPC request in an HTTP request; None if it expects no answer."""
    if request.method != "POST":
        return None
    message = orjson.loads(await request.aread())
    return message.get("id") if "method" in message else None


def _unreached(error: Exception) -> Failure:
    if isinstance(error, http.TimeoutException):
        return Failure(GATEWAY_TIMEOUT, "The server did not answer in time.")
    return Failure(BAD_GATEWAY, f"The server could not be reached ({type(error).__name__}).")


def _error(request_id: Any, failure: Failure) -> bytes:
    """Return the JSON-RPC answer that reports a failure."""
    error = {"code": _SERVER_ERROR, "message": failure.message, **(failure.error or {})}
    return orjson.dumps({"jsonrpc": "2.0", "id": request_id, "error": {**error, "data": {HTTP_STATUS: failure.status}}})


def _events(request: Any, response: Any, headers: list[tuple[str, str]], stream: http.AsyncByteStream) -> Any:
    headers = [*headers, ("content-type", _EVENTS)]
    return http.Response(response.status_code, headers=headers, stream=stream, request=request)


def _headers(response: Any) -> list[tuple[str, str]]:
    """Return the headers that the package reads.

    Raises:
        Failure: one of them is too large, or has invalid characters.
    """
    headers = [(name, value) for name, value in response.headers.multi_items() if name in _HEADER_BYTES]
    sizes = dict.fromkeys(_HEADER_BYTES, 0)
    for name, value in headers:
        sizes[name] += len(value)
        if sizes[name] > _HEADER_BYTES[name]:
            raise too_large()
        if name == "mcp-session-id" and not _VISIBLE.fullmatch(value):
            raise no_protocol()
    return headers


def _stays(request: Any, response: Any, url: str) -> bool:
    """Whether the package may follow a redirect: to the same server, and with the same method and body."""
    if request.method != "GET" and response.status_code not in (307, 308):
        return False
    location = response.headers["location"]
    try:
        old, new = http.URL(url), http.URL(url).join(location)
    except (ValueError, http.InvalidURL):
        return False
    return bool(_VISIBLE.fullmatch(location)) and (new.scheme, new.netloc) == (old.scheme, old.netloc)
