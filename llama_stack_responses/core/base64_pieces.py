"""Base64, decoded in pieces that each take a fraction of a millisecond."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Final

PIECE_BYTES: Final = 3 * 64 * 1024
"""Characters or bytes per piece. Three bytes are four characters."""

HEAD_CHARACTERS: Final = 1_000
"""Characters of a data URL within which its data begins."""


def data_start(text: str) -> int:
    """Return where the base64 of a text begins: after the head of a data URL, at 0 in plain base64."""
    # Base64 contains no comma.
    return text.find(",", 0, HEAD_CHARACTERS) + 1


def pieces(data: str, start: int = 0) -> Iterator[bytes]:
    """Yield the decoded bytes in pieces, from character `start` on; white space is ignored.

    Raises:
        ValueError: it is not base64.
    """
    left = ""
    for offset in range(start, len(data), PIECE_BYTES):
        left += "".join(data[offset : offset + PIECE_BYTES].split())
        is_last = offset + PIECE_BYTES >= len(data)
        # Padding is allowed only at the end of the last piece.
        whole = len(left) if is_last else len(left) // 4 * 4
        now, left = left[:whole], left[whole:]
        yield base64.b64decode(now, validate=True)
        if now.endswith("=") and not is_last:
            raise ValueError("There is data after the padding.")
