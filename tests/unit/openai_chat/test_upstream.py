"""Requests to valid and faulty model servers, on real sockets with every byte under the test's control."""

import asyncio
import gc
import gzip
import socket
import ssl
import struct
import weakref
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import Context, ContextVar
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest

from llama_stack_openai_chat import pool
from llama_stack_openai_chat.config import OpenAIChatConfig
from llama_stack_openai_chat.connection import Connection
from llama_stack_openai_chat.pool import Pool
from llama_stack_openai_chat.stream import EventStream, Receive
from llama_stack_openai_chat.upstream import Upstream
from tests.support.certificates import Certificates
from tests.support.clock import LoopClock
from tests.support.http_server import DONE, END, OPENING, HttpServer, Peer, event, in_chunk, serving, whole
from tests.support.memory import no_garbage_collection
from tests.support.process import free_port
from tests.support.waiting import turns, until

type Json = dict[str, Any]

CHAT = "/chat/completions"
SECONDS = 60.0


async def streams(peer: Peer) -> None:
    """Answer every request with a stream of two events."""
    while True:
        await peer.request()
        await peer.send(OPENING + event({"n": 1}) + event({"n": 2}) + DONE + END)


async def hangs(peer: Peer) -> None:
    """Send one event and no more."""
    await peer.request()
    await peer.send(OPENING + event({"n": 1}))
    await peer.left()


class Wire(asyncio.Transport):
    """A stand-in for a socket whose bytes arrive when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.written = asyncio.Event()
        self._paused = self._closed = False

    def write(self, _: bytes | bytearray | memoryview) -> None:
        """Note that a request was sent."""
        self.written.set()

    def pause_reading(self) -> None:
        """Note that the reader is behind."""
        self._paused = True

    def is_reading(self) -> bool:
        """Return whether reading is not paused."""
        return not self._paused

    def abort(self) -> None:
        """Note that the client closed the connection."""
        self._closed = True

    def is_closing(self) -> bool:
        """Return whether the client closed the connection."""
        return self._closed


def client_of(config: OpenAIChatConfig, drain_seconds: float = 0.2) -> Upstream:
    """Return a client with a separate connection pool."""
    return Upstream(config, Pool(config), drain_seconds)


@asynccontextmanager
async def upstream(server: HttpServer, drain_seconds: float = 0.2, **config: Any) -> AsyncIterator[Upstream]:
    """Yield a client of this server."""
    client = client_of(OpenAIChatConfig(base_url=server.url, **config), drain_seconds)
    try:
        yield client
    finally:
        await client.close()


async def opened(client: Upstream, body: bytes = b"{}", key: str | None = None) -> AsyncGenerator[Any]:
    """Return a stream of the server's events, unchanged."""
    return await client.open_stream(CHAT, body, lambda raw: raw, key)


async def read(client: Upstream, key: str | None = None) -> list[Any]:
    """Return all events of a stream."""
    return [each async for each in await opened(client, key=key)]


async def over(server: HttpServer, count: int = 1) -> None:
    """Wait until this many connections are closed."""
    async with asyncio.timeout(SECONDS):
        await server.until_left(count)


BOTH = [{"n": 1}, {"n": 2}]


# -- connections -------------------------------------------------------------------


async def test_streams_reuse_connection() -> None:
    async with serving(streams) as server, upstream(server) as client:
        assert [await read(client) for _ in range(3)] == [BOTH] * 3
        assert [seen.connection for seen in server.requests] == [1, 1, 1]
        await client.close()
        await over(server)


