"""Web pages as text that a model can read."""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.process_pool.pool import Task, WorkerPool

from .address_policy import Refused
from .fetcher import Fetched, Fetcher

_TASK: Final = "llama_stack_responses.fetch.page_task"
_HTML: Final = frozenset({"text/html", "application/xhtml+xml", ""})
_PLAIN: Final = re.compile(r"text/|application/(.*\+)?(json|xml|yaml|x-yaml|javascript|toml)$")
_CHARACTERS: Final = 1_000_000
"""Of a page's text that can be read; what stands behind them cannot."""
_BYTES_A_CHARACTER: Final = 4
"""Of UTF-8, at most."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page.

    Attributes:
        url: where it was found, after the redirects.
        title: its title, or where it has none the name of its host.
        text: what it says, in lines; a million characters of it at most.
    """

    url: str
    title: str
    text: str


class Pages:
    """Opens pages.

    Args:
        fetcher: fetches them.
        pool: reads them.
        seconds: how long the reading of one may take.
    """

    def __init__(self, fetcher: Fetcher, pool: WorkerPool, seconds: float) -> None:
        self._fetcher = fetcher
        self._pool = pool
        self._seconds = seconds

    async def open(self, url: str, owner: Hashable) -> Page:
        """A page, readable.

        Args:
            owner: for whom it is opened.

        Raises:
            Refused: it may not be fetched, could not be, is no text, or takes too much time or memory.
        """
        fetched = await self._fetcher.get(url)
        is_html = fetched.media_type in _HTML
        if not is_html and not _PLAIN.match(fetched.media_type):
            raise Refused(f"The page is no text: the server calls it '{fetched.media_type}'.")
        answer = await self._read(fetched, is_html, owner)
        if not answer["text"].strip():
            raise Refused("The page has no text that can be read.")
        return Page(fetched.url, answer["title"] or urlsplit(fetched.url).hostname or "", answer["text"])

    async def _read(self, fetched: Fetched, is_html: bool, owner: Hashable) -> dict[str, str]:
        options = {"url": fetched.url, "charset": fetched.charset, "html": is_html, "characters": _CHARACTERS}
        task = Task(_TASK, fetched.body, self._seconds, _CHARACTERS * _BYTES_A_CHARACTER, options)
        try:
            answer = await self._pool.run(task, owner)
        except ApiError as error:
            raise Refused(error.message) from None
        match answer.get("problem"):
            case None:
                return dict(answer)
            case "seconds":
                raise Refused(f"The page could not be read within {self._seconds:g} seconds.")
            case "memory":
                raise Refused("The page takes too much memory to be read.")
        raise Refused("The page cannot be read.")
