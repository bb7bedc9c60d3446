"""The pages that a model knows in one conversation, by number, and how they are shown to it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlsplit

from llama_stack_responses.core.citing import CLOSES, OPENS, Citation

_HEADING: Final = re.compile(rf"^{OPENS}(\d+){CLOSES} (.*)\n(https?://\S+)$", re.MULTILINE)
_FOREIGN: Final = str.maketrans({OPENS: "[", CLOSES: "]"})
_LINK_SAFE: Final = ":/?#@!$&'*+,;=%~"


@dataclass(frozen=True, slots=True)
class Source:
    """A page that can be cited and opened."""

    url: str
    title: str


class Sources:
    """The numbered pages. A page keeps its number as long as the conversation goes on."""

    def __init__(self) -> None:
        self._by_number: dict[int, Source] = {}
        self._numbers: dict[str, int] = {}

    def learn(self, told: str) -> None:
        """Takes in the pages that stand in what the model was told before."""
        for number, title, url in _HEADING.findall(told):
            self._set(int(number), Source(url, title))

    def number(self, url: str, title: str) -> int:
        """The number of a page, known or new."""
        known = self._numbers.get(url)
        if known is None:
            known = max(self._by_number, default=0) + 1
            self._set(known, Source(url, tamed(title)))
        return known

    def get(self, number: int) -> Source | None:
        """The page with this number."""
        return self._by_number.get(number)

    def heading(self, number: int) -> str:
        """The two lines that begin what the model is told of a page; `learn` reads them."""
        source = self._by_number[number]
        return f"{OPENS}{number}{CLOSES} {source.title}\n{source.url}"

    def _set(self, number: int, source: Source) -> None:
        self._by_number[number] = source
        self._numbers.setdefault(source.url, number)


def tamed(text: str) -> str:
    """Text of others, in one line, in which nothing looks like a number of ours."""
    return " ".join(text.translate(_FOREIGN).split())


def tamed_lines(text: str) -> list[str]:
    """The lines of a text of others, in which nothing looks like a number of ours."""
    return text.translate(_FOREIGN).splitlines()


def url_citation(source: Source) -> Citation:
    """A citation of a page: a link in the text, and the annotation on it."""
    # It may stand in a JSON string or in Markdown.
    link = quote(source.url, safe=_LINK_SAFE)
    host = (urlsplit(source.url).hostname or "").removeprefix("www.")
    annotation = {"type": "url_citation", "url": source.url, "title": source.title}
    return Citation(f"([{host}]({link}))", annotation)


def sources_of(urls: Iterable[str]) -> list[dict[str, str]]:
    """The `sources` of a search's action."""
    return [{"type": "url", "url": url} for url in urls]
