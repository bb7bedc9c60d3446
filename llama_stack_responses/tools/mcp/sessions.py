"""Sessions with MCP servers: opened on demand, kept for one response, then closed."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from ...admission import Reservation
from ...concurrency.fair_yield import FairYield
from ...concurrency.offloading import in_thread_if_large
from ...core.json_blocks import blocks
from ...core.types import Json
from ...fetch.address_policy import AddressPolicy
from ...fetch.slices import receive_in_slices
from ...fetch.transport import SOCKET_OPTIONS, GuardedTransport
from ...items.mcp_approvals import Approval
from .failure import REFUSED, Failure
from .incoming_messages import IncomingLimits, IncomingMessages, LargeTexts
from .servers import Counted, McpAddress, McpError
from .transport import HTTP_STATUS, McpTransport
from .versions import RequestFailed, SdkSession, http, over_sse, over_streamable_http

_CLOSE_SECONDS: Final = 5.0
"""Seconds for telling a server that its session ends."""

_MAX_PAGES: Final = 32
_MAX_TOOLS: Final = 2_048
_MESSAGE_CHARACTERS: Final = 2_000
_SECRET_CHARACTERS: Final = 8
_INTERNAL_ERROR: Final = -32603
_NOT_FOUND: Final = 404
_NOT_THIS_TRANSPORT: Final = frozenset({400, 404, 405, 406, 415, 501})
"""HTTP statuses of a server that supports only the older SSE transport."""


def _uncounted(_: int, __: int) -> None:
    return


class Connectors(Protocol):
    """The MCP servers that the operator has named."""

    async def url(self, connector_id: str) -> str | None:
        """Return the URL of a connector; None if there is none of that id."""
        ...


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Limits on the cost of a server.

    Attributes:
        connect_seconds: time limit of the handshake, and again of listing all tools.
        incoming: limits on its messages in one session. The list of all its tools may be as large as one answer.
    """

    connect_seconds: float
    incoming: IncomingLimits


class McpClient:
    """A factory for sessions.

    Args:
        address_policy: policy for request addresses. It does not apply to connectors, which the operator configured.
        connectors: named servers.
        limits: limits for each server.
        reserve: returns an empty reservation of the current user, for what has arrived of unfinished answers.
        repeatable: patterns on `label/tool` of calls that the operator allows to be repeated.
        require_approval: whether calls need the client's approval if the request does not specify it.
    """

    def __init__(
        self,
        address_policy: AddressPolicy,
        connectors: Connectors,
        limits: SessionLimits,
        reserve: Callable[[], Reservation],
        repeatable: Sequence[str] = (),
        require_approval: Approval = "always",
    ) -> None:
        self.address_policy = address_policy
        self.connectors = connectors
        self.limits = limits
        self.reserve = reserve
        self.repeatable = repeatable
        self.require_approval = require_approval
        self._trust: ssl.SSLContext | None = None
        self._lines: set[asyncio.Task[None]] = set()
        self._fair_yield = FairYield()

    def session(self, address: McpAddress) -> McpClientSession:
        """Create a session for one response, not connected yet."""
        return McpClientSession(self, address)

    def transport(self, *, guarded: bool) -> Any:
        """Create an HTTP transport."""
        # Cached: creating it reads some hundred certificates.
        trust = self._trust = self._trust or http.create_ssl_context()

        def plain() -> Any:
            inner = http.AsyncHTTPTransport(verify=trust, socket_options=SOCKET_OPTIONS)
            return receive_in_slices(inner, self._fair_yield)

        return GuardedTransport(self.address_policy, plain) if guarded else plain()

    def keep(self, line: asyncio.Task[None]) -> None:
        """Keep a reference to a connection's task, which may outlive its response."""
        self._lines.add(line)
        line.add_done_callback(self._lines.discard)


