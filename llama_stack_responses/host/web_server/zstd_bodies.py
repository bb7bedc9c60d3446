"""Request bodies that are compressed with zstd, which OGX accepts on every route.

The host's own middleware reads and decompresses such a body completely, before authentication and without a bound on
the compressed size. Its `__call__` is replaced by one that decompresses a body while the application reads it.
"""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...core.errors import ApiError, bad_request
from ...wire.bodies import check_length, too_large
from ..platform import SERVER
from ..refusals import refuse

_MIDDLEWARE: Final = "ZstdDecompressionMiddleware"
_LIMIT: Final = "_llama_stack_responses_limit"

_WINDOW_BYTES: Final = 1 << 23
"""Maximum window of a frame in bytes; RFC 9659 sets it for HTTP."""
_SLICE_BYTES: Final = 256
"""Compressed bytes that are decompressed at a time. Four bytes can become 128 KiB, so all of them at most 8 MiB."""
_PIECE_BYTES: Final = 1 << 18
"""Decompressed bytes after which a piece is passed on."""

_LENGTH_HEADERS: Final = (b"content-encoding", b"content-length", b"transfer-encoding")


def bound_zstd_bodies(limit: int) -> None:
    """Replace the host's middleware by one that bounds bodies, compressed and decompressed. llama-stack has none.

    Args:
        limit: maximum size of a body in bytes.
    """
    middleware: Any = getattr(sys.modules.get(SERVER), _MIDDLEWARE, None)
    if middleware is None:
        return
    if not hasattr(middleware, _LIMIT):
        middleware.__call__ = _call
    setattr(middleware, _LIMIT, limit)


async def _call(self: Any, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http" and _is_compressed(scope):
        await serve_compressed(self.app, scope, receive, send, getattr(self, _LIMIT))
    else:
        await self.app(scope, receive, send)


def _is_compressed(scope: Scope) -> bool:
    return any(
        name.lower() == b"content-encoding" and value.strip().lower() == b"zstd" for name, value in scope["headers"]
    )


async def serve_compressed(app: ASGIApp, scope: Scope, receive: Receive, send: Send, limit: int) -> None:
    """Call an application for a request with a compressed body; the application reads it decompressed.

    If a body is refused, the application sees a client that disconnects, and the refusal is sent instead of its answer.

    Args:
        limit: maximum size of the body in bytes, compressed and decompressed.
    """
    try:
        check_length(scope, limit)
    except ApiError as error:
        await refuse(error, scope, send)
        return
    # The decompressed length is not known before the end.
    headers = [each for each in scope["headers"] if each[0].lower() not in _LENGTH_HEADERS]
    scope["headers"] = [*headers, (b"transfer-encoding", b"chunked")]
    body, started = _Body(receive, limit), False

    async def send_unless_refused(message: Message) -> None:
        nonlocal started
        if started or body.refusal is None:
            started = True
            await send(message)

    try:
        await app(scope, body.receive, send_unless_refused)
    except Exception:
        if started or body.refusal is None:
            raise
    if body.refusal is not None and not started:
        await refuse(body.refusal, scope, send)


class _Body:
    """A compressed body, which is decompressed in pieces, each in a thread.

    Attributes:
        refusal: the error that ended the reading; None if there is none.
    """

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._limit = limit
        self._frames = _Frames()
        self._rest = memoryview(b"")
        self._more = True
        self._ended = False
        self._compressed = 0
        self._decompressed = 0
        self.refusal: ApiError | None = None

    async def receive(self) -> Message:
        """Return the next message: a piece of the body, or `http.disconnect`."""
        if self._ended:
            return await self._receive()
        try:
            return await self._next()
        except ApiError as error:
            self.refusal = self.refusal or error
            return {"type": "http.disconnect"}

    async def _next(self) -> Message:
        if self.refusal:
            raise self.refusal
        piece = b""
        while not piece and (self._rest or self._more):
            if not self._rest:
                message = await self._receive()
                if message["type"] != "http.request":
                    return message
                self._take(message)
            piece, self._rest = await asyncio.to_thread(self._frames.decompress, self._rest)
            self._decompressed += len(piece)
            self._check(self._decompressed)
        more = bool(self._rest or self._more)
        if not more:
            self._frames.check_end()
        self._ended = not more
        return {"type": "http.request", "body": piece, "more_body": more}

    def _take(self, message: Message) -> None:
        self._rest = memoryview(message.get("body", b""))
        self._more = message.get("more_body", False)
        self._compressed += len(self._rest)
        self._check(self._compressed)

    def _check(self, size: int) -> None:
        if size > self._limit:
            raise too_large(self._limit)


class _Frames:
    """Decompresses consecutive frames."""

    def __init__(self) -> None:
        # A dependency of OGX; llama-stack does not install it.
        self._zstandard: Any = import_module("zstandard")
        self._decompressor = self._zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES)
        self._frame = self._decompressor.decompressobj()
        self._within = False

    def decompress(self, compressed: memoryview) -> tuple[bytes, memoryview]:
        """Return a decompressed piece, and the compressed bytes that are left.

        Raises:
            ApiError: 400, the bytes are not zstd.
        """
        pieces, size = [], 0
        while compressed and size < _PIECE_BYTES:
            piece, rest = self._step(bytes(compressed[:_SLICE_BYTES]))
            compressed = compressed[min(_SLICE_BYTES, len(compressed)) - rest :]
            pieces.append(piece)
            size += len(piece)
        return b"".join(pieces), compressed

    def _step(self, some: bytes) -> tuple[bytes, int]:
        """Return the decompressed bytes of one frame, and the number of bytes after the end of that frame."""
        try:
            piece: bytes = self._frame.decompress(some)
        except self._zstandard.ZstdError:
            raise _unreadable() from None
        self._within = not self._frame.eof
        if self._within:
            return piece, 0
        rest = len(self._frame.unused_data)
        self._frame = self._decompressor.decompressobj()
        return piece, rest

    def check_end(self) -> None:
        """Raise `ApiError` 400 if the last frame is incomplete."""
        if self._within:
            raise _unreadable()


def _unreadable() -> ApiError:
    message = (
        "The request's body is not valid zstd with a window of at most 8 MiB. Compress it again, or send it "
        "uncompressed and without the header 'content-encoding'."
    )
    return bad_request(message, code="invalid_content_encoding")
