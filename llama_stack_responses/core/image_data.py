"""Checks of images in data URLs."""

from __future__ import annotations

import re
from typing import Final

from .base64_pieces import pieces
from .errors import ApiError, bad_request
from .image_formats import SNIFFED_MEDIA_TYPES, image_format
from .shapes import Location, excerpt

_HEAD_CHARACTERS: Final = 1_000
"""Characters of a data URL within which its data begins."""
_HEAD: Final = re.compile(r"data:([^;,]*)((?:;[^;,]*)*),", re.IGNORECASE)


def is_data_url(url: str) -> bool:
    """Return whether this is a data URL."""
    return url[:5].lower() == "data:"


def check_image(url: str, at: Location) -> None:
    """Raise the 400 that OpenAI would send if a data URL is not an image in base64.

    The pixels are not decoded. A declared format other than PNG, JPEG, GIF and WebP is left to the model server, which
    may read it. Large data is decoded in pieces, so that other threads get their turns.

    A stored request was accepted by the rules of its time; its images are not checked again.
    """
    if not at.limits.bounded:
        return
    head = _HEAD.match(url, 0, _HEAD_CHARACTERS)
    if head is None or not head[2].lower().endswith(";base64"):
        raise _no_image(at, "a value without ';base64,' after its MIME type")
    media_type = head[1].strip().lower()
    if not media_type.startswith("image/"):
        raise _no_image(at, f"unsupported MIME type '{excerpt(media_type)}'")
    found = _format(url, head.end(), at)
    if found is None and media_type in SNIFFED_MEDIA_TYPES:
        message = (
            "The image data you provided does not represent a valid image. Please check your input and try again with "
            "one of the supported image formats: ['image/jpeg', 'image/png', 'image/gif', 'image/webp']."
        )
        raise bad_request(message, at.path, "invalid_value")


def _format(url: str, start: int, at: Location) -> str | None:
    """Return the format of the data from character `start` on, after all of it was decoded."""
    first, size = b"", 0
    try:
        for piece in pieces(url, start):
            first, size = first or piece, size + len(piece)
    except ValueError:
        raise _no_image(at, "an invalid base64-encoded value") from None
    if not size:
        raise _no_image(at, "empty base64-encoded bytes")
    return image_format(first)


def _no_image(at: Location, got: str) -> ApiError:
    message = (
        f"Invalid '{at.path}'. Expected a base64-encoded data URL with an image MIME type "
        f"(e.g. 'data:image/png;base64,aW1nIGJ5dGVzIGhlcmU='), but got {got}."
    )
    return bad_request(message, at.path, "invalid_value")
