"""Formats of images, by their first bytes."""

from __future__ import annotations

from typing import Final

HEAD_BYTES: Final = 12
"""Bytes that `image_format` reads."""

_STARTS: Final = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif"}

SNIFFED_MEDIA_TYPES: Final = frozenset({"image/png", "image/jpeg", "image/jpg", "image/gif", "image/webp"})
"""Media types of the formats that `image_format` tells apart."""


def image_format(content: bytes) -> str | None:
    """Return `png`, `jpeg`, `gif` or `webp`; None for anything else. The pixels are not decoded."""
    head = content[:HEAD_BYTES]
    if head[:4] == b"RIFF" and head[8:] == b"WEBP":
        return "webp"
    return next((name for start, name in _STARTS.items() if head.startswith(start)), None)
