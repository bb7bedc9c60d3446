"""Support for both major versions of the `mcp` package: llama-stack requires the first, OGX the second.

They differ in the HTTP library, the client class, and how a failed request is raised.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, Protocol

from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from ...core.types import Json
from ...logs import leave_out
from ...telemetry.trace_context import trace_headers

_FIRST: Final = version("mcp").startswith("1.")

if TYPE_CHECKING or _FIRST:
    import httpx as http
    from mcp import ClientSession, types
    from mcp import McpError as RequestFailed
    from mcp.types import Implementation
else:
    import httpx2 as http
    from mcp import Client
    from mcp import MCPError as RequestFailed
    from mcp_types import Implementation

_UNBOUNDED: Final[Json] = {} if _FIRST else {"max_sse_event_size": None}
"""Disables the second version's own limit on event sizes, since events are limited before."""

_WHO: Final = Implementation(name="llama-stack-responses", version="1")

for _message in ("Error parsing JSON response", "Error parsing SSE message"):
    # The package logs a traceback if an answer arrives while its session ends.
    leave_out(streamable_http_client.__module__, _message)

__all__ = ["RequestFailed", "SdkSession", "http", "over_sse", "over_streamable_http"]


class SdkSession(Protocol):
    """An initialized session with a server."""

    async def list_page(self, cursor: str | None) -> tuple[list[Json], str | None]:
        """Return one page of its tools, and the cursor of the next page."""
        ...

    async def call(self, name: str, arguments: Json) -> Json:
        """Call a tool and return its result."""
        ...


@asynccontextmanager
async def over_streamable_http(url: str, client: http.AsyncClient) -> AsyncIterator[SdkSession]:
    """Open a session over the current transport (Streamable HTTP)."""
    async with client, _initialized(streamable_http_client(url, http_client=client, **_UNBOUNDED)) as session:
        yield session


@asynccontextmanager
async def over_sse(url: str, client: http.AsyncClient) -> AsyncIterator[SdkSession]:
    """Open a session over the older transport (HTTP with SSE)."""

    def client_factory(*_: Any, **__: Any) -> http.AsyncClient:
        return client

    async with _initialized(sse_client(url, httpx_client_factory=client_factory)) as session:
        yield session


if TYPE_CHECKING or _FIRST:

    @asynccontextmanager
    async def _initialized(transport: Any) -> AsyncIterator[SdkSession]:
        async with (
            transport as (incoming, outgoing, *_),
            ClientSession(incoming, outgoing, client_info=_WHO) as session,
        ):
            await session.initialize()
            yield _First(session)

    class _First:
        """A session of the first version."""

        def __init__(self, session: ClientSession) -> None:
            self._session = session

        async def list_page(self, cursor: str | None) -> tuple[list[Json], str | None]:
            params = types.PaginatedRequestParams(cursor=cursor)
            page = await self._session.list_tools(params=params)
            return [_json(tool) for tool in page.tools], page.nextCursor

        async def call(self, name: str, arguments: Json) -> Json:
            # Not `call_tool`, which would request the list of tools again to validate the result.
            # The second version propagates the trace context itself.
            meta = types.RequestParams.Meta(**trace_headers())
            params = types.CallToolRequestParams(name=name, arguments=arguments, _meta=meta)
            request = types.ClientRequest(types.CallToolRequest(params=params))
            return _json(await self._session.send_request(request, types.CallToolResult))

else:

    @asynccontextmanager
    async def _initialized(transport: Any) -> AsyncIterator[SdkSession]:
        async with Client(transport, cache=None, client_info=_WHO) as client:
            # By default the client requests all tools and validates the result against the server's schema, in the
            # event loop. The schema may contain expensive patterns and remote references.
            client.session.validate_tool_result = _no_check
            yield _Second(client)

    async def _no_check(name: str, result: Any) -> None:
        """Accept any result."""

    class _Second:
        """A session of the second version."""

        def __init__(self, client: Any) -> None:
            self._client = client

        async def list_page(self, cursor: str | None) -> tuple[list[Json], str | None]:
            page = await self._client.list_tools(cursor=cursor)
            return [_json(tool) for tool in page.tools], page.next_cursor

        async def call(self, name: str, arguments: Json) -> Json:
            return _json(await self._client.call_tool(name, arguments))


def _json(model: Any) -> Json:
    dumped: Json = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    return dumped
