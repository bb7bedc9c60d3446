"""Formats of images, sounds and files, by their first bytes. Nothing is decoded."""

from __future__ import annotations

import codecs
from typing import Final

from .image_structure import has_picture

HEAD_BYTES: Final = 1_024
"""Bytes that these functions read, except of images."""

IMAGE_HEAD_BYTES: Final = 2**17
"""Bytes of an image that have its header, except of a JPEG with large metadata."""

_IMAGE_STARTS: Final = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif"}
_WAV_CONTAINERS: Final = (b"RIFF", b"RF64", b"RIFX")
_MP3_TAGS: Final = (b"ID3", b"TAG", b"APETAGEX")

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
    """Return whether an image has its header and the beginning of its picture. No pixel is decoded.

    Of other formats than PNG, JPEG, GIF and WebP, only what is text, such as HTML, is known to be none.

    Args:
        content: the beginning of the image.
        size: the bytes of all of it.
        media_type: in lower case.
    """
    if form := image_format(content):
        return has_picture(form, content, size)
    return media_type not in SNIFFED_MEDIA_TYPES and media_type not in _TEXT_IMAGES and not _is_text(content)


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