async def test_body_end_may_follow_last_event_later() -> None:
    async def late(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(OPENING + event({"n": 1}) + DONE)
            await asyncio.sleep(0.02)
            await peer.send(END)

    async with serving(late) as server, upstream(server, drain_seconds=SECONDS) as client:
        assert [await read(client) for _ in range(2)] == [[{"n": 1}]] * 2
        assert server.connections == 1


async def test_body_without_end_does_not_block_stream() -> None:
    async def endless(peer: Peer) -> None:
        await peer.request()
        await peer.send(OPENING + event({"n": 1}) + DONE)
        await peer.left()

    async with serving(endless) as server, upstream(server) as client, asyncio.timeout(SECONDS):
        assert await read(client) == [{"n": 1}]
        await over(server)


async def test_connection_closed_by_server_is_not_reused() -> None:
    async def once(peer: Peer) -> None:
        await peer.request()
        await peer.send(OPENING + event({"n": 1}) + DONE + END)

    async with serving(once) as server, upstream(server) as client:
        for number in range(3):
            assert await read(client) == [{"n": 1}]
            await over(server, number + 1)


async def test_request_on_closing_connection_is_retried() -> None:
    async def drops_the_second(peer: Peer) -> None:
        await peer.request()
        await peer.send(OPENING + event({"n": 1}) + DONE + END)
        await peer.request()

    async with serving(drops_the_second) as server, upstream(server) as client:
        assert [await read(client) for _ in range(2)] == [[{"n": 1}]] * 2
        assert [seen.connection for seen in server.requests] == [1, 1, 2]


async def test_request_on_new_connection_is_not_retried() -> None:
    async def drops(peer: Peer) -> None:
        await peer.request()

    async with serving(drops) as server, upstream(server) as client:
        with pytest.raises(openai.APIConnectionError):
            await opened(client)
        assert len(server.requests) == 1


async def test_begun_answer_is_not_retried() -> None:
    async def breaks_the_second(peer: Peer) -> None:
        await peer.request()
        await peer.send(OPENING + event({"n": 1}) + DONE + END)
        await peer.request()
        await peer.send(OPENING + event({"n": 1}))

    async with serving(breaks_the_second) as server, upstream(server) as client:
        await read(client)
        with pytest.raises(openai.APIConnectionError):
            await read(client)
        assert len(server.requests) == 2


def test_client_works_in_several_event_loops() -> None:
    """The host starts up in another event loop than the one that serves."""
    port = free_port()
    client = client_of(OpenAIChatConfig(base_url=f"http://127.0.0.1:{port}/v1"))

    async def once() -> None:
        async with serving(streams, port=port):
            assert await read(client) == BOTH
            await client.close()

    for _ in range(2):
        asyncio.run(once())


async def test_concurrent_streams_reuse_pooled_connections() -> None:
    async with serving(streams) as server, upstream(server) as client:
        assert await asyncio.gather(*(read(client) for _ in range(20))) == [BOTH] * 20
        opened_for_them = server.connections
        assert await asyncio.gather(*(read(client) for _ in range(20))) == [BOTH] * 20
        assert server.connections == opened_for_them


async def test_idle_connections_are_closed() -> None:
    async with serving(streams) as server, upstream(server, network={"idle_seconds": 0.05}) as client:
        await asyncio.gather(*(read(client) for _ in range(3)))
        await over(server, server.connections)
        assert await read(client) == BOTH


async def test_few_idle_connections_are_kept_after_many_requests_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_MAX_IDLE", 2)
    async with serving(streams) as server, upstream(server) as client:
        await asyncio.gather(*(read(client) for _ in range(5)))
        await over(server, server.connections - 2)
        before = server.connections
        await asyncio.gather(*(read(client) for _ in range(2)))
        assert server.connections == before


async def test_connection_with_unsolicited_data_is_not_reused() -> None:
    async def babbles(peer: Peer) -> None:
        await peer.request()
        await peer.send(OPENING + event({"n": 1}) + DONE + END)
        await asyncio.sleep(0.02)
        await peer.send(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n")
        await peer.left()

    async with serving(babbles) as server, upstream(server) as client:
        await read(client)
        await over(server)
        assert await read(client) == [{"n": 1}]


async def test_informational_responses_are_skipped() -> None:
    async def announces(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        await peer.send(b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" + OPENING + event({"n": 1}) + DONE + END)

    async with serving(announces) as server, upstream(server) as client:
        assert await read(client) == [{"n": 1}]


async def test_slow_reader_applies_backpressure_to_server() -> None:
    size, sent = 1 << 19, 0

    async def floods(peer: Peer) -> None:
        nonlocal sent
        await peer.request()
        await peer.send(OPENING)
        for _ in range(64):
            await peer.send(event("x" * size))
            sent += 1
        await peer.send(DONE + END)

    async with serving(floods) as server, upstream(server) as client:
        stream = await opened(client)
        await asyncio.sleep(0.2)
        assert sent < 32
        assert len([each async for each in stream]) == 64


async def test_large_body_is_sent_without_copy_and_small_one_with_head(monkeypatch: pytest.MonkeyPatch) -> None:
    connection, wire = Connection(SECONDS), Wire()
    connection.connection_made(wire)
    written: list[Any] = []
    monkeypatch.setattr(wire, "write", written.append)
    body = bytearray(1 << 20)
    for each in (b"{}", body):
        asking = asyncio.create_task(connection.ask(b"head", each))
        await asyncio.sleep(0)
        asking.cancel()
    assert written[:2] == [b"head{}", b"head"]
    assert written[2] is body


async def test_connection_with_paused_reading_is_not_reused() -> None:
    connection, wire = Connection(SECONDS), Wire()
    connection.connection_made(wire)
    pending = asyncio.create_task(connection.ask(b"GET / HTTP/1.1\r\n\r\n"))
    await wire.written.wait()
    connection.data_received(OPENING + in_chunk(b"x" * (1 << 20)) + END)
    assert (await pending).status == 200
    assert not wire.is_reading()
    assert not connection.finish()
    assert wire.is_closing()


@pytest.mark.parametrize("more", [whole(404, {"n": 2}), b"no HTTP", END])
async def test_data_after_answer_is_not_part_of_it(more: bytes) -> None:
    async def says_more(peer: Peer) -> None:
        await peer.request()
        await peer.send(whole(200, {"n": 1}) + more)
        await peer.left()

    async with serving(says_more) as server, upstream(server) as client, asyncio.timeout(SECONDS):
        assert [await client.post(CHAT, b"{}") for _ in range(2)] == [{"n": 1}] * 2
        assert server.connections == 2


# -- closing -----------------------------------------------------------------------


async def test_stream_closed_between_events_closes_connection() -> None:
    async with serving(hangs) as server, upstream(server) as client:
        stream = await opened(client)
        assert await anext(stream) == {"n": 1}
        await stream.aclose()
        await over(server)


async def test_stream_cancelled_while_waiting_closes_connection() -> None:
    async with serving(hangs) as server, upstream(server) as client:
        stream = await opened(client)
        await anext(stream)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await anext(stream)
        await over(server)


async def test_unread_stream_closes_connection_when_collected() -> None:
    async with serving(hangs) as server, upstream(server) as client:
        stream = await opened(client)
        del stream
        gc.collect()
        await over(server)


# -- pushed events -----------------------------------------------------------------


class PushReceiver:
    """A receiver that leaves some events to be read."""

    def __init__(self, *left: Any) -> None:
        self.taken: list[Any] = []
        self._left = left

    def __call__(self, event: Any) -> bool:
        if event in self._left:
            return False
        self.taken.append(event)
        return True


def numbered(*numbers: int) -> bytes:
    return b"".join(event({"n": number}) for number in numbers)


async def pushing(wire: Wire, receive: Receive, most: int = 100) -> tuple[Connection, EventStream]:
    """Return a stream of events that are pushed, and its connection; bytes arrive when the test says so."""
    connection = Connection(most)
    connection.connection_made(wire)

    class Wired(Pool):
        async def connect(self) -> Connection:
            return connection

    config = OpenAIChatConfig(base_url="http://localhost/v1")
    opening = asyncio.create_task(Upstream(config, Wired(config)).open_stream(CHAT, b"{}", lambda raw: raw))
    await wire.written.wait()
    connection.data_received(OPENING)
    stream = await opening
    stream.push_to(receive)
    return connection, stream


async def test_event_is_pushed_in_call_that_receives_its_bytes() -> None:
    receive = PushReceiver({"n": 4})
    connection, stream = await pushing(Wire(), receive)
    reading = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    connection.data_received(numbered(1))
    assert receive.taken == [{"n": 1}]
    connection.data_received(numbered(2, 3))
    assert receive.taken == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert not reading.done()
    connection.data_received(numbered(4, 5))
    connection.data_received(numbered(6))
    assert len(receive.taken) == 3, "nothing is pushed before the event that was left is read"
    assert await reading == {"n": 4}
    await asyncio.sleep(0)
    assert len(receive.taken) == 3, "nor before the next one is asked for"
    connection.data_received(DONE + END)
    assert [each async for each in stream] == []
    assert [each["n"] for each in receive.taken] == [1, 2, 3, 5, 6]


class ExtendingReceiver(PushReceiver):
    """A receiver that also takes texts of events that have nothing else; each text before the event that is built.

    Attributes:
        waits_after: texts after which it waits.
    """

    def __init__(self, *left: Any) -> None:
        super().__init__(*left)
        self.alone: list[bool] = []
        self.waits_after: set[str] = set()

    @property
    def waits(self) -> bool:
        return self.taken[-1] in self.waits_after

    def text_of(self, value: Any) -> str | None:
        return value["t"] if set(value) == {"t"} else None

    def extend(self, text: str, *, alone: bool) -> bool:
        if text in self._left:
            return False
        self.taken.append(text)
        self.alone.append(alone)
        return True


async def extending(receive: ExtendingReceiver) -> tuple[Connection, EventStream, asyncio.Future[Any]]:
    """Return as `pushing` a stream whose texts are taken too, and its reader, which waits for the first event."""
    connection, stream = await pushing(Wire(), receive)
    stream.push_to(receive, receive)
    reading = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    return connection, stream, reading


async def test_text_of_repeated_event_is_pushed_without_event() -> None:
    receive = ExtendingReceiver("d", {"t": "d"})
    connection, stream, reading = await extending(receive)
    connection.data_received(b"".join(event(each) for each in ({"t": "a"}, {"t": "b"}, {"t": "c", "n": 1}, {"t": "c"})))
    assert receive.taken == ["a", "b", {"t": "c", "n": 1}, "c"]
    connection.data_received(event({"t": "d"}) + event({"t": "e"}))
    assert await reading == {"t": "d"}, "an event whose text is refused is built"
    connection.data_received(event({"t": "f"}) + DONE + END)
    assert [each async for each in stream] == []
    assert receive.taken[4:] == ["e", "f"]


@pytest.mark.parametrize("together", [True, False])
async def test_event_without_content_is_read_when_the_receiver_waits_after_a_text(together: bool) -> None:
    receive = ExtendingReceiver()
    receive.waits_after = {"a", "c"}
    connection, stream, reading = await extending(receive)
    for number, texts in enumerate(("ab", "cd") if together else ("a", "b", "c", "d")):
        connection.data_received(b"".join(event({"t": text}) for text in texts))
        if together or number in (0, 2):
            assert receive.taken[-1] in receive.waits_after, "nothing is passed on before the event was read"
            assert await reading == {"choices": ()}
            reading = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
    assert receive.taken == ["a", "b", "c", "d"]
    connection.data_received(DONE + END)
    with pytest.raises(StopAsyncIteration):
        await reading


async def test_repeated_event_of_one_read_is_pushed_as_alone() -> None:
    receive = ExtendingReceiver("f", {"t": "f"})
    connection, stream, reading = await extending(receive)
    for sent in (
        event({"t": "a"}),
        event({"t": "b"}),
        event({"t": "c"}) + event({"t": "d"}),
        in_chunk(b": ping\n\n"),
        event({"t": "e"}),
        event({"t": "f"}),
    ):
        connection.data_received(sent)
    assert receive.taken == ["a", "b", "c", "d", "e"]
    assert receive.alone == [False, True, False, False, False], "the first one is learned, and a comment is parsed"
    assert await reading == {"t": "f"}, "an event whose text is refused is built"
    connection.data_received(DONE + END)
    assert [each async for each in stream] == []


async def test_repeated_event_behind_beginning_of_another_is_parsed() -> None:
    receive = ExtendingReceiver()
    connection, _stream, reading = await extending(receive)
    repeated = b'data: {"t":"b"}\n\n'
    connection.data_received(in_chunk(repeated) + in_chunk(repeated + b'data: {"t":"c",'))
    connection.data_received(in_chunk(b'"n":1}\n\n') + in_chunk(repeated) + in_chunk(b"data:"))
    connection.data_received(in_chunk(repeated))
    assert receive.taken == ["b", "b", {"t": "c", "n": 1}, "b"]
    with pytest.raises(ValueError, match="Expecting"):
        await reading


async def test_many_comments_between_repeated_events_are_accepted() -> None:
    receive = ExtendingReceiver()
    connection, _stream, reading = await extending(receive)
    comment = in_chunk(b": " + b"x" * 200_000 + b"\n\n")
    for _ in range(10):
        connection.data_received(event({"t": "a"}))
        connection.data_received(event({"t": "a"}))
        connection.data_received(comment)
    assert not reading.done()
    assert len(receive.taken) == 20
    reading.cancel()


async def test_event_is_pushed_in_context_of_reader() -> None:
    user = ContextVar("user", default="unset")
    seen = []

    def receive(_: Any) -> bool:
        seen.append(user.get())
        return True

    connection, stream = await pushing(Wire(), receive)
    user.set("reader")
    reading = asyncio.ensure_future(anext(stream, None))
    await asyncio.sleep(0)
    Context().run(connection.data_received, numbered(1) + DONE + END)
    await reading
    assert seen == ["reader"]


class User:
    """What a context variable holds for one request."""


@pytest.mark.relatives
@pytest.mark.parametrize("count", [2, 20_000])
async def test_idle_connection_holds_no_context_of_request(count: int) -> None:
    user = ContextVar[User]("user")

    async def streams_many(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(OPENING + event({"text": "x" * 20}) * count + DONE + END)

    async def read_as_user(client: Upstream) -> weakref.ref[User]:
        user.set(User())
        stream = await opened(client)
        await asyncio.sleep(0.1)  # Then reading is paused if there is much to read.
        assert len([each async for each in stream]) == count
        return weakref.ref(user.get())

    async with serving(streams_many) as server, upstream(server) as client:
        opener, next_one = [await asyncio.create_task(read_as_user(client)) for _ in range(2)]
        assert server.connections == 1
        await asyncio.sleep(0.3)  # The cancelled timer of the drain has a context until it is due.
        gc.collect()
        assert (opener(), next_one()) == (None, None)


class WatchedConnection(Connection):
    """A connection that can be referred to weakly."""


@pytest.mark.parametrize("reset", [False, True])
async def test_ended_connection_is_freed_without_garbage_collection(reset: bool) -> None:
    connection, wire = WatchedConnection(SECONDS), Wire()
    connection.connection_made(wire)
    asking = asyncio.create_task(connection.ask(b"GET / HTTP/1.1\r\n\r\n"))
    await wire.written.wait()
    connection.data_received(OPENING + event({"text": "x" * 1000}))
    await asking
    watched = weakref.ref(connection)
    with no_garbage_collection():
        if not reset:
            connection.close()
            assert not connection._pieces, "the transport may keep the connection for a while"
        connection.connection_lost(ConnectionResetError() if reset else None)
        del connection, asking
        await turns(2)
        assert watched() is None


async def test_connection_that_is_never_made_is_freed_without_garbage_collection() -> None:
    with no_garbage_collection():
        watched = weakref.ref(WatchedConnection(SECONDS))
        assert watched() is None


async def test_connect_cancelled_after_opening_closes_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async def waits(peer: Peer) -> None:
        await peer.left()

    async with serving(waits) as server:
        pool = Pool(OpenAIChatConfig(base_url=server.url))
        open_ = pool._open

        async def noted() -> Connection:
            connection = await open_()
            asyncio.get_running_loop().call_soon(connecting.cancel)
            return connection

        monkeypatch.setattr(pool, "_open", noted)
        connecting = asyncio.create_task(pool.connect())
        with pytest.raises(asyncio.CancelledError):
            await connecting
        await over(server)


@pytest.mark.parametrize("bad", [event({"error": {"message": "broke"}}), b"5\r\ndata:\r\n9\r\n {]\n\n\n\n\n\r\n"])
async def test_error_after_pushed_events_is_raised_to_reader(bad: bytes) -> None:
    receive = PushReceiver()
    connection, stream = await pushing(Wire(), receive)
    reading = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    connection.data_received(numbered(1) + bad)
    with pytest.raises((openai.APIError, ValueError)):
        await reading
    assert receive.taken == [{"n": 1}]


async def test_pushed_events_break_silence(loop_clock: LoopClock) -> None:
    receive = PushReceiver()
    connection, stream = await pushing(Wire(), receive)
    reading = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    for number in range(5):
        await loop_clock.passes(60)
        connection.data_received(numbered(number))
        # uvloop's timers follow the real clock.
        connection._check_silence()
    assert len(receive.taken) == 5
    assert not reading.done()
    await loop_clock.passes(101)
    connection._check_silence()
    with pytest.raises(openai.APITimeoutError):
        await reading


async def test_cancelled_reader_closes_connection_of_pushed_stream() -> None:
    receive, wire = PushReceiver(), Wire()
    connection, stream = await pushing(wire, receive)
    reading = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    connection.data_received(numbered(1))
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert wire.is_closing()
    assert receive.taken == [{"n": 1}]


async def test_request_cancelled_before_answer_closes_connection() -> None:
    async def mute(peer: Peer) -> None:
        await peer.request()
        await peer.left()

    async with serving(mute) as server, upstream(server) as client:
        asks = asyncio.create_task(opened(client))
        await until(lambda: bool(server.requests))
        asks.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asks
        await over(server)


# -- errors ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (403, openai.PermissionDeniedError),
        (404, openai.NotFoundError),
        (418, openai.APIStatusError),
        (422, openai.UnprocessableEntityError),
        (429, openai.RateLimitError),
        (503, openai.InternalServerError),
    ],
)
async def test_error_status_raises_error_of_openai_package(status: int, kind: type[openai.APIStatusError]) -> None:
    async def refuses(peer: Peer) -> None:
        while True:
            await peer.request()
            error = {"message": "No.", "type": "t", "param": "p", "code": "c"}
            await peer.send(whole(status, {"error": error}, "retry-after: 7"))

    async with serving(refuses) as server, upstream(server) as client:
        for call in (client.open_stream(CHAT, b"{}", lambda raw: raw), client.post(CHAT, b"{}")):
            with pytest.raises(kind) as raised:
                await call
            assert type(raised.value) is kind
            assert (raised.value.status_code, raised.value.code, raised.value.param) == (status, "c", "p")
            assert raised.value.response.headers["retry-after"] == "7"
            assert raised.value.request.url == server.url + CHAT
        assert server.connections == 1


async def test_refusal_without_json_is_quoted() -> None:
    async def refuses(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 6\r\n\r\nbusy\xff\n")

    async with serving(refuses) as server, upstream(server) as client:
        with pytest.raises(openai.InternalServerError, match="busy"):
            await opened(client)


async def test_silent_server_times_out() -> None:
    async with serving(hangs) as server, upstream(server, network={"timeout": {"read": 0.5}}) as client:
        stream = await opened(client)
        assert await anext(stream) == {"n": 1}
        with pytest.raises(openai.APITimeoutError):
            await anext(stream)
        await over(server)


async def test_unreachable_server_raises_connection_error() -> None:
    async with serving(streams) as server:
        address = server.url
    async with upstream(HttpServer(address)) as client:
        with pytest.raises(openai.APIConnectionError):
            await opened(client)


@pytest.mark.parametrize(
    ("sent", "kind", "words"),
    [
        (in_chunk(b"data: {oops\n\n") + DONE + END, ValueError, "."),
        (event({"error": {"message": "It broke.", "code": 500}}) + DONE + END, openai.APIError, "It broke"),
        (in_chunk(b'data: {"error": "It broke."}\n') + END, openai.APIError, "It broke"),
        (b"5\r\ndata:", openai.APIConnectionError, "."),
        (b"nonsense", openai.APIConnectionError, "."),
    ],
    ids=["no JSON", "error", "error at the end", "cut", "no HTTP"],
)
async def test_broken_stream_raises_error(sent: bytes, kind: type[Exception], words: str) -> None:
    async def breaks(peer: Peer) -> None:
        await peer.request()
        await peer.send(OPENING + event({"n": 1}) + sent)

    async with serving(breaks) as server, upstream(server) as client:
        stream = await opened(client)
        assert await anext(stream) == {"n": 1}
        with pytest.raises(kind, match=words):
            await anext(stream)
        await over(server)


PLAIN = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
LAST = b'data: {"n": 2}\n\n'
CUT = {
    "chunks": OPENING + event({"n": 1}),
    "half a chunk": OPENING + event({"n": 1}) + b"40\r\ndata: {",
    "a half event": OPENING + event({"n": 1}) + in_chunk(b"data: {") + END,
    "a length": PLAIN.replace(b"\r\n\r\n", b"\r\ncontent-length: 99\r\n\r\n") + b'data: {"n": 1}\n\n',
    "the connection": PLAIN + b'data: {"n": 1}\n\n',
    "HTTP/1.0": PLAIN.replace(b"1.1", b"1.0") + b'data: {"n": 1}\n\n',
}


@pytest.mark.parametrize("form", CUT)
async def test_stream_that_may_be_cut_raises_an_error_of_the_connection(form: str) -> None:
    async def cuts(peer: Peer) -> None:
        await peer.request()
        await peer.send(CUT[form])

    async with serving(cuts) as server, upstream(server) as client:
        stream = await opened(client)
        assert await anext(stream) == {"n": 1}
        with pytest.raises(openai.APIConnectionError):
            await anext(stream)


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("done", [b"data: [DONE]\n\n", b"data: [DONE]"])
async def test_stream_that_ends_with_its_connection_is_whole_if_it_is_done(version: bytes, done: bytes) -> None:
    async def ends(peer: Peer) -> None:
        await peer.request()
        await peer.send(PLAIN.replace(b"1.1", version) + b'data: {"n": 1}\n\n' + LAST + done)

    async with serving(ends) as server, upstream(server) as client:
        assert await read(client) == BOTH


async def test_stream_without_done_ends_normally() -> None:
    async def ends(peer: Peer) -> None:
        await peer.request()
        await peer.send(OPENING + event({"n": 1}) + in_chunk(b'data: {"n": 2}\n') + END)

    async with serving(ends) as server, upstream(server) as client:
        assert await read(client) == BOTH


async def test_done_with_trailing_space_ends_stream() -> None:
    async def ends(peer: Peer) -> None:
        await peer.request()
        await peer.send(OPENING + event({"n": 1}) + in_chunk(b"data: [DONE] \n\n") + END)

    async with serving(ends) as server, upstream(server) as client:
        assert await read(client) == [{"n": 1}]


async def test_compressed_stream_is_decoded() -> None:
    async def compresses(peer: Peer) -> None:
        seen = await peer.request()
        assert seen.headers["accept-encoding"] == "identity"
        head = OPENING.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n")
        await peer.send(head + in_chunk(gzip.compress(b'data: {"n": 1}\n\ndata: {"n": 2}\n\n')) + END)

    async with serving(compresses) as server, upstream(server) as client:
        assert await read(client) == BOTH


@pytest.mark.parametrize(
    ("encoding", "encode", "content", "words"),
    [
        (b"br", bytes, b"x", "the server's answer has the unsupported encoding 'br'"),
        (b"gzip", gzip.compress, bytes(1 << 25), "the decompressed size of the server's answer is too large"),
        (b"deflate", bytes, b"nothing of the kind", "the server's answer cannot be decompressed: .*header"),
    ],
    ids=["unknown", "bomb", "not compressed"],
)
async def test_undecodable_compressed_body_raises_error(
    encoding: bytes, encode: Callable[[bytes], bytes], content: bytes, words: str
) -> None:
    body = encode(content)

    async def compresses(peer: Peer) -> None:
        await peer.request()
        head = OPENING.replace(b"\r\n\r\n", b"\r\ncontent-encoding: " + encoding + b"\r\n\r\n")
        await peer.send(head + in_chunk(body) + END)

    async with serving(compresses) as server, upstream(server) as client:
        with pytest.raises(openai.APIConnectionError, match=words):
            await read(client)


async def test_compressed_chunks_are_limited_together() -> None:
    """Each chunk unpacks to less than the limit for a piece; the socket delivers all of them at once."""

    async def compresses(peer: Peer) -> None:
        await peer.request()
        head = OPENING.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n")
        packer = zlib.compressobj(wbits=31)
        pieces = [packer.compress(bytes(1 << 23)) + packer.flush(zlib.Z_SYNC_FLUSH) for _ in range(8)]
        await peer.send(head + b"".join(map(in_chunk, pieces)) + END)

    async with serving(compresses) as server, upstream(server) as client:
        with pytest.raises(openai.APIConnectionError, match="decompressed size of the server's answer is too large"):
            await client.post(CHAT, b"{}")


@pytest.mark.parametrize(
    ("begun", "more"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"x-name: value\r\n" * 4096),
        (b"HTTP/1.1 200 OK\r\nx-name: ", b"x" * 65536),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 2048),
        (OPENING + b"0\r\n", b"x-name: value\r\n" * 4096),
        (b"HTTP/1.1 500 No\r\nconnection: close\r\n\r\n", b" " * 65536),
    ],
    ids=["headers", "a header", "announcements", "trailers", "a refusal"],
)
async def test_endless_headers_and_bodies_are_refused(begun: bytes, more: bytes) -> None:
    async def never_ends(peer: Peer) -> None:
        await peer.request()
        await peer.send(begun)
        while True:
            await peer.send(more)

    async with serving(never_ends) as server, upstream(server) as client, asyncio.timeout(SECONDS):
        with pytest.raises(openai.APIConnectionError, match="too long"):
            await read(client)
        await over(server)


async def test_connection_reset_before_body_raises_error() -> None:
    async def resets(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        linger = struct.pack("ii", 1, 0)
        peer.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        peer.writer.transport.abort()

    async with serving(resets) as server, upstream(server) as client:
        with pytest.raises(openai.APIConnectionError):
            await read(client)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 6\r\n\r\n<html>",
            "^The model server answered with status 200 and content type 'text/html' instead of an? (event stream|JSON "
            "object): check 'base_url'.$",
        ),
        (whole(200, [1]), "status 200 and content type 'application/json' instead of"),
        (whole(200, {"error": {"message": "Not now."}}), "502 - Not now."),
        (whole(200, {"error": "Not now."}), "502 - Not now."),
        (whole(307, {}, "location: https://elsewhere/v1?key=secret"), "redirects to https://elsewhere/v1: set"),
    ],
    ids=["a page", "a list", "an error", "a word", "a redirect"],
)
async def test_invalid_answer_is_502(answer: bytes, words: str) -> None:
    async def answers(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(answer)

    async with serving(answers) as server, upstream(server, max_retries=3) as client:
        for call in (client.open_stream(CHAT, b"{}", lambda raw: raw), client.post(CHAT, b"{}")):
            with pytest.raises(openai.InternalServerError, match=words) as raised:
                await call
            assert raised.value.status_code == 502
        assert len(server.requests) == 2


async def test_error_in_answer_with_status_200_uses_its_code() -> None:
    async def refuses(peer: Peer) -> None:
        await peer.request()
        await peer.send(whole(200, {"error": {"message": "Slowly.", "code": 429}}))

    async with serving(refuses) as server, upstream(server) as client:
        with pytest.raises(openai.RateLimitError, match=r"429 - Slowly\."):
            await client.post(CHAT, b"{}")


async def test_cancelling_before_the_first_byte_of_a_stream_called_json_closes_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    blank, reading, read_next = asyncio.Event(), asyncio.Event(), Connection.read

    async def waits(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        await peer.send(b"1\r\n \r\n")
        await peer.left()

    async def noted(connection: Connection) -> bytes:
        (reading if blank.is_set() else blank).set()
        return await read_next(connection)

    monkeypatch.setattr(Connection, "read", noted)
    async with serving(waits) as server, upstream(server) as client:
        opening = asyncio.create_task(opened(client))
        await reading.wait()
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await over(server)


async def test_json_instead_of_stream_raises_error() -> None:
    async def answers(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(whole(200, {"object": "chat.completion"}))

    async with serving(answers) as server, upstream(server) as client:
        with pytest.raises(openai.APIError, match="'application/json' instead of an event stream"):
            await opened(client)


# -- retries -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("refusal", "retries", "requests"),
    [
        (whole(503, {}, "retry-after: 0.01"), 0, 1),
        (whole(503, {}, "retry-after: 0.01"), 2, 3),
        (whole(429, {}, "retry-after: 3600"), 2, 1),
        (whole(429, {}, "retry-after-ms: 10\r\nretry-after: 3600"), 2, 3),
        (whole(429, {}, "retry-after-ms: 3600000"), 2, 1),
        (whole(400, {}, "retry-after: 0.01"), 2, 1),
    ],
)
async def test_requests_are_retried_only_as_configured(refusal: bytes, retries: int, requests: int) -> None:
    async def refuses(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(refusal)

    async with serving(refuses) as server, upstream(server, max_retries=retries) as client:
        with pytest.raises(openai.APIStatusError):
            await opened(client)
        assert len(server.requests) == requests


# -- headers -----------------------------------------------------------------------


async def test_keys_and_configured_headers_are_sent() -> None:
    async with serving(streams) as server:
        async with upstream(server) as client:
            await read(client)
        async with upstream(server, api_key="sk-config", network={"headers": {"X-Team": "blue"}}) as client:
            await read(client)
            await read(client, key="sk-own")
        bare, configured, own = server.requests
        assert "authorization" not in bare.headers
        assert (configured.headers["authorization"], configured.headers["x-team"]) == ("Bearer sk-config", "blue")
        assert own.headers["authorization"] == "Bearer sk-own"
        assert configured.line == "POST /v1/chat/completions HTTP/1.1"


async def test_key_overrides_configured_authorization_header() -> None:
    async with serving(streams) as server:
        async with upstream(server, network={"headers": {"Authorization": "Token t"}}) as client:
            await read(client)
            await read(client, key="sk-own")
        bare, own = server.requests
        assert (bare.headers["authorization"], own.headers["authorization"]) == ("Token t", "Bearer sk-own")


@pytest.mark.parametrize("key", ["sk\r\nx-admin: yes", "sk\n", "schlüssel"])
async def test_key_with_invalid_characters_is_refused(key: str) -> None:
    async with serving(streams) as server, upstream(server) as client:
        with pytest.raises(ValueError, match="characters that a header cannot have"):
            await opened(client, key=key)
        assert server.requests == []


async def test_body_is_sent_unchanged() -> None:
    async with serving(streams) as server, upstream(server) as client:
        await opened(client, b'{"a": 1}')
        assert orjson.loads(server.requests[0].body) == {"a": 1}
        assert server.requests[0].headers["content-type"] == "application/json"


async def test_models_are_listed() -> None:
    async def lists(peer: Peer) -> None:
        await peer.request()
        await peer.send(whole(200, {"object": "list", "data": [{"id": "a"}, {"id": "b/c"}]}))
        await peer.left()

    async with serving(lists) as server, upstream(server) as client:
        assert await client.models() == {"a": None, "b/c": None}
        assert server.requests[0].line == "GET /v1/models HTTP/1.1"
        await over(server)


@pytest.mark.parametrize("answer", [{}, {"data": None}, {"data": [{}]}, []])
async def test_malformed_list_of_models_raises_error(answer: Any) -> None:
    async def answers(peer: Peer) -> None:
        await peer.request()
        await peer.send(whole(200, answer))

    async with serving(answers) as server, upstream(server) as client:
        with pytest.raises(openai.InternalServerError, match=r"instead of a list of models"):
            await client.models()


# -- TLS and proxies ---------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """A certificate authority of the tests, unknown to the system."""
    return Certificates.create_in(tmp_path_factory.mktemp("certificates"))


@pytest.mark.parametrize("name", ["unknown", "known", "unchecked", "no client", "client"])
async def test_tls_settings_decide_which_servers_are_trusted(certificates: Certificates, name: str) -> None:
    client_cert = {"client_cert": certificates.path("client.pem"), "client_key": certificates.path("client.key")}
    known = {"verify": certificates.path("ca.pem")}
    settings: dict[str, Json] = {
        "unknown": {},
        "known": known,
        "unchecked": {"verify": False},
        "no client": known,
        "client": known | client_cert,
    }
    listening = certificates.of_server(wants_client="client" in name)
    async with (
        serving(streams, listening) as server,
        upstream(server, network={"tls": settings[name]}) as client,
    ):
        if name in ("unknown", "no client"):
            with pytest.raises(openai.APIConnectionError):
                await opened(client)
        else:
            assert await read(client) == BOTH


async def test_only_configured_ciphers_are_offered(certificates: Certificates) -> None:
    offered, other = "ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384"
    listening = certificates.of_server()
    listening.maximum_version = ssl.TLSVersion.TLSv1_2
    listening.set_ciphers(offered)
    known = {"verify": certificates.path("ca.pem")}
    async with serving(streams, listening) as server:
        async with upstream(server, network={"tls": known | {"ciphers": [other, offered]}}) as client:
            assert await read(client) == BOTH
        async with upstream(server, network={"tls": known | {"ciphers": [other]}}) as client:
            with pytest.raises(openai.APIConnectionError):
                await opened(client)


@pytest.mark.parametrize("how", ["configured", "environment", "without scheme", "bypassed"])
async def test_proxy_is_taken_from_settings_or_environment(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    async with serving(streams) as target, serving(streams) as proxy:
        network: Json = {}
        if how == "configured":
            network = {"proxy": {"url": proxy.url.removesuffix("/v1")}}
        else:
            url = proxy.url.removesuffix("/v1")
            monkeypatch.setenv("http_proxy", url.removeprefix("http://") if how == "without scheme" else url)
            monkeypatch.setenv("no_proxy", "127.0.0.1" if how == "bypassed" else "")
        async with upstream(target, network=network) as client:
            assert await read(client) == BOTH
        expected, other = (target, proxy) if how == "bypassed" else (proxy, target)
        assert other.connections == 0
        address = "/v1" if how == "bypassed" else target.url
        assert expected.requests[0].line == f"POST {address}/chat/completions HTTP/1.1"


@pytest.mark.parametrize("user", ["", "ada:p%40ss@"])
async def test_https_is_tunnelled_through_proxy(certificates: Certificates, user: str) -> None:
    """The proxy learns only where to connect."""
    requests: list[Json] = []

    async with serving(streams, certificates.of_server()) as target:

        async def connects(peer: Peer) -> None:
            seen = await peer.request()
            requests.append({"line": seen.line, "authorization": seen.headers.get("proxy-authorization")})
            reader, writer = await asyncio.open_connection("127.0.0.1", int(target.url.split(":")[2].split("/")[0]))
            await peer.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(carry(peer.reader, writer))
                    both.create_task(carry(reader, peer.writer))
            finally:
                writer.close()

        async with serving(connects) as proxy:
            address = proxy.url.removesuffix("/v1").replace("//", f"//{user}")
            network = {"proxy": {"url": address}, "tls": {"verify": certificates.path("ca.pem")}}
            async with upstream(target, network=network) as client:
                assert [await read(client, key="sk-1") for _ in range(2)] == [BOTH] * 2
    host = target.url.removeprefix("https://").removesuffix("/v1")
    expected = "Basic YWRhOnBAc3M=" if user else None  # ada:p@ss
    assert requests == [{"line": f"CONNECT {host} HTTP/1.1", "authorization": expected}]
    assert [seen.headers["authorization"] for seen in target.requests] == ["Bearer sk-1"] * 2


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy all data from one side to the other."""
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def test_refusing_proxy_raises_connection_error(certificates: Certificates) -> None:
    async def refuses(peer: Peer) -> None:
        await peer.request()
        await peer.send(whole(407, {}))
        await peer.left()

    async with serving(refuses) as proxy:
        network = {"proxy": {"url": proxy.url.removesuffix("/v1")}, "tls": {"verify": certificates.path("ca.pem")}}
        client = client_of(OpenAIChatConfig.model_validate({"base_url": "https://127.0.0.1:9/v1", "network": network}))
        with pytest.raises(openai.APIConnectionError, match="407"):
            await opened(client)
        await over(proxy)


def test_unknown_kind_of_proxy_is_refused() -> None:
    config = {"base_url": "http://localhost/v1", "network": {"proxy": {"url": "socks5://localhost:9"}}}
    with pytest.raises(ValueError, match="http://HOST:PORT"):
        client_of(OpenAIChatConfig.model_validate(config))


# -- settings ----------------------------------------------------------------------


def test_invalid_settings_are_refused(tmp_path: Path) -> None:
    for wrong in (
        {"api_keys": "x"},
        {"network": {"tls": {"verify": str(tmp_path / "missing")}}},
        {"network": {"tls": {"client_cert": __file__}}},
        {"network": {"tls": {"ciphers": ["ROT13"]}}},
        {"network": {"timeout": {"read": 0}}},
        {"base_url": "localhost:8000"},
        {"base_url": "http://ada:secret@localhost/v1"},
        {"base_url": "http://localhost/v1?x=1"},
        {"base_url": "http://localhost:99999/v1"},
        {"base_url": "http://localhost:0/v1"},
        {"network": {"headers": {"X-Team": "blue\r\nX-Admin: yes"}}},
        {"network": {"headers": {"X Team": "blue"}}},
        {"network": {"headers": {"Content-Length": "5"}}},
    ):
        with pytest.raises(ValueError, match="1 validation error"):
            OpenAIChatConfig.model_validate({"base_url": "http://localhost/v1"} | wrong)


@pytest.mark.parametrize(
    "network", [None, {"tls": None}, {"tls": {"min_version": None}}, {"timeout": {"connect": None}}, {"headers": None}]
)
def test_null_settings_have_defaults(network: Json | None) -> None:
    plain = {"base_url": "http://localhost/v1"}
    assert OpenAIChatConfig.model_validate(plain | {"network": network}) == OpenAIChatConfig.model_validate(plain)
