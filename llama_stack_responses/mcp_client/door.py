"""The way to one MCP server: what goes out and what comes back, with nothing secret where it might be logged.

The `mcp` package, and the HTTP library below it, write the addresses that they use to the log, and errors too. So they
get one that says only the host; the real one is put in here. And an answer that says that a request failed is made the
answer to that very request, where the package would else end the session, or forget to tell.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import orjson

from llama_stack_responses.fetch.guard import Refused
from llama_stack_responses.telemetry.trace_context import trace_headers

from .versions import http

Json = dict[str, Any]

HTTP_STATUS: Final = "http_status"
"""In the `data` of an error that is made here: the HTTP status that it stands for."""

_BESIDE: Final = "/-/"
_HIDDEN: Final = f"{_BESIDE}mcp"
_SERVER_ERROR: Final = -32000
_BAD_GATEWAY: Final = 502
_GATEWAY_TIMEOUT: Final = 504
_ERROR_BYTES: Final = 65_536
_EVENTS: Final = "text/event-stream"
_OF_TRANSFER: Final = frozenset({"content-length", "transfer-encoding"})
_JSON: Final = {"content-type": "application/json"}


class Failure(Exception):  # noqa: N818 (it is an answer as good as any)
    """A request that failed.

    Args:
        status: the HTTP status, or the one that a gateway would give.
        message: for the client and the model.
        error: what the server said of it, as JSON-RPC's `error`; None if it does not speak that.
    """

    def __init__(self, status: int, message: str, error: Json | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.error = error


class Door(http.AsyncBaseTransport):
    """An HTTP transport to one server.

    Args:
        inner: connects.
        url: the server's real address.
        max_bytes: size of one answer, at most.
        answers: whether a request is answered where it was sent to, and not on a stream of its own.
        failed: is told of a failure that cannot be the answer to a request: the session is at its end.
    """

    def __init__(
        self, inner: Any, url: str, max_bytes: int, *, answers: bool, failed: Callable[[Failure], None]
    ) -> None:
        self._inner = inner
        self._url = url
        self._max_bytes = max_bytes
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
        try:
            response = await self._inner.handle_async_request(self._addressed(request))
            try:
                return await self._answer(request, request_id, response)
            except BaseException:
                await response.aclose()
                raise
        except Failure as failure:
            return self._told(request, request_id, failure)
        except Refused as error:
            return self._told(request, request_id, Failure(_BAD_GATEWAY, str(error)))
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

    async def _answer(self, request: Any, request_id: Any, response: Any) -> Any:
        """The server's answer, as the package gets it.

        Raises:
            Failure: it is none.
        """
        await self._check(request, response)
        bounded = _Bounded(response.stream, self._max_bytes)
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if request_id is None or not self._answers or "location" in response.headers:
            response.stream = _Watched(bounded, self._failed)
        elif kind == _EVENTS:
            response.stream = _Answered(bounded, request_id)
        else:
            body = _checked(b"".join([chunk async for chunk in bounded]), request_id)
            await response.aclose()
            return http.Response(response.status_code, headers=_headers(response), content=body, request=request)
        return response

    async def _check(self, request: Any, response: Any) -> None:
        status = response.status_code
        if status >= http.codes.BAD_REQUEST:
            message = f"The server answered {status} {http.codes.get_reason_phrase(status)}".rstrip() + "."
            raise Failure(status, message, _error_in(await _start_of(response)))
        if response.headers.get("content-encoding", "identity") != "identity":
            raise Failure(_BAD_GATEWAY, "The server compressed its answer, which was not asked for.")
        if "location" in response.headers and not _stays(request, response, self._url):
            raise Failure(status, "The server redirects to another one. Use the address that it redirects to.")

    def _told(self, request: Any, request_id: Any, failure: Failure) -> Any:
        """The answer that says so to whoever waits for it."""
        if request.method != "POST":
            # The stream of an old server, without which there is no session; or one that nobody needs.
            return http.Response(405 if self._answers else failure.status, request=request)
        if not self._answers:
            self._failed(failure)
        if request_id is None or not self._answers:
            return http.Response(202, request=request)
        return http.Response(200, headers=_JSON, content=_error(request_id, failure), request=request)


class _Bounded(http.AsyncByteStream):
    """A body that fails where it grows too large, or ends too early."""

    def __init__(self, inner: Any, size: int) -> None:
        self._inner = inner
        self._left = size

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._inner:
                self._left -= len(chunk)
                if self._left < 0:
                    raise Failure(_BAD_GATEWAY, "The server's answer is larger than this server takes.")
                yield chunk
        except (http.TransportError, OSError) as error:
            message = f"The connection to the server broke ({type(error).__name__})."
            raise Failure(_BAD_GATEWAY, message) from error

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Watched(_Bounded):
    """A body whose failure is nobody's answer."""

    def __init__(self, inner: _Bounded, failed: Callable[[Failure], None]) -> None:
        self._inner = inner
        self._failed = failed

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._inner:
                yield chunk
        except Failure as failure:
            self._failed(failure)


