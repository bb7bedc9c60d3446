"""A server that sends many small chunks does not hold the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from ipaddress import ip_network
from typing import Any, Final

import httpx
import httpx2
import pytest

from llama_stack_responses.concurrency.fair_yield import FairYield
from llama_stack_responses.fetch.address_policy import AddressPolicy
from llama_stack_responses.fetch.fetcher import Fetcher, FetchLimits
from llama_stack_responses.fetch.slices import LINES_PER_SLICE, SlicedStream, receive_in_slices
from llama_stack_responses.tools.mcp.incoming_messages import IncomingLimits
from llama_stack_responses.tools.mcp.sessions import McpClient, SessionLimits
from llama_stack_responses.tools.mcp.versions import http
from tests.support.reservations import unlimited

READ: Final = 65_536
HEAD: Final = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
CHUNKS: Final = 10_000
SMALL: Final = HEAD + b"1\r\nx\r\n" * CHUNKS + b"0\r\n\r\n"
INTERIM: Final = b"HTTP/1.1 103 Early Hints\r\n\r\n"
FEWEST: Final = 2 * CHUNKS / LINES_PER_SLICE
"""Iterations of the event loop: one for each slice."""
HERE: Final = (ip_network("127.0.0.0/8"),)
LIBRARIES: Final = pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])


class ReceivedStream:
    """A network stream of httpcore that has received these bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def read(self, max_bytes: int, _: float | None = None) -> bytes:
        data, self._data = self._data[:max_bytes], self._data[max_bytes:]
        return data


@pytest.mark.parametrize(
    "data",
    [b"", b"a line\n", b"1\r\nx\r\n" * CHUNKS, b"x" * 3 * READ, (b"x" * 99 + b"\n") * CHUNKS],
    ids=["empty", "line", "chunks", "one line", "lines"],
)
async def test_slices_are_the_whole_data_with_few_lines_each(data: bytes) -> None:
    stream = SlicedStream(ReceivedStream(data), FairYield())
    slices = []
    while piece := await stream.read(READ):
        slices.append(piece)
    assert b"".join(slices) == data
    assert all(piece.count(b"\n") <= LINES_PER_SLICE and len(piece) <= READ for piece in slices)


async def test_slice_has_at_most_the_requested_bytes() -> None:
    stream = SlicedStream(ReceivedStream(b"a line\n" * 1_000), FairYield())
    assert await stream.read(READ) == b"a line\n" * LINES_PER_SLICE
    assert await stream.read(3) == b"a l"


@LIBRARIES
async def test_others_continue_while_small_chunks_are_parsed(library: Any) -> None:
    transport = receive_in_slices(library.AsyncHTTPTransport(), FairYield())
    async with serving(SMALL) as url, library.AsyncClient(transport=transport, trust_env=False) as client:
        iterations, answer = await counted(client.get(url))
    assert answer.text == "x" * CHUNKS
    assert iterations > FEWEST


async def test_others_continue_while_interim_answers_are_parsed() -> None:
    transport = receive_in_slices(httpx.AsyncHTTPTransport(), FairYield())
    async with serving(INTERIM * CHUNKS + SMALL) as url, httpx.AsyncClient(transport=transport) as client:
        iterations, answer = await counted(client.get(url))
    assert answer.text == "x" * CHUNKS
    assert iterations > 2 * FEWEST


async def test_fetched_file_in_small_chunks_is_parsed_in_slices() -> None:
    async with serving(SMALL) as url:
        fetching = Fetcher(AddressPolicy(HERE), FetchLimits(size=CHUNKS, seconds=60.0, redirects=0)).get(url, uncounted)
        iterations, fetched = await counted(fetching)
    assert fetched.body == b"x" * CHUNKS
    assert iterations > FEWEST


@pytest.mark.parametrize("guarded", [True, False], ids=["server", "connector"])
async def test_answer_of_mcp_server_in_small_chunks_is_parsed_in_slices(guarded: bool) -> None:
    limits = SessionLimits(60.0, IncomingLimits(CHUNKS, CHUNKS, CHUNKS))
    transport = McpClient(AddressPolicy(HERE), NoConnectors(), limits, unlimited).transport(guarded=guarded)
    async with serving(SMALL) as url, http.AsyncClient(transport=transport) as client:
        iterations, answer = await counted(client.get(url))
    assert answer.text == "x" * CHUNKS
    assert iterations > FEWEST


class NoConnectors:
    """The connectors of a stack that has none."""

    async def url(self, connector_id: str) -> str | None:
        return None


def uncounted(size: int) -> None:
    """Count nothing."""


async def counted[T](awaitable: Awaitable[T]) -> tuple[int, T]:
    """Return how many iterations the event loop made meanwhile, and the result."""
    task, iterations = asyncio.ensure_future(awaitable), 0
    while not task.done():
        await asyncio.sleep(0)
        iterations += 1
    return iterations, task.result()


@asynccontextmanager
async def serving(answer: bytes) -> AsyncIterator[str]:
    """Serve this answer to one request, and yield the URL."""
    sent = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await sent.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        sent.set()
