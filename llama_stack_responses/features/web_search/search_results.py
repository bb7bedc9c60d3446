"""Parsing of web search results, in the formats of the services that a stack can have.

The stack's providers return the service's answer as text: JSON, or Python's repr of a dict. The format is detected from
the content, so that providers under other names work too.
"""

from __future__ import annotations

import ast
import html
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final
from urllib.parse import quote

from ...core import json_decoding
from ...core.json_values import fits
from ...core.types import Json
from ...fetch.hosts import web_host

_MAX_RESULTS: Final = 500
"""Maximum number of entries read from one answer."""
_MAX_DEPTH: Final = 10
"""Maximum nesting of lists."""
_PRINTED_CHARACTERS: Final = 64 * 1024
"""Maximum length of a line that is parsed as a Python literal: the parser holds the GIL."""
_ANSWER_CHARACTERS: Final = 2**21
_MAX_VALUES: Final = 65_536
_MAX_LEVELS: Final = 64
"""Maximum length and number of JSON values of an answer, and their nesting: the decoder holds the GIL."""
_URL_CHARACTERS: Final = 8_192
_TEXT_CHARACTERS: Final = 20_000
"""Characters of a title or a snippet that are read."""

_BLANK: Final = re.compile(r"\s")
_TAG: Final = re.compile(r"</?(?:b|br|em|i|mark|p|span|strong|wbr)\b[^<>]*>", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Result:
    """One search result. Its texts are plain, in one line each."""

    url: str
    title: str
    snippet: str


def results_of(content: str) -> list[Result]:
    """Parse the output of a search tool; return its results, the best first."""
    results = (_result(entry) for entry in islice(_entries(content), _MAX_RESULTS))
    return list({each.url: each for each in results if each}.values())


def _entries(content: str) -> Iterator[Json]:
    body = content.encode(errors="replace") if len(content) <= _ANSWER_CHARACTERS else b""
    if not body or not fits(body, _MAX_VALUES, _MAX_LEVELS):
        return
    try:
        value = json_decoding.loads(body)
    except ValueError:
        yield from _printed(content)
        return
    if isinstance(value, dict):
        # Tavily, Bing and Exa: `top_k`; SearXNG, Serply and Nimble: `results`.
        value = value.get("top_k") or value.get("results") or ()
    yield from _flat(value)


def _printed(content: str) -> Iterator[Json]:
    """Parse Brave's format: one line per group of results, as Python's repr."""
    for line in content.splitlines():
        if len(line) > _PRINTED_CHARACTERS:
            continue
        try:
            value = ast.literal_eval(line)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        yield from _flat(value)


def _flat(value: Any, depth: int = 0) -> Iterator[Json]:
    """Flatten nested lists: Bing appends the list of news to the pages as one entry."""
    if isinstance(value, dict):
        yield value
    elif isinstance(value, list | tuple) and depth < _MAX_DEPTH:
        for each in value:
            yield from _flat(each, depth + 1)


_READERS: Final[tuple[tuple[str, Callable[[Json], Any]], ...]] = (
    ("content", lambda entry: entry["content"]),  # Tavily, SearXNG, Serply, Nimble
    ("highlights", lambda entry: " ... ".join(entry["highlights"])),  # Exa
    ("snippet", lambda entry: entry["snippet"]),  # Bing's pages
    ("answer", lambda entry: f"{entry['question']} {entry['answer']}"),  # Brave's questions
    ("long_desc", lambda entry: entry["long_desc"]),  # Brave's boxes
    ("description", lambda entry: entry["description"]),  # Brave's pages, Bing's news
)
"""Readers of a result's text, by the key that identifies its format."""


def _result(entry: Json) -> Result | None:
    url = entry.get("url")
    if not isinstance(url, str) or len(url) > _URL_CHARACTERS or web_host(url) is None:
        return None
    url = _BLANK.sub(lambda blank: quote(blank[0]), url.strip())
    title = entry.get("title") or entry.get("name") or web_host(url)
    return Result(url, plain(str(title)), plain(_snippet(entry)))


def _snippet(entry: Json) -> str:
    for key, read in _READERS:
        if entry.get(key):
            try:
                more = entry.get("extra_snippets") or ()
                return " ... ".join([str(read(entry)), *map(str, more)])
            except (KeyError, TypeError):
                continue
    return ""


def plain(text: str) -> str:
    """Return text without the markup that services add, in one line."""
    text = _TAG.sub("", text[:_TEXT_CHARACTERS])
    # Python refuses to convert a character reference of thousands of digits.
    with suppress(ValueError):
        text = html.unescape(text)
    return " ".join(text.split())
