"""The way to one MCP server: what goes out and what comes back, with nothing secret where it might be logged.

The `mcp` package, and the HTTP library below it, write the addresses that they use to the log, and errors too. So they
get one that says only the host; the real one is put in here. And an answer that says that a request failed is made the
answer to that very request, where the package would else end the session, or forget to tell.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import orjson

from llama_stack_responses.fetch.guard import Refused

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


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request failed.

    Attributes:
        status: the HTTP status, or the one that a gateway would give.
        message: for the client and the model.
        error: what the server said of it, as JSON-RPC's `error`; None if it does not speak that.
    """

    status: int
    message: str
    error: Json | None = None


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
        try:
            response = await self._inner.handle_async_request(self._addressed(request))
        except Refused as error:
            return self._told(request, Failure(_BAD_GATEWAY, str(error)))
        except http.TimeoutException:
            return self._told(request, Failure(_GATEWAY_TIMEOUT, "The server did not answer in time."))
        except (http.TransportError, OSError) as error:
            message = f"The server could not be reached ({type(error).__name__})."
            return self._told(request, Failure(_BAD_GATEWAY, message))
        if failure := await self._failure_of(request, response):
            await response.aclose()
            return self._told(request, failure)
        response.stream = _Bounded(response.stream, self._max_bytes, self._failed)
        return response

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

    async def _failure_of(self, request: Any, response: Any) -> Failure | None:
        status = response.status_code
        if status >= http.codes.BAD_REQUEST:
            reason = http.codes.get_reason_phrase(status)
            message = f"The server answered {status} {reason}".rstrip() + "."
            return Failure(status, message, _error_in(await _start_of(response)))
        if response.headers.get("content-encoding", "identity") != "identity":
            return Failure(_BAD_GATEWAY, "The server compressed its answer, which was not asked for.")
        if "location" in response.headers and not _stays(request, response, self._url):
            return Failure(status, "The server redirects to another one. Use the address that it redirects to.")
        return None

    def _told(self, request: Any, failure: Failure) -> Any:
        """The answer that says so to whoever waits for it."""
        if not self._answers:
            self._failed(failure)
            return http.Response(202 if request.method == "POST" else failure.status, request=request)
        request_id = _id_of(request)
        if request_id is None:
            # Nobody waits for these: a note to the server, its own stream, the end of the session.
            return http.Response(202 if request.method == "POST" else 405, request=request)
        error = {"code": _SERVER_ERROR, "message": failure.message, **(failure.error or {})}
        data = error.get("data")
        error["data"] = {**(data if isinstance(data, dict) else {}), HTTP_STATUS: failure.status}
        body = {"jsonrpc": "2.0", "id": request_id, "error": error}
        headers = {"content-type": "application/json"}
        return http.Response(200, headers=headers, content=orjson.dumps(body), request=request)


class _Bounded(http.AsyncByteStream):
    """A body that ends with an error where it grows too large."""

    def __init__(self, inner: Any, size: int, failed: Callable[[Failure], None]) -> None:
        self._inner = inner
        self._left = size
        self._failed = failed

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._inner:
                self._left -= len(chunk)
                if self._left < 0:
                    raise http.ReadError("The server's answer is larger than this server takes.")
                yield chunk
        except http.TransportError as error:
            # The package does not tell those who wait.
            large = self._left < 0
            message = str(error) if large else f"The connection to the server broke ({type(error).__name__})."
            self._failed(Failure(_BAD_GATEWAY, message))
            raise

    async def aclose(self) -> None:
        await self._inner.aclose()


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


def _id_of(request: Any) -> Any:
    """The id of the JSON-RPC request that an HTTP request carries; None if nobody waits for an answer."""
    if request.method != "POST":
        return None
    return orjson.loads(request.content).get("id")


def _stays(request: Any, response: Any, url: str) -> bool:
    """Whether a redirect is one that the package follows: to the same server, with what was sent."""
    if request.method != "GET" and response.status_code not in (307, 308):
        return False
    old, new = urlsplit(url), urlsplit(urljoin(url, response.headers["location"]))
    return (new.scheme, new.netloc) == (old.scheme, old.netloc)
