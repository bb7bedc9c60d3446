"""Compressed bodies are decompressed within bounds, while they are read."""

from __future__ import annotations

import os
from typing import Any

import pytest
from fastapi import Request, Response
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from llama_stack_responses.host.compressed_bodies import decompressing_bodies
from llama_stack_responses.wire.content_encoding import compressed_body
from llama_stack_responses.wire.direct_writer import direct_writer
from tests.support.asgi import Answer, App, Body, ask, scope_of
from tests.support.compressed import BLOCK, COMPRESSED, bomb, header, raw_deflate, zstd, zstd_bomb
from tests.unit.wire.test_direct_writer import HEAD, ServedRequest

LIMIT = 8 * BLOCK
SMALL = b'{"a":1}'

EACH = pytest.mark.parametrize("encoding", COMPRESSED)


class HostApp:
    """A stand-in for the host's application, whose `__call__` is replaced."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


class Reader:
    """A route that reads its whole body, as the host's routes do, and keeps its pieces, and headers but its type."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.headers: dict[str, str] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        self.headers = {name: value for name, value in request.headers.items() if name != "content-type"}
        async for piece in request.stream():
            self.pieces.append(piece)
        await Response(b"%d" % self.size)(scope, receive, send)

    @property
    def size(self) -> int:
        return sum(map(len, self.pieces))


def extended(limit: int) -> Any:
    """Return the host's class, extended."""
    return type("Extended", (HostApp,), {"__call__": decompressing_bodies(limit)(HostApp.__call__)})


@pytest.fixture
def host() -> Any:
    """The host's class, extended."""
    return extended(LIMIT)


async def read(host: Any, *pieces: bytes, headers: dict[str, str]) -> tuple[Reader, Answer, Body]:
    """Return the route that read the body, the answer, and the body with the count of taken pieces."""
    reader, body = Reader(), Body(pieces)
    return reader, await ask(host(reader), body, headers), body


@pytest.mark.parametrize("step", [1, 7, 1000, 10**6])
@EACH
async def test_compressed_body_is_decompressed(host: Any, encoding: str, step: int) -> None:
    whole = b"many words " * 50_000 + os.urandom(3000)
    packed = COMPRESSED[encoding](whole)
    pieces = [packed[at : at + step] for at in range(0, len(packed), step)]
    length = {"content-length": str(len(packed))}
    reader, answer, _ = await read(host, *pieces, headers=header(encoding) | length)
    assert b"".join(reader.pieces) == whole
    assert (answer.status, reader.headers) == (200, {"transfer-encoding": "chunked"})


@pytest.mark.parametrize("body", [SMALL, b"many words " * 50_000, b"", os.urandom(70_000)], ids=len)
async def test_deflate_without_the_head_of_zlib_is_decompressed(host: Any, body: bytes) -> None:
    reader, answer, _ = await read(host, raw_deflate(body), headers=header("deflate"))
    assert (answer.status, b"".join(reader.pieces)) == (200, body)


@pytest.mark.parametrize("name", ["content-encoding", "Content-Encoding"])
@pytest.mark.parametrize("value", ["zstd", "ZSTD", " Zstd ", "identity, zstd", ",zstd"])
async def test_content_encoding_is_read_in_any_case(host: Any, name: str, value: str) -> None:
    reader, _, _ = await read(host, zstd(SMALL), headers={name: value})
    assert reader.pieces[0] == SMALL


async def test_other_name_of_gzip_is_known(host: Any) -> None:
    reader, _, _ = await read(host, COMPRESSED["gzip"](SMALL), headers=header("x-gzip"))
    assert reader.pieces[0] == SMALL


SKIPPABLE = b"\x50\x2a\x4d\x18\x03\0\0\0abc"


@pytest.mark.parametrize(("encoding", "between"), [("zstd", SKIPPABLE), ("gzip", b"")])
async def test_several_frames_are_one_body(host: Any, encoding: str, between: bytes) -> None:
    compress = COMPRESSED[encoding]
    frame = compress(SMALL)
    pieces = (frame + compress(b"") + frame[:5], frame[5:] + between + frame)
    reader, _, _ = await read(host, *pieces, headers=header(encoding))
    assert b"".join(reader.pieces) == SMALL * 3


