"""Bodies compressed with zstd are decompressed within bounds, while they are read."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import Request, Response
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from llama_stack_responses.host.platform import SERVER
from llama_stack_responses.host.web_server.zstd_bodies import bound_zstd_bodies
from tests.support.asgi import Answer, App, Body, ask
from tests.support.zstd import BLOCK, HEADER, bomb, compressed

LIMIT = 8 * BLOCK
FRAME = compressed(b'{"a":1}')


class Middleware:
    """A stand-in for the host's middleware, whose `__call__` is replaced."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, *_: Any) -> None:
        raise AssertionError("the host reads the body")


class Reader:
    """A route that reads its whole body, as the host's routes do, and keeps its pieces and headers."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.headers: dict[str, str] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        self.headers = dict(request.headers)
        async for piece in request.stream():
            self.pieces.append(piece)
        await Response(b"%d" % self.size)(scope, receive, send)

    @property
    def size(self) -> int:
        return sum(map(len, self.pieces))


@pytest.fixture
def middleware(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The host's class, bounded."""
    kind = type("Bounded", (Middleware,), {"__call__": Middleware.__call__})
    monkeypatch.setitem(sys.modules, SERVER, SimpleNamespace(ZstdDecompressionMiddleware=kind))
    bound_zstd_bodies(5)
    bound_zstd_bodies(LIMIT)
    return kind


async def read(middleware: Any, *pieces: bytes, headers: dict[str, str] = HEADER) -> tuple[Reader, Answer, Body]:
    """Return the route that read the body, the answer, and the body with the count of taken pieces."""
    reader, body = Reader(), Body(pieces)
    return reader, await ask(middleware(reader), body, headers), body


@pytest.mark.parametrize("step", [1, 7, 1000, 10**6])
async def test_compressed_body_is_decompressed(middleware: Any, step: int) -> None:
    whole = b"many words " * 50_000 + os.urandom(3000)
    frame = compressed(whole)
    pieces = [frame[at : at + step] for at in range(0, len(frame), step)]
    reader, answer, _ = await read(middleware, *pieces, headers=HEADER | {"content-length": str(len(frame))})
    assert b"".join(reader.pieces) == whole
    assert (answer.status, reader.headers) == (200, {"transfer-encoding": "chunked"})


@pytest.mark.parametrize("name", ["content-encoding", "Content-Encoding"])
@pytest.mark.parametrize("value", ["zstd", "ZSTD", " Zstd "])
async def test_content_encoding_is_read_in_any_case(middleware: Any, name: str, value: str) -> None:
    reader, _, _ = await read(middleware, FRAME, headers={name: value})
    assert reader.pieces[0] == b'{"a":1}'


async def test_several_frames_are_one_body(middleware: Any) -> None:
    empty, skippable = compressed(b""), b"\x50\x2a\x4d\x18\x03\0\0\0abc"
    reader, _, _ = await read(middleware, FRAME + empty + FRAME[:5], FRAME[5:] + skippable + FRAME)
    assert b"".join(reader.pieces) == b'{"a":1}' * 3


@pytest.mark.parametrize("headers", [{}, {"content-encoding": "gzip"}, {"content-encoding": "zstd, gzip"}])
async def test_body_with_other_encoding_is_passed_on_unchanged(middleware: Any, headers: dict[str, str]) -> None:
    reader, answer, _ = await read(middleware, b"x" * (LIMIT + 1), headers=headers)
    assert (answer.status, reader.size, reader.headers) == (200, LIMIT + 1, headers)


async def test_empty_body_is_accepted(middleware: Any) -> None:
    reader, answer, _ = await read(middleware)
    assert (answer.status, reader.size) == (200, 0)


async def test_decompressed_body_at_limit_is_read(middleware: Any) -> None:
    reader, answer, _ = await read(middleware, bomb(8))
    assert (answer.status, reader.size) == (200, LIMIT)


@pytest.mark.parametrize("frame", [bomb(9), bomb(1) * 9, bomb(10_000)], ids=["one block more", "frames", "gigabyte"])
async def test_decompressed_body_over_limit_is_413(middleware: Any, frame: bytes) -> None:
    reader, answer, _ = await read(middleware, frame)
    assert (answer.status, answer.error["code"]) == (413, "request_too_large")
    assert answer.error["message"] == f"The request's body is larger than {LIMIT} bytes."
    assert answer.headers["connection"] == "close"
    assert reader.size <= LIMIT


async def test_pieces_of_dense_body_are_bounded(middleware: Any) -> None:
    bound_zstd_bodies(2**30)
    reader, answer, _ = await read(middleware, bomb(1000))
    assert (answer.status, reader.size) == (200, 1000 * BLOCK)
    assert max(map(len, reader.pieces)) <= 66 * BLOCK


async def test_compressed_body_over_limit_is_413(middleware: Any) -> None:
    endless = b"\x50\x2a\x4d\x18" + b"\xff" * 4
    reader, answer, body = await read(middleware, endless, *([b"x" * BLOCK] * 100))
    assert (answer.status, reader.size, body.taken) == (413, 0, 9)


async def test_body_with_excessive_content_length_is_refused_unread(middleware: Any) -> None:
    _, answer, body = await read(middleware, FRAME, headers=HEADER | {"content-length": str(LIMIT + 1)})
    assert (answer.status, answer.headers["connection"], body.taken) == (413, "close", 0)


@pytest.mark.parametrize(
    "body",
    [b'{"a":1}', FRAME[:-1], FRAME + b"{}", FRAME + FRAME[:6], bomb(1, window=0x70)],
    ids=["plain", "cut", "more", "second cut", "large window"],
)
async def test_invalid_compressed_body_is_400(middleware: Any, body: bytes) -> None:
    _, answer, _ = await read(middleware, body)
    assert (answer.status, answer.error["code"]) == (400, "invalid_content_encoding")


async def test_body_quota_counts_decompressed_bytes(middleware: Any) -> None:
    app = App({"request_bytes": 1000, "bodies": {"bytes_per_user": 1000, "total_bytes": 2000}})
    answer = await ask(middleware(app.echo()), Body([compressed(b" " * 990 + b'{"a":1}')]), HEADER)
    assert (answer.status, answer.body) == (200, b'{"a":1}')
    answer = await ask(middleware(app.echo()), Body([bomb(1)]), HEADER)
    assert (answer.status, app.bodies.held) == (413, 0)


async def test_client_disconnect_ends_body(middleware: Any) -> None:
    with pytest.raises(ClientDisconnect):
        await ask(middleware(Reader()), Body([FRAME[:5]], then="leave"), HEADER)


async def test_error_of_route_passes_through(middleware: Any) -> None:
    async def fail(_: Scope, receive: Receive, __: Send) -> None:
        await receive()
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        await ask(middleware(fail), Body([FRAME]), HEADER)
