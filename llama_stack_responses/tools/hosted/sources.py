"""The pages and files that a model knows in one conversation, by number, and how they are shown to it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlsplit

from llama_stack_responses.core.stream.citing import CLOSES, OPENS, Citation

_FOREIGN: Final = str.maketrans({OPENS: "[", CLOSES: "]"})
_LINK_SAFE: Final = ":/?#@!$&'*+,;=%~"


@dataclass(frozen=True, slots=True)
class Source:
    """A page or a file that can be cited.

    Attributes:
        url: of a page; of a file, its id. It has no blanks.
    """

    url: str
    title: str


class Sources:
    """The numbered sources. Each keeps its number as long as the conversation goes on.

    Args:
        prefix: stands before the numbers, so that those of two tools differ.
    """

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._heading = re.compile(rf"^{OPENS}{prefix}(\d+){CLOSES} (.*)\n(\S+)$", re.MULTILINE)
        self._by_number: dict[int, Source] = {}
        self._numbers: dict[str, int] = {}

    def learn(self, told: str) -> None:
        """Takes in the sources that stand in what the model was told before."""
        for number, title, url in self._heading.findall(told):
            self._set(int(number), Source(url, title))

    def number(self, url: str, title: str) -> int:
        """The number of a source, known or new."""
        known = self._numbers.get(url)
        if known is None:
            known = max(self._by_number, default=0) + 1
            self._set(known, Source(url, tamed(title)))
        return known

    def get(self, key: str) -> Source | None:
        """The source with this number, its prefix before it."""
        number = key.removeprefix(self._prefix)
        return self._by_number.get(int(number)) if key == self._prefix + number and number.isdecimal() else None

    def heading(self, number: int) -> str:
        """The two lines that begin what the model is told of a source; `learn` reads them."""
        source = self._by_number[number]
        return f"{OPENS}{self._prefix}{number}{CLOSES} {source.title}\n{source.url}"

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
