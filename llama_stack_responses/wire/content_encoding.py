"""Decompression of request bodies: bounded, in pieces, while the application reads them.

A short body can decompress to gigabytes. So a decoder takes few bytes at a time, stops after a piece of output, and
works in a thread. What a decoder keeps of the earlier output is at most 16 MiB, and never more than that output.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import zstandard
from starlette.types import Message, Receive, Scope

from ..concurrency.offloading import in_thread
from ..core.errors import ApiError, bad_request
from ..core.shapes import excerpt
from .request_bodies import DECODED, check_length, too_large

_PIECE_BYTES: Final = 1 << 18
"""Decompressed bytes after which a piece is passed on."""
_SLICE_BYTES: Final = 1 << 14
"""Compressed bytes that are taken at a time, where the output of a step can be bounded."""
_ZSTD_SLICE_BYTES: Final = 256
"""The same for zstd, whose steps are not bounded. Four bytes can become 128 KiB, so all of them at most 8 MiB."""
_ZSTD_WINDOW_BYTES: Final = 1 << 23
"""Maximum window of a frame in bytes; RFC 9659 sets it for HTTP."""
_MAX_FRAMES: Final = 10_000
"""Maximum frames of zstd, or members of gzip, of one body. Empty ones cost time, but give no output."""

_LENGTH_HEADERS: Final = (b"content-encoding", b"content-length", b"transfer-encoding")
_CODE: Final = "invalid_content_encoding"


class _Stream(Protocol):
    """One compressed stream."""

    @property
    def ended(self) -> bool:
        """Whether its end was read."""
        ...

    @property
    def pending(self) -> bool:
        """Whether output waits that needs no more input."""
        ...

    def step(self, data: memoryview) -> tuple[bytes, int]:
        """Return output, and how many of these compressed bytes were used. Raises `error`."""
        ...

    @property
    def error(self) -> type[Exception]:
        """What is raised if the bytes do not have the encoding."""
        ...


class _Zlib:
    """A stream of gzip or deflate."""

    error = zlib.error

    def __init__(self, window_bits: int) -> None:
        self._inflater = zlib.decompressobj(window_bits)
        self.ended = self.pending = False

    def step(self, data: memoryview) -> tuple[bytes, int]:
        taken = data[:_SLICE_BYTES]
        output = self._inflater.decompress(taken, _PIECE_BYTES)
        self.ended = self._inflater.eof
        self.pending = not self.ended and len(output) == _PIECE_BYTES
        return output, len(taken) - len(self._inflater.unused_data or self._inflater.unconsumed_tail)


class _Deflate:
    """A stream of zlib's format, as HTTP defines "deflate", or one without its head and checksum, as many send."""

    error = zlib.error

    def __init__(self) -> None:
        self._stream: _Zlib | None = None

    @property
    def ended(self) -> bool:
        return self._stream is not None and self._stream.ended

    @property
    def pending(self) -> bool:
        return self._stream is not None and self._stream.pending

    def step(self, data: memoryview) -> tuple[bytes, int]:
        if self._stream is None:
            # The first byte of zlib's format names the method 8. No block of plain deflate begins like that.
            self._stream = _Zlib(zlib.MAX_WBITS if data[0] & 0x0F == 8 else -zlib.MAX_WBITS)
        return self._stream.step(data)


class _Brotli:
    """A stream of brotli, with a window of at most 16 MiB."""

    def __init__(self) -> None:
        import brotli  # few clients use it

        self.error: type[Exception] = brotli.error
        self._decompressor = brotli.Decompressor()
        self.ended = self.pending = False

    def step(self, data: memoryview) -> tuple[bytes, int]:
        # While output is pending, it takes no input.
        taken = b"" if self.pending else bytes(data[:_SLICE_BYTES])
        output: bytes = self._decompressor.process(taken, output_buffer_limit=_PIECE_BYTES)
        self.ended = self._decompressor.is_finished()
        full = len(output) >= _PIECE_BYTES or not self._decompressor.can_accept_more_data()
        self.pending = full and not self.ended
        return output, len(taken)


class _Zstd:
    """A frame of zstd."""

    error = zstandard.ZstdError

    def __init__(self) -> None:
        self._frame = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES).decompressobj()
        self.ended = self.pending = False

    def step(self, data: memoryview) -> tuple[bytes, int]:
        taken = bytes(data[:_ZSTD_SLICE_BYTES])
        output = self._frame.decompress(taken)
        self.ended = self._frame.eof
        return output, len(taken) - len(self._frame.unused_data)


def _gzip() -> _Stream:
    return _Zlib(zlib.MAX_WBITS | 16)


_STREAMS: Final[Mapping[str, tuple[Callable[[], _Stream], int]]] = {
    "zstd": (_Zstd, _MAX_FRAMES),
    "gzip": (_gzip, _MAX_FRAMES),
    "x-gzip": (_gzip, _MAX_FRAMES),
    "deflate": (_Deflate, 1),
    "br": (_Brotli, 1),
}
"""What makes a stream of each encoding, and how many may follow one another."""