class McpClientSession:
    """The session of one response: see `McpSession`.

    Args:
        servers: settings shared by all sessions.
        address: the server's address.
    """

    def __init__(self, servers: McpClient, address: McpAddress) -> None:
        self._servers = servers
        self._address = address
        self._line: _McpConnection | None = None

    async def list_tools(self, counted: Counted = _uncounted) -> list[Json]:
        """Return all tools of the server."""
        tools: list[Json] = []
        left = self._servers.limits.incoming.answer_bytes
        cursor: str | None = None
        try:
            async with asyncio.timeout(self._servers.limits.connect_seconds):
                for _ in range(_MAX_PAGES):
                    page, cursor = await self._ask(lambda server, at=cursor: server.list_page(at))  # type: ignore[misc]
                    tools += page
                    size = await in_thread_if_large(partial(_size, page), page)
                    left -= size
                    counted(len(page), size)
                    if len(tools) > _MAX_TOOLS or left < 0:
                        break
                    if cursor is None:
                        return tools
        except TimeoutError:
            raise _http_error(504, "The server did not answer in time.") from None
        raise _http_error(502, "The server lists more tools than this server allows.")

    async def call_tool(self, name: str, arguments: Json) -> Json:
        """Call a tool and return its result."""
        return await self._ask(lambda server: server.call(name, arguments))

    def release(self) -> None:
        """End the session in the background."""
        line, self._line = self._line, None
        if line:
            line.close()

    async def _ask[Answer](self, ask: Callable[[SdkSession], Awaitable[Answer]]) -> Answer:
        line = await self._connected()
        try:
            return await line.ask(ask)
        except McpError as error:
            if not (line.initialized and error.error["type"] == "http_error" and error.error["code"] == _NOT_FOUND):
                raise
        # The server has lost the session, so it did not process the request.
        self.release()
        return await (await self._connected()).ask(ask)

    async def _connected(self) -> _McpConnection:
        if self._line is None or self._line.broken:
            address = self._address
            url = address.url or await self._of_connector(address.connector_id or "")
            self._line = _McpConnection(self._servers, address, url)
            self._servers.keep(self._line.task)
        return self._line

    async def _of_connector(self, connector_id: str) -> str:
        url = await self._servers.connectors.url(connector_id)
        if url is None:
            raise _http_error(_NOT_FOUND, f"This stack has no connector '{connector_id}'.")
        return url


