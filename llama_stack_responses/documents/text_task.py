"""Decodes a file that may be a text; a large one in a worker process."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import Any, Final

from llama_stack_responses.core.charsets import codec_of, codec_of_mark

Json = dict[str, Any]

_CONTROL: Final = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
"""What no text holds: neither white space nor the escape of a terminal's colours."""


def read(content: bytes, options: Json) -> dict[str, str]:
    """The `text` of a file, or the `problem` that it is none; `options` are the keywords of `decoded`."""
    text = decoded(content, **options)
    return {"problem": "binary"} if text is None else {"text": text}


def decoded(content: bytes, characters: int, media_type: str, charset: str | None) -> str | None:
    """The text that a file is, or so much of it that it has more than these characters; None if it is none."""
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
