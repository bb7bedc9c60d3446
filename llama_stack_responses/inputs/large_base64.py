"""Base64 of any size, in pieces between which the event loop goes on."""

from __future__ import annotations

import asyncio
import base64
from typing import Final

_PIECE: Final = 3 * 64 * 1024
"""Characters, or bytes, at a time: a fraction of a millisecond. Three bytes are four characters."""


async def decoded(data: str) -> bytes:
    """What is encoded; white space does not count.

    Raises:
        ValueError: it is not base64.
    """
    content, left = bytearray(), ""
    for start in range(0, len(data), _PIECE):
        left += "".join(data[start : start + _PIECE].split())
        # The padding stands at the end, in the last piece alone.
        whole = len(left) // 4 * 4 if start + _PIECE < len(data) else len(left)
        now, left = left[:whole], left[whole:]
        content += base64.b64decode(now, validate=True)
        if start + _PIECE < len(data):
            if now.endswith("="):
                raise ValueError("Something follows the padding.")
            await asyncio.sleep(0)
    return bytes(content)


async def encoded(content: bytes) -> str:
    """Base64 of bytes."""
    pieces = list[str]()
    for start in range(0, len(content), _PIECE):
        if start:
            await asyncio.sleep(0)
        pieces.append(base64.b64encode(content[start : start + _PIECE]).decode())
    return "".join(pieces)
