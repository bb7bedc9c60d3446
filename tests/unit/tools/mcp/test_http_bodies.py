"""The `mcp` package receives complete events that it needs, and nothing else."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import orjson
import pytest

from llama_stack_responses.admission import Reservation
from llama_stack_responses.tools.mcp.failure import BrokenConnection, Failure
from llama_stack_responses.tools.mcp.http_bodies import AnswerEvents, Body, SessionEvents
from llama_stack_responses.tools.mcp.incoming_messages import IncomingLimits, IncomingMessages, LargeTexts
from llama_stack_responses.tools.mcp.versions import http
from tests.support.reservations import limited, unlimited

ANSWER = orjson.dumps({"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": "x" * 3_000}]}})
LIMITS = IncomingLimits(answer_bytes=10_000, answer_values=100, session_bytes=20_000)
LONG_SESSION = replace(LIMITS, session_bytes=10**6)


class Response:
    """An answer that arrives in chunks, and then optionally breaks off."""

    def __init__(self, chunks: Sequence[bytes], error: Exception | None = None) -> None:
        self.read = 0
        self._chunks = chunks
        self._error = error

    @property
    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the chunks."""
        for chunk in self._chunks:
            self.read += len(chunk)
            yield chunk
        if self._error:
            raise self._error

    async def aclose(self) -> None:
        """Do nothing: no connection is open."""


def body(response: Response, *, endpoint: bool = False, size: int = 10_000, held: Reservation | None = None) -> Body:
    incoming = IncomingMessages(LONG_SESSION if held else LIMITS, LargeTexts(), held or unlimited())
    incoming.expect(1)
    return Body(response, incoming, size, endpoint=endpoint)


async def test_unfinished_answer_counts_as_held_until_it_is_closed() -> None:
    """The first 64 KiB do not count."""
    held = limited(100_000)
    receiving = body(Response([b"x" * 30_000, b"x" * 60_000, b"x" * 50_000]), size=10**6, held=held)
    await receiving.read()
    assert held.units == 10_000, "no more than one answer counts"
    await receiving.aclose()
    assert held.units == 0


async def test_unfinished_answers_over_limit_of_user_fail() -> None:
    held = limited(5_000).add(1_000)
    receiving = body(Response([b"x" * 3_000] * 25), size=10**6, held=held)
    with pytest.raises(Failure, match="too many files, pages and running outputs"):
        await receiving.read()
    await receiving.aclose()
    assert held.units == 1_000


def failed(failure: Failure) -> bytes:
    return failure.message.encode()


async def pieces(response: Response) -> list[bytes]:
    return [piece async for piece in AnswerEvents(body(response), failed)]


def cut(text: bytes, size: int) -> list[bytes]:
    return [text[at : at + size] for at in range(0, len(text), size)]


@pytest.mark.parametrize("size", [1, 100, 10_000])
async def test_event_is_passed_in_one_piece(size: int) -> None:
    """The package would join a line in pieces anew for each piece."""
    stream = b": hello\n\ndata: " + ANSWER + b"\n\nevent: other\ndata: 1\n\n"
    first, last = await pieces(Response(cut(stream, size)))
    assert first == b"event: message\ndata: " + ANSWER + b"\n\n"
    assert b"did not answer" in last


async def test_endless_line_is_read_only_to_limit() -> None:
    response = Response([b"data: ", *[b"x" * 100] * 1_000])
    assert await pieces(response) == [
        b"event: message\ndata: The server's answer is larger than this server allows.\n\n"
    ]
    assert response.read <= 10_100


async def test_long_name_of_an_event_is_a_failure() -> None:
    assert await pieces(Response([b"event: " + b"x" * 2_000 + b"\n"])) == [
        b"event: message\ndata: The server's events have names or ids that are longer than this server allows.\n\n"
    ]


async def test_broken_resumable_stream_gives_no_answer() -> None:
    response = Response([b"id: 7\ndata:\n\n"], http.ReadError("broken"))
    assert await pieces(response) == [b"event: message\ndata: \nid: 7\n\n"]


async def test_stream_over_limit_is_not_resumed() -> None:
    found = await pieces(Response([b"id: 7\ndata:\n\n", b"data: " + b"x" * 20_000]))
    assert [b"larger than" in piece for piece in found] == [False, True]


@pytest.mark.parametrize(("endpoint", "count"), [(True, 1), (False, 0)])
async def test_endpoint_event_passes_once_on_older_transport_only(endpoint: bool, count: int) -> None:
    created = body(Response([b"event: endpoint\ndata: /m\n\n"] * 3), endpoint=endpoint)
    failures: list[Failure] = []
    assert len([piece async for piece in SessionEvents(created, failures.append)]) == count
    assert failures == []


async def test_broken_session_is_reported_once() -> None:
    failures: list[Failure] = []
    created = body(Response([], http.ReadError("broken")))
    assert [piece async for piece in SessionEvents(created, failures.append)] == []
    assert [type(each) for each in failures] == [BrokenConnection]


async def test_body_in_single_bytes_is_read_completely() -> None:
    assert await body(Response(cut(ANSWER, 1))).read() == ANSWER


async def test_answers_of_session_are_limited_together() -> None:
    created = body(Response([b"x" * 5_000] * 5), size=100_000)
    with pytest.raises(Failure, match="more in one session"):
        await created.read()
