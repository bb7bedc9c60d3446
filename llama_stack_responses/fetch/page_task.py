"""Reads a web page, in a worker process: a malicious page can take any amount of time and memory."""

from __future__ import annotations

import re
from typing import Final

import trafilatura

from ..core.charsets import codec_of, codec_of_mark
from ..core.types import Json

_BLANK_LINES: Final = re.compile(r"\n{3,}")
_TITLE_CHARACTERS: Final = 1_000


def read(content: bytes, options: Json) -> dict[str, str]:
    """Return the `title` and the `text` of a page, up to the `characters` in `options`.

    The other options are the `url` of the page, its `charset`, and `html`, which is false for plain text.
    """
    codec = _codec(content, options["charset"])
    if options["html"]:
        # Without a charset from the server, the extraction searches for one in the page.
        title, text = _of_html(content.decode(codec, "replace") if codec else content, options["url"])
    else:
        title, text = "", _plain(content, codec)
    text = _BLANK_LINES.sub("\n\n", text)[: options["characters"]]
    return {"title": _whole(title[:_TITLE_CHARACTERS]), "text": _whole(text)}


def _codec(content: bytes, charset: str | None) -> str | None:
    return codec_of_mark(content) or (codec_of(charset) if charset else None)


def _plain(content: bytes, codec: str | None) -> str:
    if codec:
        return content.decode(codec, "replace")
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content.decode("cp1252", "replace")


def _of_html(source: bytes | str, url: str) -> tuple[str, str]:
    """Return the title and the main text of a page, with links as `[text](url)`."""
    text = trafilatura.extract(source, url=url, include_links=True, favor_recall=True)
    text = text or trafilatura.html2txt(source)
    document = trafilatura.load_html(source)
    title = "" if document is None else document.findtext(".//title") or ""
    return " ".join(title.split()), text


def _whole(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