class _Decoder:
    """Decompresses the streams of one body.

    Args:
        encoding: a key of `_STREAMS`.

    Attributes:
        pending: whether output waits that needs no more input.
    """

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._new, self._left = _STREAMS[encoding]
        self._stream: _Stream | None = None
        self.pending = False

    def decode(self, data: memoryview) -> tuple[bytes, memoryview]:
        """Return a decompressed piece, and the compressed bytes that are left.

        Raises:
            ApiError: 400, the bytes do not have the encoding.
        """
        pieces, size = [], 0
        while (data or self.pending) and size < _PIECE_BYTES:
            piece, used = self._step(data)
            data = data[used:]
            pieces.append(piece)
            size += len(piece)
        return b"".join(pieces), data

    def _step(self, data: memoryview) -> tuple[bytes, int]:
        stream = self._stream = self._stream or self._next()
        try:
            piece, used = stream.step(data)
        except stream.error:
            raise self._unreadable() from None
        self.pending = stream.pending
        if stream.ended:
            self._stream = None
        return piece, used

    def _next(self) -> _Stream:
        if not self._left:
            raise self._unreadable()
        self._left -= 1
        return self._new()

    def check_end(self) -> None:
        """Raise `ApiError` 400 if the last stream is incomplete."""
        if self._stream is not None:
            raise self._unreadable()

    def _unreadable(self) -> ApiError:
        window = " with a window of at most 8 MiB" if self._encoding == "zstd" else ""
        message = (
            f"The request's body is not complete, valid {self._encoding}{window}: compress it again, or send it "
            "uncompressed and without the header 'content-encoding'."
        )
        return bad_request(message, code=_CODE)


class CompressedBody:
    """The body of a request that was sent compressed.

    If it cannot be read, the application sees a disconnect instead of an error. A route of this package then takes the
    error, and answers with it as with its own ones; for all others, who called the application sends the answer.

    Args:
        receive: receives the compressed body.

    Attributes:
        refusal: the error that ended the reading; None if there is none, or if it was taken.
        server_receive: `receive`.
    """

    def __init__(self, receive: Receive) -> None:
        self.server_receive = receive
        self.refusal: ApiError | None = None
        self._refused = False

    def take_refusal(self) -> ApiError | None:
        """Return the error that ended the reading, which the caller then has to answer; None if there is none."""
        refusal, self.refusal = self.refusal, None
        return refusal

    async def receive(self) -> Message:
        """Return the next message: a piece of the decompressed body, or `http.disconnect`."""
        if not self._refused:
            try:
                return await self._next()
            except ApiError as error:
                self._refused, self.refusal = True, error
        return {"type": "http.disconnect"}

    async def _next(self) -> Message:
        raise NotImplementedError


class _UnreadBody(CompressedBody):
    """A body that is refused as soon as it is to be read."""

    def __init__(self, receive: Receive, error: ApiError) -> None:
        super().__init__(receive)
        self._errors = [error]

    async def _next(self) -> Message:
        raise self._errors.pop()  # what is raised refers to this object


class _DecodedBody(CompressedBody):
    """A body of the encoding `encoding`, of at most `limit` bytes, compressed and decompressed."""

    def __init__(self, receive: Receive, encoding: str, limit: int) -> None:
        super().__init__(receive)
        self._limit = limit
        self._decoder = _Decoder(encoding)
        self._rest = memoryview(b"")
        self._more = True
        self._ended = False
        self._compressed = 0
        self._decompressed = 0

    async def _next(self) -> Message:
        if self._ended:
            return await self.server_receive()
        piece = b""
        while not piece and self._has_more:
            if not self._rest and not self._decoder.pending:
                message = await self.server_receive()
                if message["type"] != "http.request":
                    return message
                self._take(message)
            piece, self._rest = await in_thread(self._decoder.decode, self._rest)
            self._decompressed += len(piece)
            self._check(self._decompressed)
        if not self._has_more:
            self._decoder.check_end()
            self._ended = True
        return {"type": "http.request", "body": piece, "more_body": not self._ended}

    @property
    def _has_more(self) -> bool:
        return bool(self._rest or self._decoder.pending or self._more)

    def _take(self, message: Message) -> None:
        self._rest = memoryview(message.get("body", b""))
        self._more = message.get("more_body", False)
        self._compressed += len(self._rest)
        self._check(self._compressed)

    def _check(self, size: int) -> None:
        if size > self._limit:
            raise too_large(self._limit)


def _encoding(scope: Scope) -> str | None:
    """Return the encoding of a request's body; None if it has none.

    Raises:
        ApiError: 415 for one that this server does not decode, and for several.
    """
    named = (value.decode("latin-1") for name, value in scope["headers"] if name.lower() == b"content-encoding")
    given = ", ".join(named)
    match [each for part in given.split(",") if (each := part.strip().lower()) not in ("", "identity")]:
        case []:
            return None
        case [encoding] if encoding in _STREAMS:
            return encoding
    raise ApiError(
        415,
        f"This server cannot read a request's body with the content-encoding '{excerpt(given)}': send it with one of "
        "'zstd', 'gzip', 'deflate' and 'br', or uncompressed and without the header 'content-encoding'.",
        code=_CODE,
    )


def compressed_body(scope: Scope, receive: Receive, limit: int) -> tuple[Scope, CompressedBody] | None:
    """Return the scope and the body of a request as if it had been sent uncompressed; None if it was.

    A body that this server does not decode, or that is too large, is refused when it is read: by then, the host knows
    whose request it is.

    Args:
        limit: maximum size of the body in bytes, compressed and decompressed.
    """
    body: CompressedBody
    try:
        encoding = _encoding(scope)
        if encoding is None:
            return None
        check_length(scope, limit)
        body = _DecodedBody(receive, encoding, limit)
    except ApiError as error:
        body = _UnreadBody(receive, error)
    # The decompressed length is not known before the end.
    headers: list[Any] = [each for each in scope["headers"] if each[0].lower() not in _LENGTH_HEADERS]
    return {**scope, "headers": [*headers, (b"transfer-encoding", b"chunked")], DECODED: body}, body