class _McpConnection:
    """A connection in its own task: the `mcp` package's contexts must be closed by the task that opened them."""

    def __init__(self, servers: McpClient, address: McpAddress, url: str) -> None:
        self._servers = servers
        self._address = address
        self._url = url
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[Any] = loop.create_future()
        self._end: asyncio.Future[Any] = loop.create_future()
        self._first: McpError | None = None
        self._texts = LargeTexts()
        self._held = servers.reserve()
        self.task = asyncio.create_task(self._live())
        self.task.add_done_callback(lambda _: self._held.release())

    @property
    def initialized(self) -> bool:
        """Whether the handshake has succeeded."""
        return self._ready.done()

    @property
    def broken(self) -> bool:
        """Whether no further request is possible."""
        return self._end.done()

    def close(self) -> None:
        """End the connection."""
        self._ended(None)
        asyncio.get_running_loop().call_later(_CLOSE_SECONDS, self.task.cancel)

    async def ask[Answer](self, ask: Callable[[SdkSession], Awaitable[Answer]]) -> Answer:
        """Send a request to the server.

        Raises:
            McpError: it did not answer, or answered with an error.
        """
        await self._until_initialized()
        asking: asyncio.Future[Any] = asyncio.ensure_future(self._answered(ask))
        try:
            await asyncio.wait([asking, self._end], return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                answer: Answer = asking.result()
                return await in_thread_if_large(partial(self._texts.restore_large, answer), answer)
        finally:
            asking.cancel()
        raise self._end.result() or _http_error(502, "The session has ended.")

    async def _answered[Answer](self, ask: Callable[[SdkSession], Awaitable[Answer]]) -> Answer:
        try:
            return await ask(self._ready.result())
        except RequestFailed as error:
            raise self._error_of(error) from error
        except RuntimeError as error:
            raise self._protocol_error(_INTERNAL_ERROR, str(error)) from error
        except ValueError as error:
            message = "The server's answer does not follow the protocol."
            raise self._protocol_error(_INTERNAL_ERROR, message) from error

    async def _until_initialized(self) -> None:
        seconds = self._servers.limits.connect_seconds
        await asyncio.wait([self._ready, self._end], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if self._ready.done():
            return
        if not self._end.done():
            self._ended(_http_error(504, f"The server did not answer within {seconds:g} seconds."))
            self.task.cancel()
        raise self._end.result() or _http_error(502, "The session has ended.")

    async def _live(self) -> None:
        for over in (over_streamable_http, over_sse):
            try:
                async with self._open(over) as server:
                    if not self._ready.done():
                        self._ready.set_result(server)
                    await asyncio.wait([self._end])
            except Exception as error:  # noqa: BLE001 (the package raises many types, also in groups)
                reason = self._reason(error)
                self._first = reason if self._first is None or _is_refusal(reason) else self._first
            if self._first is None or self._ready.done() or self._end.done() or not _may_be_old(self._first):
                break
        self._ended(self._first or _http_error(502, "The server ended the session."))

    def _open(
        self, over: Callable[[str, http.AsyncClient], AbstractAsyncContextManager[SdkSession]]
    ) -> AbstractAsyncContextManager[SdkSession]:
        limits = self._servers.limits
        inner = self._servers.transport(guarded=self._address.connector_id is None)
        answers = over is over_streamable_http
        incoming = IncomingMessages(limits.incoming, self._texts, self._held)
        transport = McpTransport(inner, self._url, incoming, answers=answers, failed=self._failed)
        client = http.AsyncClient(
            transport=transport,
            headers={"accept-encoding": "identity", **self._address.headers},
            timeout=http.Timeout(limits.connect_seconds, read=None),
            trust_env=False,
        )
        return over(transport.public_url, client)

    def _failed(self, failure: Failure) -> None:
        """Handle a connection failure that the package does not report."""
        self._ended(self._http_error(failure.status, failure.message))
        self.task.cancel()

    def _ended(self, error: McpError | None) -> None:
        if not self._end.done():
            self._end.set_result(error)

    def _reason(self, error: Exception) -> McpError:
        """Return why a connection could not be opened, or broke."""
        if failed := _failed_request(error):
            return self._error_of(failed)
        return self._protocol_error(_INTERNAL_ERROR, "The server's version of MCP is not supported.")

    def _error_of(self, error: RequestFailed) -> McpError:
        """Convert a failed request to the error of an item."""
        details = error.error
        status = details.data.get(HTTP_STATUS) if isinstance(details.data, dict) else None
        if status is not None:
            return self._http_error(status, details.message)
        return self._protocol_error(details.code, details.message)

    def _http_error(self, status: int, message: str) -> McpError:
        return _http_error(status, self._clean(message))

    def _protocol_error(self, code: int, message: str) -> McpError:
        return McpError({"type": "mcp_protocol_error", "code": code, "message": self._clean(message)})

    def _clean(self, message: str) -> str:
        """Remove secrets from a server's message, which may quote what it was sent."""
        for value in self._address.headers.values():
            for secret in (value, value.rpartition(" ")[2]):
                if len(secret) >= _SECRET_CHARACTERS:
                    message = message.replace(secret, "***")
        return message[:_MESSAGE_CHARACTERS]


def _size(page: list[Json]) -> int:
    """Return the bytes of a list of tools as JSON."""
    return sum(map(len, blocks(page)))


def _http_error(status: int, message: str) -> McpError:
    return McpError({"type": "http_error", "code": status, "message": message})


def _may_be_old(error: McpError) -> bool:
    return error.error["type"] == "http_error" and error.error["code"] in _NOT_THIS_TRANSPORT


def _is_refusal(error: McpError) -> bool:
    """Whether the server rejects the credentials: more useful to report than that it lacks the other transport."""
    return error.error["type"] == "http_error" and error.error["code"] in REFUSED


def _failed_request(error: BaseException) -> RequestFailed | None:
    """Find the failed request in an exception of the package, or in a group."""
    if isinstance(error, RequestFailed):
        return error
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return next(filter(None, map(_failed_request, inner)), None)
