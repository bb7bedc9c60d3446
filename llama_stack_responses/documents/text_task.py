"""Decodes a file that may be text. A large one is decoded in a worker process."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import Final

from ..core.charsets import codec_of, codec_of_mark
from ..core.types import Json

_CONTROL: Final = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
"""Control characters that text does not contain; white space and the terminal escape are allowed."""


def read(content: bytes, options: Json) -> dict[str, str]:
    """Return the `text` of a file, or the `problem` that it is not text; `options` are the keywords of `decoded`."""
    text = decoded(content, **options)
    return {"problem": "binary"} if text is None else {"text": text}


def decoded(content: bytes, characters: int, media_type: str, charset: str | None) -> str | None:
    """Return the text of a file, or None if it is not text.

    The text is cut to one character more than `characters`, which shows that it is too long.
    """
    head = content[: 4 * characters + 4]
    for encoding in _encodings(content, media_type, charset):
        try:
            decoder = codecs.getincrementaldecoder(encoding)()
            text = decoder.decode(head, final=len(head) == len(content))
        except UnicodeError:
            continue
        if not _CONTROL.search(text):
            return text[: characters + 1]
    return None


def _encodings(content: bytes, media_type: str, charset: str | None) -> Iterator[str]:
    if marked := codec_of_mark(content):
        yield marked
    if charset and (codec := codec_of(charset)):
        yield codec
    yield "utf-8"
    if media_type.startswith("text/"):
        yield "cp1252"
