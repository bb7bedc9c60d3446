"""Checks of images, files and sounds that a request contains as base64."""

from __future__ import annotations

import re
from typing import Final

from .base64_pieces import HEAD_CHARACTERS, data_start, pieces
from .errors import ApiError, bad_request
from .media_formats import false_format, may_be_image, sound_format
from .shapes import Location, excerpt

_HEAD: Final = re.compile(r"data:([^;,]*)((?:;[^;,]*)*),", re.IGNORECASE)


def is_data_url(url: str) -> bool:
    """Return whether this is a data URL."""
    return url[:5].lower() == "data:"


def check_image(url: str, at: Location) -> None:
    """Raise the 400 that OpenAI would send if a data URL is not an image in base64.

    The pixels are not decoded. A declared format other than PNG, JPEG, GIF, WebP and SVG is left to the model server,
    which may read it, unless the data is a text.

    Large data is decoded in pieces, so that other threads get their turns.

    A stored request was accepted by the rules of its time; its images are not checked again.
    """
    if not at.limits.bounded:
        return
    head = _HEAD.match(url, 0, HEAD_CHARACTERS)
    if head is None or not head[2].lower().endswith(";base64"):
        raise _no_image(at, "a value without ';base64,' after its MIME type")
    media_type = head[1].strip().lower()
    if not media_type.startswith("image/"):
        raise _no_image(at, f"unsupported MIME type '{excerpt(media_type)}'")
    try:
        first, size = _beginning(url, head.end())
    except ValueError as error:
        raise _no_image(at, str(error)) from None
    if not may_be_image(first, size, media_type):
        message = (
            "The image data you provided does not represent a valid image. Please check your input and try again with "
            "one of the supported image formats: ['image/jpeg', 'image/png', 'image/gif', 'image/webp']."
        )
        raise bad_request(message, at.path, "invalid_value")


def check_file(value: str, name: str, at: Location) -> None:
    """Raise a 400 if a file is not base64, or is empty, or is called a PDF or an image and is none.

    Args:
        value: a data URL, or plain base64.
        name: the name of the file; empty if it has none.
    """
    if not at.limits.bounded:
        return
    start = data_start(value)
    try:
        first, _ = _beginning(value, start)
    except ValueError as error:
        message = (
            f"Invalid '{at.path}'. Expected a base64-encoded file, such as 'data:application/pdf;base64,JVBERi0=', but "
            f"got {error}."
        )
        raise bad_request(message, at.path, "invalid_value") from None
    media_type = value[:start].lower().removeprefix("data:").partition(";")[0].strip(", ")
    if called := false_format(first, media_type, name):
        message = f"Invalid '{at.path}'. The file is called {called} by its type or name, but its content is none."
        raise bad_request(message, at.path, "invalid_value")


def check_sound(value: str, form: str, at: Location) -> None:
    """Raise a 400 if a sound is not plain base64 of its format.

    Args:
        form: the format, `wav` or `mp3`.
    """
    if not at.limits.bounded:
        return
    url = next((what for start, what in _URLS.items() if value[: len(start)].lower() == start), None)
    try:
        first = b"" if url else _beginning(value, 0)[0]
        got = url if url else None if sound_format(first) == form else f"data that is not of the format '{form}'"
    except ValueError as error:
        got = str(error)
    if got:
        message = f"Invalid '{at.path}'. Expected the base64-encoded bytes of a sound, but got {got}."
        raise bad_request(message, at.path, "invalid_value")


_URLS: Final = {"data:": "a data URL", "http:": "a URL", "https:": "a URL"}
"""What is sent instead of base64, by its beginning."""


def _beginning(data: str, start: int) -> tuple[bytes, int]:
    """Return the beginning of the bytes from character `start` on, and how many there are, after all were decoded.

    Raises:
        ValueError: there are none, or they are not base64; the message says what there is.
    """
    first, size = b"", 0
    try:
        for piece in pieces(data, start):
            first, size = first or piece, size + len(piece)
    except ValueError:
        raise ValueError("an invalid base64-encoded value") from None
    if not size:
        raise ValueError("empty base64-encoded bytes")
    return first, size


def _no_image(at: Location, got: str) -> ApiError:
    message = (
        f"Invalid '{at.path}'. Expected a base64-encoded data URL with an image MIME type "
        f"(e.g. 'data:image/png;base64,aW1nIGJ5dGVzIGhlcmU='), but got {got}."
    )
    return bad_request(message, at.path, "invalid_value")
