"""Base64 of large contents, processed in pieces so that the event loop is not blocked."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from io import BytesIO
from typing import Final

_PIECE_BYTES: Final = 3 * 64 * 1024
"""Characters or bytes per piece, which takes a fraction of a millisecond. Three bytes are four characters."""
_HEAD_CHARACTERS: Final = 1_000
"""Characters of a data URL within which its data begins."""


def data_start(text: str) -> int:
    """Return where the base64 of a text begins: after the head of a data URL, at 0 in plain base64."""
    # Base64 contains no comma.
    return text.find(",", 0, _HEAD_CHARACTERS) + 1


def pieces(data: str, start: int = 0) -> Iterator[bytes]:
    """Yield the decoded bytes in pieces, from character `start` on; white space is ignored.

    Raises:
        ValueError: it is not base64.
    """
    left = ""
    for offset in range(start, len(data), _PIECE_BYTES):
        left += "".join(data[offset : offset + _PIECE_BYTES].split())
        is_last = offset + _PIECE_BYTES >= len(data)
        # Padding is allowed only at the end of the last piece.
        whole = len(left) if is_last else len(left) // 4 * 4
        now, left = left[:whole], left[whole:]
        yield base64.b64decode(now, validate=True)
        if now.endswith("=") and not is_last:
            raise ValueError("There is data after the padding.")


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
    pieces = list[str]()
    for start in range(0, len(content), _PIECE_BYTES):
        if start:
            await asyncio.sleep(0)
        pieces.append(base64.b64encode(content[start : start + _PIECE_BYTES]).decode())
    return "".join(pieces)
