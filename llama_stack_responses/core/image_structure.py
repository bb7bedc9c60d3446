"""Whether an image has a picture, by its chunks and segments. Nothing is decoded.

What some decoder shows is an image: bytes behind its end are common, as are a JPEG and a GIF without their end and a
PNG without its last chunk, and decoders differ on pictures that are cut. So an image is refused only if it ends before
its picture begins, which none can read.
"""

from __future__ import annotations

import re
from typing import Final

_PNG_START_BYTES: Final = 8
_PNG_CHUNK_BYTES: Final = 12
"""Bytes of a chunk in addition to its data."""

_GIF_STARTS: Final = (b"GIF87a", b"GIF89a")
_GIF_HEADER_BYTES: Final = 13
_GIF_PICTURE_BYTES: Final = 12
"""Bytes before the data of a picture: its place, the size of its codes, and the length of the data."""
_GIF_EXTENSION: Final = 0x21
_GIF_PICTURE: Final = 0x2C
_GIF_END: Final = 0x3B

_WEBP_HEADER_BYTES: Final = {b"VP8 ": 30, b"VP8L": 25, b"VP8X": 30}
"""Bytes up to the size of the picture, by the first chunk."""

_JPEG_MARKER: Final = re.compile(rb"\xff[\x01-\xfe]")
"""Decoders skip other bytes between segments, also those that fill up before a marker."""
_JPEG_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_FRAME_BYTES: Final = 8
"""Bytes of a frame's header behind its marker, up to the number of its components."""
_JPEG_ALONE: Final = frozenset({0x01, *range(0xD0, 0xD9)})
_JPEG_END: Final = 0xD9
_JPEG_SCAN: Final = 0xDA

_STEPS: Final = 400
"""Chunks or segments at most before the picture: a colour profile has up to 255."""


def has_picture(form: str, content: bytes, size: int) -> bool:
    """Return whether an image has the size of its picture and the beginning of its pixels, as far as `content` says.

    Args:
        form: `png`, `jpeg`, `gif` or `webp`.
        content: the beginning of the image.
        size: the bytes of all of it.
    """
    return _HAS_PICTURE[form](content, size)


def _png(content: bytes, size: int) -> bool:
    if content[12:16] != b"IHDR" or not any(content[16:20]) or not any(content[20:24]):
        return False
    at = _PNG_START_BYTES
    for _ in range(_STEPS):
        length, kind = int.from_bytes(content[at : at + 4]), content[at + 4 : at + 8]
        if len(kind) < len(b"IDAT"):
            return at < size and len(content) < size  # it goes on behind the beginning, or ends here
        if kind == b"IDAT" and length:
            return at + _PNG_CHUNK_BYTES <= size
        if kind == b"IEND":
            return False
        at += length + _PNG_CHUNK_BYTES
    return True


def _gif(content: bytes, size: int) -> bool:
    if content[:6] not in _GIF_STARTS or len(content) < _GIF_HEADER_BYTES:
        return False
    colours = content[10]
    at = _GIF_HEADER_BYTES + (3 << (colours & 7) + 1 if colours & 0x80 else 0)
    in_extension = False
    for _ in range(_STEPS):
        if at >= len(content):
            return at < size
        block = content[at]
        if in_extension:
            in_extension, at = block > 0, at + 1 + block
        elif block == _GIF_EXTENSION:
            in_extension, at = True, at + 2
        else:
            # Decoders skip any other byte.
            return at + _GIF_PICTURE_BYTES < size if block == _GIF_PICTURE else block != _GIF_END
    return True


def _webp(content: bytes, size: int) -> bool:
    # libwebp, which nearly all servers use, refuses a file that is shorter than its header says. The last byte may only
    # fill up. A longer file is fine: editors append to it.
    whole = int.from_bytes(content[4:8], "little") + 8
    return len(content) >= _WEBP_HEADER_BYTES.get(content[12:16], size + 1) and whole <= size + 1


def _jpeg(content: bytes, size: int) -> bool:
    at, has_frame = 2, False
    for _ in range(_STEPS):
        found = _JPEG_MARKER.search(content, at)
        if found is None:
            return len(content) < size
        marker, at = content[found.end() - 1], found.end()
        length = 0 if marker in _JPEG_ALONE else int.from_bytes(content[at : at + 2])
        if marker == _JPEG_SCAN:
            return has_frame and at + length <= size
        if marker == _JPEG_END or (marker in _JPEG_FRAMES and at + _JPEG_FRAME_BYTES > size):
            return False
        has_frame = has_frame or marker in _JPEG_FRAMES
        at += length
    return False


_HAS_PICTURE: Final = {"png": _png, "gif": _gif, "webp": _webp, "jpeg": _jpeg}
