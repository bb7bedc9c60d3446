"""Web pages as text for models."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from ..admission import Admission, Reservation
from ..core.errors import ApiError
from ..core.owner import Owner
from ..process_pool.pool import Task, WorkerPool
from .address_policy import UrlRefused
from .fetcher import CONNECTION_BYTES, Fetched, Fetcher

_TASK: Final = "llama_stack_responses.fetch.page_task"
_HTML: Final = frozenset({"text/html", "application/xhtml+xml", ""})
_PLAIN: Final = re.compile(r"text/|application/(.*\+)?(json|xml|yaml|x-yaml|javascript|toml)$")
_CHARACTERS: Final = 1_000_000
"""Maximum characters of a page's text; the rest is cut off."""
_BYTES_PER_CHARACTER: Final = 4
"""Maximum bytes of a character in UTF-8."""
_KEPT_PAGES: Final = 16
"""Maximum number of pages that one response keeps."""


@dataclass(frozen=True, slots=True)
class WebPage:
    """A web page.

    Attributes:
        url: its URL, after the redirects.
        title: its title, or the host name if it has none.
        text: its text in lines, up to a million characters.
    """

    url: str
    title: str
    text: str


class OpenPages:
    """The pages that one response has opened. They count as held by its owner until they are dropped or released.

    Args:
        pages: opens pages.
        owner: the user for whom they are opened.
    """

    def __init__(self, pages: WebPages, owner: Owner) -> None:
        self._pages = pages
        self._owner = owner
        self._kept: dict[str, tuple[WebPage, Reservation]] = {}

    async def fetch(self, url: str) -> WebPage:
        """Return a page as text; fetch it if it is not one of the last ones.

        Raises:
            UrlRefused: as from `WebPages.open`.
        """
        if known := self._kept.get(url):
            return known[0]
        held = self._pages.contents.reserve(self._owner)
        try:
            page = await self._pages.fetch(url, self._owner, held)
        except BaseException:
            held.release()
            raise
        # Another call may have opened it at the same time.
        self._drop(url)
        while len(self._kept) >= _KEPT_PAGES:
            self._drop(next(iter(self._kept)))
        self._kept[url] = page, held
        return page

    def release(self) -> None:
        """Drop all pages."""
        for url in list(self._kept):
            self._drop(url)

    def _drop(self, url: str) -> None:
        if known := self._kept.pop(url, None):
            known[1].release()


class WebPages:
    """Opens web pages.

    Args:
        fetcher: fetches the pages.
        pool: extracts their text.
        seconds: time limit for extracting one.
        contents: counts the bytes held of pages.

    Attributes:
        contents: counts the bytes held of pages.
    """

    def __init__(self, fetcher: Fetcher, pool: WorkerPool, seconds: float, contents: Admission) -> None:
        self._fetcher = fetcher
        self._pool = pool
        self._seconds = seconds
        self.contents = contents

    def of(self, owner: Owner) -> OpenPages:
        """Return the pages of a new response of this user, none of them opened yet."""
        return OpenPages(self, owner)

    async def fetch(self, url: str, owner: Owner, held: Reservation) -> WebPage:
        """Return a page as text.

        Args:
            owner: the user for whom it is opened.
            held: the owner's reservation for the text; it must be released with the page.

        Raises:
            UrlRefused: the page may not be fetched, the fetch failed, it is not text, it takes too much time or memory,
                or this owner holds or reads too much at the moment.
        """
        try:
            with self.contents.reserve(owner) as reading:
                reading.add(CONNECTION_BYTES)
                page = await self._opened(await self._fetcher.get(url, reading.add))
            held.add(sys.getsizeof(page.text))
            return page
        except ApiError as error:
            raise UrlRefused(error.message) from None

    async def _opened(self, fetched: Fetched) -> WebPage:
        is_html = fetched.media_type in _HTML
        if not is_html and not _PLAIN.match(fetched.media_type):
            raise UrlRefused(f"The page is not text: its content type is '{fetched.media_type}'.")
        answer = await self._read(fetched, is_html)
        if not answer["text"].strip():
            raise UrlRefused("The page has no readable text.")
        return WebPage(fetched.url, answer["title"] or urlsplit(fetched.url).hostname or "", answer["text"])

    async def _read(self, fetched: Fetched, is_html: bool) -> dict[str, str]:
        options = {"url": fetched.url, "charset": fetched.charset, "html": is_html, "characters": _CHARACTERS}
        task = Task(_TASK, fetched.body, self._seconds, _CHARACTERS * _BYTES_PER_CHARACTER, options)
        answer = await self._pool.run(task)
        match answer.get("problem"):
            case None:
                return dict(answer)
            case "seconds":
                raise UrlRefused(f"The page could not be read within {self._seconds:g} seconds.")
            case "memory":
                raise UrlRefused("The page needs too much memory to be read.")
        raise UrlRefused("The page cannot be read.")
