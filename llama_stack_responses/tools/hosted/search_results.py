"""The results of web searches, in the form of each service that a stack can have.

The stack's providers give what their service says as text: JSON, or what Python prints for a dict. The forms are told
apart by themselves, so a provider under another name is understood too.
"""

from __future__ import annotations

import ast
import html
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final
from urllib.parse import quote, urlsplit

import orjson

Json = dict[str, Any]

_MOST: Final = 500
"""Entries of one answer that are read."""
_DEEPEST: Final = 10
"""Lists in lists that are read."""
_LONGEST_PRINTED: Final = 256 * 1024
"""Characters of a line that is read as what Python prints: its parser holds the interpreter."""
_LONGEST_TEXT: Final = 20_000
"""Characters of a title or a snippet that are read."""

_BLANK: Final = re.compile(r"\s")
_TAG: Final = re.compile(r"</?(?:b|br|em|i|mark|p|span|strong|wbr)\b[^<>]*>", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Result:
    """One result; its texts are plain, in one line each."""

    url: str
    title: str
    snippet: str


def results_of(content: str) -> list[Result]:
    """The results in what a search tool said, best first; empty where there are none."""
    found = (_result(entry) for entry in islice(_entries(content), _MOST))
    return list({each.url: each for each in found if each}.values())


def _entries(content: str) -> Iterator[Json]:
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError:
        yield from _printed(content)
        return
    if isinstance(value, dict):
        # Tavily, Bing and Exa: `top_k`; SearXNG, Serply and Nimble: `results`.
        value = value.get("top_k") or value.get("results") or ()
    yield from _flat(value)


def _printed(content: str) -> Iterator[Json]:
    """Brave: a line for each group of results, as Python prints it."""
    for line in content.splitlines():
        if len(line) > _LONGEST_PRINTED:
            continue
        try:
            value = ast.literal_eval(line)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        yield from _flat(value)


def _flat(value: Any, depth: int = 0) -> Iterator[Json]:
    """Bing puts the list of its news behind the pages, as one of them."""
    if isinstance(value, dict):
        yield value
    elif isinstance(value, list | tuple) and depth < _DEEPEST:
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
"""Where a result has its text, by a key that tells its form."""


def _result(entry: Json) -> Result | None:
    url = entry.get("url")
    if not isinstance(url, str) or web_host(url) is None:
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
    """The text without the markup in which services show what they found, in one line."""
    text = _TAG.sub("", text[:_LONGEST_TEXT])
    # A reference of thousands of digits is no number to Python.
    with suppress(ValueError):
        text = html.unescape(text)
    return " ".join(text.split())


def web_host(url: str) -> str | None:
    """The host of a URL of a web page, in lower case; None if it is no such URL."""
    try:
        parts = urlsplit(url)
        return parts.hostname if parts.scheme in ("http", "https") else None
    except ValueError:
        return None


def is_within(url: str, domains: Iterable[str]) -> bool:
    """Whether a URL is of one of these domains, or of a subdomain."""
    host = f".{web_host(url) or ''}"
    return any(host.endswith(f".{domain.lower().strip('.')}") for domain in domains)
