"""Formats of images, sounds and files, by their first bytes. Nothing is decoded."""

from __future__ import annotations

from typing import Final

HEAD_BYTES: Final = 1_024
"""Bytes that these functions read."""

_IMAGE_STARTS: Final = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif"}
_WAV_CONTAINERS: Final = (b"RIFF", b"RF64", b"RIFX")
_MP3_TAGS: Final = (b"ID3", b"TAG", b"APETAGEX")

SNIFFED_MEDIA_TYPES: Final = frozenset({"image/png", "image/jpeg", "image/jpg", "image/gif", "image/webp"})
"""Media types of the formats that `image_format` tells apart."""

_PDF_MEDIA_TYPES: Final = frozenset({"application/pdf", "application/x-pdf"})


def image_format(content: bytes) -> str | None:
    """Return `png`, `jpeg`, `gif` or `webp`; None for anything else."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "webp"
    return next((name for start, name in _IMAGE_STARTS.items() if content.startswith(start)), None)


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
