"""Formats of images, sounds and files, by their first bytes. Nothing is decoded."""

from __future__ import annotations

import codecs
import re
from typing import Final

HEAD_BYTES: Final = 1_024
"""Bytes that these functions read, except of images."""

IMAGE_HEAD_BYTES: Final = 2**17
"""Bytes of an image that have its header, except of a JPEG with large metadata."""

_IMAGE_STARTS: Final = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif"}
_WAV_CONTAINERS: Final = (b"RIFF", b"RF64", b"RIFX")
_MP3_TAGS: Final = (b"ID3", b"TAG", b"APETAGEX")

_GIF_STARTS: Final = (b"GIF87a", b"GIF89a")
_GIF_HEADER_BYTES: Final = 13
_WEBP_HEADER_BYTES: Final = {b"VP8 ": 30, b"VP8L": 25, b"VP8X": 30}
"""Bytes up to the size of the picture, by the first chunk."""
_JPEG_MARKER: Final = re.compile(rb"\xff+[\x01-\xfe]")
"""Decoders skip other bytes between segments, and those that fill up before a marker."""
_JPEG_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_FRAME_BYTES: Final = 8
"""Bytes of a frame's header behind its marker, up to the number of its components."""
_JPEG_ALONE: Final = frozenset({0x01, *range(0xD0, 0xD9)})
_JPEG_ENDS: Final = frozenset({0xD9, 0xDA})
_JPEG_SEGMENTS: Final = 400
"""Segments at most before the frame: a colour profile has up to 255."""
_TEXT_IMAGES: Final = frozenset({"image/svg", "image/svg+xml"})
"""Media types of drawings, which no model server reads, also if they are compressed."""

SNIFFED_MEDIA_TYPES: Final = frozenset({"image/png", "image/jpeg", "image/jpg", "image/gif", "image/webp"})
"""Media types of the formats that `image_format` tells apart."""

_PDF_MEDIA_TYPES: Final = frozenset({"application/pdf", "application/x-pdf"})


def image_format(content: bytes) -> str | None:
    """Return `png`, `jpeg`, `gif` or `webp`; None for anything else."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "webp"
    return next((name for start, name in _IMAGE_STARTS.items() if content.startswith(start)), None)


def may_be_image(content: bytes, size: int, media_type: str) -> bool:
    """Return whether an image begins with its whole header, which has the size of its picture. No pixel is decoded.

    Of other formats than PNG, JPEG, GIF and WebP, only what is text, such as HTML, is known to be none.

    Args:
        content: the beginning of the image.
        size: the bytes of all of it.
        media_type: in lower case.
    """
    match image_format(content):
        case "png":
            return content[12:16] == b"IHDR" and any(content[16:20]) and any(content[20:24])
        case "gif":
            return content[:6] in _GIF_STARTS and len(content) >= _GIF_HEADER_BYTES
        case "webp":
            return len(content) >= _WEBP_HEADER_BYTES.get(content[12:16], size + 1)
        case "jpeg":
            return _has_jpeg_frame(content, size)
    return media_type not in SNIFFED_MEDIA_TYPES and media_type not in _TEXT_IMAGES and not _is_text(content)


def _has_jpeg_frame(content: bytes, size: int) -> bool:
    """Return whether the segments of a JPEG lead to the header of its frame, as far as `content` has them."""
    at = 2
    for _ in range(_JPEG_SEGMENTS):
        found = _JPEG_MARKER.search(content, at)
        if found is None or (marker := content[found.end() - 1]) in _JPEG_FRAMES:
            return (found.end() + _JPEG_FRAME_BYTES if found else len(content) + 1) <= size
        if marker in _JPEG_ENDS:
            return False
        at = found.end()
        if marker not in _JPEG_ALONE:
            at += int.from_bytes(content[at : at + 2])
    return False


def _is_text(content: bytes) -> bool:
    """Return whether the beginning is UTF-8 without control characters, which the images of no format are."""
    head = content[:HEAD_BYTES]
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head)
    except ValueError:
        return False
    return all(each >= " " or each.isspace() for each in text)


def sound_format(content: bytes) -> str | None:
    """Return `wav` or `mp3`; None for anything else."""
    if content[:4] in _WAV_CONTAINERS and content[8:12] == b"WAVE":
        return "wav"
    # A frame of MPEG audio begins with eleven bits that are set; some encoders fill up with zeros before the first.
    frames = content[:HEAD_BYTES].lstrip(b"\0")
    is_frame = len(frames) > 1 and frames[0] == 0xFF and frames[1] >= 0xE0
    return "mp3" if is_frame or content.startswith(_MP3_TAGS) else None


def is_pdf(content: bytes) -> bool:
    """Return whether this is a PDF, which may have up to a kilobyte of other data before its header."""
    return b"%PDF-" in content[:HEAD_BYTES]


def false_format(content: bytes, media_type: str, name: str) -> str | None:
    """Return what a file is called by its type or name although it is not: `a PDF` or `an image`; None if it may be.

    Args:
        content: the file, or its beginning.
        media_type: in lower case; a text keeps its name where a client has read it from a PDF.
    """
    is_text = media_type.startswith("text/") and media_type != "text/html"
    if media_type in _PDF_MEDIA_TYPES or (name.lower().endswith(".pdf") and not is_text):
        return None if is_pdf(content) else "a PDF"
    if media_type in SNIFFED_MEDIA_TYPES:
        return None if image_format(content) else "an image"
    return None