class _Answered(_Bounded):
    """The events that answer a request: should they end without an answer, there is one that says so.

    One whose events have ids can be taken up again, which the package does by itself.
    """

    def __init__(self, inner: _Bounded, request_id: Any) -> None:
        self._inner = inner
        self._id = request_id

    async def __aiter__(self) -> AsyncIterator[bytes]:
        resumable = False
        failure = Failure(_BAD_GATEWAY, "The server did not answer.")
        try:
            async for chunk in self._inner:
                resumable = resumable or chunk.startswith(b"id:") or b"\nid:" in chunk
                yield chunk
        except Failure as error:
            failure = error
        if not resumable:
            yield b"\n\nevent: message\ndata: %b\n\n" % _error(self._id, failure)


async def _start_of(response: Any) -> bytes:
    said = b""
    async for chunk in response.stream:
        said += chunk
        if len(said) > _ERROR_BYTES:
            break
    return said


def _error_in(said: bytes) -> Json | None:
    """The error of a JSON-RPC answer."""
    try:
        answer = orjson.loads(said)
    except ValueError:
        return None
    error = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("code"), int):
        return None
    return {name: error[name] for name in ("code", "message", "data") if name in error}


async def _id_of(request: Any) -> Any:
    """The id of the JSON-RPC request that an HTTP request carries; None if nobody waits for an answer."""
    if request.method != "POST":
        return None
    return orjson.loads(await request.aread()).get("id")


def _unreached(error: Exception) -> Failure:
    if isinstance(error, http.TimeoutException):
        return Failure(_GATEWAY_TIMEOUT, "The server did not answer in time.")
    return Failure(_BAD_GATEWAY, f"The server could not be reached ({type(error).__name__}).")


def _error(request_id: Any, failure: Failure) -> bytes:
    """The JSON-RPC answer that says so."""
    error = {"code": _SERVER_ERROR, "message": failure.message, **(failure.error or {})}
    data = error.get("data")
    error["data"] = {**(data if isinstance(data, dict) else {}), HTTP_STATUS: failure.status}
    return orjson.dumps({"jsonrpc": "2.0", "id": request_id, "error": error})


def _checked(body: bytes, request_id: Any) -> bytes:
    """An answer in JSON, if it is one to this request: else the package would wait for another."""
    try:
        answer = orjson.loads(body)
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or answer.get("id") != request_id or not {"result", "error"} & answer.keys():
        raise Failure(_BAD_GATEWAY, "The server's answer is not what the protocol says.", _error_in(body))
    return body


def _headers(response: Any) -> list[tuple[str, str]]:
    """Those of an answer that was read: it is as long as it is."""
    return [(name, value) for name, value in response.headers.items() if name not in _OF_TRANSFER]


def _stays(request: Any, response: Any, url: str) -> bool:
    """Whether a redirect is one that the package follows: to the same server, with what was sent."""
    if request.method != "GET" and response.status_code not in (307, 308):
        return False
    old, new = urlsplit(url), urlsplit(urljoin(url, response.headers["location"]))
    return (new.scheme, new.netloc) == (old.scheme, old.netloc)