@pytest.mark.parametrize("encoding", ["zstd", "gzip"])
async def test_endless_empty_frames_are_400(host: Any, encoding: str) -> None:
    empty = COMPRESSED[encoding](b"")
    assert (await read(host, empty * 9_999, headers=header(encoding)))[1].status == 200
    _, answer, _ = await read(host, empty * 10_001, headers=header(encoding))
    assert (answer.status, answer.error["code"]) == (400, "invalid_content_encoding")


@pytest.mark.parametrize("headers", [{}, {"content-encoding": "identity"}, {"content-encoding": " , "}])
async def test_uncompressed_body_is_passed_on_unchanged(host: Any, headers: dict[str, str]) -> None:
    reader, answer, _ = await read(host, b"x" * (LIMIT + 1), headers=headers)
    assert (answer.status, reader.size, reader.headers) == (200, LIMIT + 1, headers)


@pytest.mark.parametrize("encoding", ["compress", "dcb", "zstd, gzip", "gzip,gzip", "x" * 5000, "\xff"])
async def test_unknown_and_chained_encodings_are_415(host: Any, encoding: str) -> None:
    reader, answer, body = await read(host, SMALL, headers=header(encoding))
    assert (answer.status, answer.error["code"], body.taken) == (415, "invalid_content_encoding", 0)
    assert answer.error["message"].startswith("This server cannot read a request's body with the content-encoding '")
    assert "'zstd', 'gzip', 'deflate' and 'br'" in answer.error["message"]
    assert len(answer.error["message"]) < 400
    assert reader.pieces == []


