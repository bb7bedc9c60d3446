"""The bodies of HTTP responses, bounded while they are read."""

from __future__ import annotations

from typing import Final

import httpx

UNCOMPRESSED: Final = {"accept-encoding": "identity"}
"""Headers that ask for a body whose size on the wire is its size."""


class TooLarge(ValueError):  # noqa: N818 (it is what the body is)
    """The body has more bytes than are read, or could have: it is compressed."""


async def read_body(response: httpx.Response, size: int) -> bytes:
    """The body of a response that was asked for with `UNCOMPRESSED`.

    Args:
        response: one that is being streamed.
        size: bytes, at most. No more than that is kept in memory.

    Raises:
        TooLarge: it has more, or the server compressed it.
        httpx.HTTPError: the connection broke.
    """
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise TooLarge("The server compressed its answer, which was not asked for.")
    body = bytearray()
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > size:
            raise TooLarge(f"The server's answer is larger than {size} bytes.")
    return bytes(body)
