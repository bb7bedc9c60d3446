"""Web pages as text that a model can read."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from .fetcher import Fetched, Fetcher
from .guard import Refused

_HTML: Final = frozenset({"text/html", "application/xhtml+xml", ""})
_PLAIN: Final = re.compile(r"text/|application/(.*\+)?(json|xml|yaml|x-yaml|javascript|toml)$")
_BLANK_LINES: Final = re.compile(r"\n{3,}")


@dataclass(frozen=True, slots=True)
class Page:
    """A page.

    Attributes:
        url: where it was found, after the redirects.
        title: its title, or where it has none the name of its host.
        text: what it says, in lines.
    """

    url: str
    title: str
    text: str


class Pages:
    """Opens pages.

    Args:
        fetcher: reads them.
    """

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher

    async def open(self, url: str) -> Page:
        """A page, readable.

        Raises:
            Refused: it may not be fetched, could not be, or is no text.
        """
        fetched = await self._fetcher.get(url)
        if fetched.media_type in _HTML:
            # A large page takes a second, in which others go on.
            title, text = await asyncio.to_thread(_of_html, fetched)
        elif _PLAIN.match(fetched.media_type):
            title, text = "", _decoded(fetched)
        else:
            raise Refused(f"The page is no text: the server calls it '{fetched.media_type}'.")
        if not text.strip():
            raise Refused("The page has no text that can be read.")
        return Page(fetched.url, title or urlsplit(fetched.url).hostname or "", _BLANK_LINES.sub("\n\n", text))


def _of_html(fetched: Fetched) -> tuple[str, str]:
    """The title and the main text of a page, its links as `[text](url)`."""
    import trafilatura

    source = fetched.body if fetched.charset is None else _decoded(fetched)
    text = trafilatura.extract(source, url=fetched.url, include_links=True, favor_recall=True)
    text = text or trafilatura.html2txt(source)
    document = trafilatura.load_html(source)
    title = "" if document is None else document.findtext(".//title") or ""
    return " ".join(title.split()), text


def _decoded(fetched: Fetched) -> str:
    try:
        return fetched.body.decode(fetched.charset or "utf-8", "replace")
    except LookupError:
        return fetched.body.decode("utf-8", "replace")
