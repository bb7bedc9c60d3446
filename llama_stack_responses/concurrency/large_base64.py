"""Base64 of large contents, processed in pieces so that the event loop is not blocked."""

from __future__ import annotations

import asyncio
import base64
from io import BytesIO

from ..core.base64_pieces import PIECE_BYTES, pieces


async def decoded(data: str, start: int = 0) -> bytes:
    """Return the decoded bytes, from character `start` on; white space is ignored.

    Raises:
        ValueError: it is not base64.
    """
    # Unlike a bytearray, BytesIO returns its content without a copy.
    content = BytesIO()
    for number, piece in enumerate(pieces(data, start)):
        if number:
            await asyncio.sleep(0)
        content.write(piece)
    return content.getvalue()


def decoded_bytes(data: str, start: int = 0) -> int:
    """Return the maximum number of bytes that are encoded, from character `start` on."""
    return (len(data) - start) // 4 * 3


def encoded_bytes(content: bytes) -> int:
    """Return the size of the base64 of these bytes."""
    return (len(content) + 2) // 3 * 4


async def encoded(content: bytes) -> str:
    """Return the base64 of these bytes."""
    texts = list[str]()
    for start in range(0, len(content), PIECE_BYTES):
        if start:
            await asyncio.sleep(0)
        texts.append(base64.b64encode(content[start : start + PIECE_BYTES]).decode())
    return "".join(texts)
