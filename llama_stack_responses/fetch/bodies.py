"""The bodies of HTTP responses, read up to a size limit."""

from __future__ import annotations

from typing import Final

import httpx

UNCOMPRESSED: Final = {"accept-encoding": "identity"}
"""Request headers that forbid compression, so that the size on the wire is the size of the body."""


class TooLarge(ValueError):  # noqa: N818 (a property of the body)
    """The body exceeds the size limit, or may exceed it because it is compressed."""


async def read_body(response: httpx.Response, size: int) -> bytes:
    """Return the body of a response to a request with the headers `UNCOMPRESSED`.

    Args:
        response: a response that is being streamed.
        size: maximum bytes of the body. No more than that is kept in memory.

    Raises:
        TooLarge: the body is larger, or the server compressed it.
        httpx.HTTPError: the connection broke.
    """
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise TooLarge("The server compressed its answer, which was not requested.")
    body = bytearray()
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > size:
            raise TooLarge(f"The server's answer is larger than {size} bytes.")
    return bytes(body)
