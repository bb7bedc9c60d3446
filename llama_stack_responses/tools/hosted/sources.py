"""The pages and files that the model knows in one conversation: their form in tool outputs, and as citations."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlsplit

from ...stream.citations import CLOSES, OPENS, Citation

_LINK_SAFE: Final = ":/?#@!$&'*+,;=%~"


@dataclass(frozen=True, slots=True)
class Source:
    """A page or a file that can be cited.

    Attributes:
        url: URL of a page, or id of a file. It has no whitespace.
    """

    url: str
    title: str


class Sources:
    """Numbered sources. A source keeps its number for the whole conversation.

    Args:
        prefix: comes before each number, to distinguish the numbers of two tools.
    """

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._heading = re.compile(rf"^{OPENS}{prefix}(\d+){CLOSES} (.*)\n(\S+)$", re.MULTILINE)
        self._by_number: dict[int, Source] = {}
        self._numbers: dict[str, int] = {}

    def learn(self, result: str) -> None:
        """Restore the sources listed in an earlier output of the tool."""
        for number, title, url in self._heading.findall(result):
            self._set(int(number), Source(url, title))

    def number(self, url: str, title: str) -> int:
        """Return the number of a source; assign one if it is new."""
        known = self._numbers.get(url)
        if known is None:
            known = max(self._by_number, default=0) + 1
            self._set(known, Source(url, sanitized(title)))
        return known

    def get(self, key: str) -> Source | None:
        """Return the source with this number, given with its prefix."""
        number = key.removeprefix(self._prefix)
        return self._by_number.get(int(number)) if key == self._prefix + number and number.isdecimal() else None

    def heading(self, number: int) -> str:
        """Return the two lines that introduce a source for the model; `learn` parses them."""
        source = self._by_number[number]
        return f"{OPENS}{self._prefix}{number}{CLOSES} {source.title}\n{source.url}"

    def _set(self, number: int, source: Source) -> None:
        self._by_number[number] = source
        self._numbers.setdefault(source.url, number)


def sanitized(text: str) -> str:
    """Return untrusted text in one line, with the brackets of citation markers replaced."""
    return " ".join(_without_markers(text).split())


def sanitized_lines(text: str) -> list[str]:
    """Return the lines of untrusted text, with the brackets of citation markers replaced."""
    return _without_markers(text).splitlines()


def _without_markers(text: str) -> str:
    # `str.translate` takes twenty times as long for text that is not ASCII.
    return text.replace(OPENS, "[").replace(CLOSES, "]")


def url_citation(source: Source) -> Citation:
    """Return the citation of a page: a link in the text, and its annotation."""
    # The link must be valid in a JSON string and in Markdown.
    link = quote(source.url, safe=_LINK_SAFE)
    host = (urlsplit(source.url).hostname or "").removeprefix("www.")
    annotation = {"type": "url_citation", "url": source.url, "title": source.title}
    return Citation(f"([{host}]({link}))", annotation)


def sources_of(urls: Iterable[str]) -> list[dict[str, str]]:
    """Return the `sources` of a search action."""
    return [{"type": "url", "url": url} for url in urls]