async def test_body_that_would_be_refused_is_not_read_before_the_request_is_authenticated(host: Any) -> None:
    async def unauthorized(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(status_code=401)(scope, receive, send)

    for headers in (header("compress"), header("gzip"), header("gzip") | {"content-length": str(LIMIT + 1)}):
        assert (await ask(host(unauthorized), Body([SMALL]), headers)).status == 401


async def test_two_headers_are_chained_encodings(host: Any) -> None:
    scope, answer = scope_of(), Answer()
    scope["headers"] = [(b"content-encoding", b"gzip"), (b"content-encoding", b"br")]
    await host(Reader())(scope, Body([SMALL]).receive, answer.send)
    assert answer.status == 415
    assert "'gzip, br'" in answer.error["message"]


@EACH
async def test_empty_body_is_accepted(host: Any, encoding: str) -> None:
    reader, answer, _ = await read(host, headers=header(encoding))
    assert (answer.status, reader.size) == (200, 0)


@EACH
async def test_decompressed_body_at_limit_is_read(host: Any, encoding: str) -> None:
    reader, answer, _ = await read(host, bomb(encoding, 8), headers=header(encoding))
    assert (answer.status, reader.size) == (200, LIMIT)


@EACH
@pytest.mark.parametrize("blocks", [9, 1_000], ids=["one block more", "thousand blocks"])
async def test_decompressed_body_over_limit_is_413(host: Any, encoding: str, blocks: int) -> None:
    reader, answer, _ = await read(host, bomb(encoding, blocks), headers=header(encoding))
    assert (answer.status, answer.error["code"]) == (413, "request_too_large")
    assert answer.error["message"] == f"The request's body is larger than {LIMIT} bytes."
    assert answer.headers["connection"] == "close"
    assert reader.size <= LIMIT


@pytest.mark.parametrize("frame", [zstd_bomb(1) * 9, zstd_bomb(10_000)], ids=["frames", "gigabyte"])
async def test_decompressed_frames_over_limit_are_413(host: Any, frame: bytes) -> None:
    reader, answer, _ = await read(host, frame, headers=header("zstd"))
    assert (answer.status, reader.size <= LIMIT) == (413, True)


@EACH
async def test_pieces_of_dense_body_are_bounded(encoding: str) -> None:
    reader, answer, _ = await read(extended(2**30), bomb(encoding, 1000), headers=header(encoding))
    assert (answer.status, reader.size) == (200, 1000 * BLOCK)
    assert max(map(len, reader.pieces)) <= (66 if encoding == "zstd" else 8) * BLOCK


async def test_compressed_body_over_limit_is_413(host: Any) -> None:
    endless = b"\x50\x2a\x4d\x18" + b"\xff" * 4
    reader, answer, body = await read(host, endless, *([b"x" * BLOCK] * 100), headers=header("zstd"))
    assert (answer.status, reader.size, body.taken) == (413, 0, 9)


@EACH
async def test_body_with_excessive_content_length_is_refused_unread(host: Any, encoding: str) -> None:
    headers = header(encoding) | {"content-length": str(LIMIT + 1)}
    _, answer, body = await read(host, COMPRESSED[encoding](SMALL), headers=headers)
    assert (answer.status, answer.headers["connection"], body.taken) == (413, "close", 0)


def damaged() -> list[Any]:
    """Return bodies that do not have their encoding."""
    frame, many = zstd(SMALL), b"many words " * 5_000
    cases = {
        "zstd": [SMALL, frame[:-1], frame + b"{}", frame + frame[:6], zstd_bomb(1, window=0x70)],
        "gzip": [SMALL, COMPRESSED["gzip"](many)[:-1], COMPRESSED["gzip"](many)[:-6] + b"\0" * 6],
        "deflate": [SMALL, COMPRESSED["deflate"](many)[:-1], COMPRESSED["deflate"](many) + b"x", raw_deflate(many)[:9]],
        "br": [SMALL, COMPRESSED["br"](many)[:-1], COMPRESSED["br"](many) + b"x"],
    }
    return [pytest.param(name, each, id=f"{name} {at}") for name, of in cases.items() for at, each in enumerate(of)]


@pytest.mark.parametrize("step", [3, 10**6])
@pytest.mark.parametrize(("encoding", "body"), damaged())
async def test_damaged_body_is_400(host: Any, encoding: str, body: bytes, step: int) -> None:
    pieces = [body[at : at + step] for at in range(0, len(body), step)]
    _, answer, _ = await read(host, *pieces, headers=header(encoding))
    assert (answer.status, answer.error["code"]) == (400, "invalid_content_encoding")
    assert f"complete, valid {encoding}" in answer.error["message"]


@EACH
async def test_body_quota_counts_decompressed_bytes(host: Any, encoding: str) -> None:
    app = App({"request_bytes": 1000, "bodies": {"bytes_per_user": 1000, "total_bytes": 2000}})
    compress = COMPRESSED[encoding]
    answer = await ask(host(app.echo()), Body([compress(b" " * 990 + SMALL)]), header(encoding))
    assert (answer.status, answer.body) == (200, SMALL)
    answer = await ask(host(app.echo()), Body([bomb(encoding, 1)]), header(encoding))
    assert (answer.status, app.bodies.held) == (413, 0)


async def test_client_disconnect_ends_body(host: Any) -> None:
    with pytest.raises(ClientDisconnect):
        await ask(host(Reader()), Body([zstd(SMALL)[:5]], then="leave"), header("zstd"))


async def test_error_of_route_passes_through(host: Any) -> None:
    async def fail(_: Scope, receive: Receive, __: Send) -> None:
        await receive()
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        await ask(host(fail), Body([zstd(SMALL)]), header("zstd"))


async def test_answer_to_compressed_request_is_written_past_asgi() -> None:
    served = ServedRequest()
    await served.cycle.send(HEAD)  # type: ignore[arg-type]
    served.scope["headers"] = [(b"content-encoding", b"br")]
    compressed = compressed_body(served.scope, served.cycle.receive, LIMIT)  # type: ignore[arg-type]
    assert compressed
    scope, body = compressed
    assert direct_writer(scope, body.receive)
    assert direct_writer(scope, Body().receive) is None
