"""The bodies of HTTP responses, read and decoded up to limits."""

from __future__ import annotations

from typing import Any, Final

import httpx

from ..concurrency.offloading import in_thread
from ..core import json_decoding
from ..core.json_values import fits

UNCOMPRESSED: Final = {"accept-encoding": "identity"}
"""Request headers that forbid compression, so that the size on the wire is the size of the body."""


_INLINE_BYTES: Final = 16_384
"""Bytes of JSON that are decoded in the event loop."""

_MAX_VALUES: Final = 65_536
_MAX_DEPTH: Final = 64
"""Maximum number of JSON values, and their nesting."""


class BodyTooLarge(ValueError):  # noqa: N818 (a property of the body)
    """The body exceeds a limit, or may exceed it because it is compressed."""


async def read_body(response: httpx.Response, size: int) -> bytes:
    """Return the body of a response to a request with the headers `UNCOMPRESSED`.

    Args:
        response: a response that is being streamed.
        size: maximum bytes of the body. No more than that is kept in memory.

    Raises:
        BodyTooLarge: the body is larger, or the server compressed it.
        httpx.HTTPError: the connection broke.
    """
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise BodyTooLarge("The server compressed its answer, which was not requested.")
    body = bytearray()
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > size:
            raise BodyTooLarge(f"The server's answer is larger than {size} bytes.")
    return bytes(body)


async def decoded(body: bytes | bytearray) -> Any:
    """Return the JSON value of a body. A large one is decoded in pieces, in a thread.

    Raises:
        BodyTooLarge: it holds too many values, or nests them too deeply.
        ValueError: it is not JSON.
    """
    return _loads(body) if len(body) <= _INLINE_BYTES else await in_thread(_loads, body)


def _loads(body: bytes | bytearray) -> Any:
    if not fits(body, _MAX_VALUES, _MAX_DEPTH):
        raise BodyTooLarge("The server's answer contains more JSON values than this server accepts.")
    return json_decoding.loads(body)
