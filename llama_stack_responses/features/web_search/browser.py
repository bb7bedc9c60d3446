"""Web search in the form that gpt-oss was trained on: `browser.search`, `browser.open` and `browser.find`.

A call shows a page with a number, its cursor. Links in it are `【id†text†host】`, and the model cites its lines:
`【cursor†L3-L5】`. The pages of earlier responses are restored from the tool outputs in the conversation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ...concurrency.offloading import in_thread
from ...core.types import Json
from ...fetch.hosts import web_host
from ...fetch.pages import WebPage
from ...requests.request import CreateRequest
from ...stream.citations import CLOSES, DAGGER, OPENS, Citation
from ...tools.hosted.lenient_arguments import named_arguments
from ...tools.hosted.sources import Source, sanitized, url_citation
from ...tools.tool_function import Invocation, Outcome, ToolError, chat_function
from .search_results import Result
from .tool import (
    LOOKED_NOWHERE,
    OPENED_NOTHING,
    SEARCHED_NOTHING,
    Browsing,
    SearchServices,
    SearchTool,
    lines_with,
    search_function,
    wrapped,
)

_LINE_CHARACTERS: Final = 80
_LINES_FOUND: Final = 4
"""Lines shown from each match on."""
_MAX_MATCHES: Final = 50
_MAX_LINKS: Final = 2_000
"""Links of a page that get an id; the others are shown as they are written."""
_KEPT_LINKS: Final = 4
"""Pages whose links are kept; those of an earlier page are read from the page again."""
_SEARCHED: Final = "web-search://"
_MATCH: Final = re.compile(rf"# {OPENS}(\d+){DAGGER}match at L(\d+){CLOSES}")
_MARKED: Final = re.compile(rf"{OPENS}(\d+){DAGGER}([^{CLOSES}{DAGGER}]*)(?:{DAGGER}[^{CLOSES}]*)?{CLOSES}")
_TITLE: Final = re.compile(r"\[(\d+)\] (.*) \((\S*)\)")
_LINE: Final = re.compile(r"L(\d+): (.*)")
_FIRST_LINE: Final = re.compile(r"L(\d+)")
_LINK: Final = re.compile(r"\[([^\[\]]*)\]\((https?://[^\s()]+)\)")


@dataclass(frozen=True, slots=True)
class _Link:
    """A link in a view.

    Attributes:
        line: line of the view that contains it.
        target: line number that it leads to.
    """

    url: str
    title: str
    line: int
    target: int = 0


@dataclass(frozen=True, slots=True)
class _View:
    """The page or the search results at one cursor.

    Attributes:
        url: URL of the page; for search results, a placeholder that cannot be opened.
        lines: None once they have been shown.
        links: links by id; None if they are no longer known.
        is_page: whether it shows a page, and neither search results nor matches within a page.
    """

    url: str
    title: str
    lines: Sequence[str] | None
    links: dict[int, _Link] | None
    is_page: bool = False

    @property
    def is_search(self) -> bool:
        return self.url.startswith(_SEARCHED)


class Browser(SearchTool):
    """The browser tool of one request."""

    def __init__(self, declared: Json, request: CreateRequest, services: SearchServices) -> None:
        browsing = Browsing(declared, request, services)
        super().__init__(
            browsing,
            search_function(_search_function(browsing), _searched, SEARCHED_NOTHING, self._search),
            search_function(_OPEN, self._opened, OPENED_NOTHING, self._open),
            search_function(_FIND, self._looked, LOOKED_NOWHERE, self._find),
        )
        self._views: dict[int, _View] = {}

    def cite(self, key: str, lines: str) -> Citation | None:
        """Return the citation of a page by its cursor, or of the search result that a line belongs to."""
        view = self._views.get(int(key)) if key.isdecimal() else None
        if view is None:
            return None
        if not view.is_search:
            # Search results within a page cite the page.
            page = next(each for each in self._views.values() if each.url == view.url)
            return url_citation(Source(page.url, page.title))
        line = _FIRST_LINE.match(lines)
        before = [link for link in (view.links or {}).values() if line and link.line <= int(line[1])]
        return url_citation(Source(before[-1].url, before[-1].title)) if before else None

    # the functions

    async def _search(self, invocation: Invocation) -> Outcome:
        invocation.advance("searching")
        action = invocation.item["action"]
        results = await self._browsing.search(action["queries"])
        view = _of_results(action["query"], results, self._browsing.size.snippet)
        return Outcome(self._numbered_lines(view), self._browsing.fields(action, results))

    async def _open(self, invocation: Invocation) -> Outcome:
        invocation.advance("searching")
        arguments = await invocation.arguments()
        url = invocation.item["action"].get("url")
        link = await self._link(arguments)
        if url is None and link is not None:
            url = link.url
        if url is None or web_host(url) is None:
            raise ToolError(f"There is no such link. Valid ids are shown as {OPENS}id{DAGGER}...{CLOSES}.")
        first = _integer(arguments.get("loc"), link.target if link else 0)
        view = await in_thread(_of_page, await self._browsing.fetch(url))
        return Outcome(self._numbered_lines(view, max(first, 0), _integer(arguments.get("num_lines"), -1)))

    async def _find(self, invocation: Invocation) -> Outcome:
        invocation.advance("searching")
        action = invocation.item["action"]
        if web_host(action["url"]) is None:
            raise ToolError("No page is open at that cursor. Open one before you look for something in it.")
        view = await in_thread(_of_page, await self._browsing.fetch(action["url"]))
        return Outcome(self._numbered_lines(await in_thread(_of_matches, view, action["pattern"])))

    # the items of its calls

    def _opened(self, arguments: str) -> Json | None:
        named = named_arguments(arguments)
        target = named.get("id")
        if isinstance(target, str) and web_host(target):
            return {"action": {"type": "open_page", "url": target}}
        view = self._view(named.get("cursor"))
        if target is None or _integer(target, -1) < 0:
            url = view.url if view and not view.is_search else None
        else:
            link = ((view and view.links) or {}).get(_integer(target, -1))
            url = link.url if link else None
        return {"action": {"type": "open_page", "url": url}}

    def _looked(self, arguments: str) -> Json | None:
        named = named_arguments(arguments)
        pattern, view = named.get("pattern"), self._view(named.get("cursor"))
        if not isinstance(pattern, str) or not pattern:
            return None
        url = view.url if view and not view.is_search else ""
        return {"action": {"type": "find_in_page", "url": url, "pattern": pattern}}

    def _view(self, cursor: Any) -> _View | None:
        """Return the view at a cursor; the last one without a cursor."""
        number = _integer(cursor, -1)
        return self._views.get(max(self._views, default=-1) if number < 0 else number)

    async def _link(self, arguments: Json) -> _Link | None:
        """Return the link that a call follows. The links of an earlier response's page are read from the page again."""
        number, view = _integer(arguments.get("id"), -1), self._view(arguments.get("cursor"))
        if number < 0 or view is None:
            return None
        links = view.links
        if links is None:
            links = (await in_thread(_of_page, await self._browsing.fetch(view.url))).links
        return (links or {}).get(number)

    # views

    def _numbered_lines(self, view: _View, first: int = 0, count: int = -1) -> str:
        """Assign the next cursor to a view and show its lines from `first` on: `count` of them, or as many as fit."""
        cursor = max(self._views, default=-1) + 1
        self._keep(cursor, view)
        assert view.lines is not None
        first = min(first, max(len(view.lines) - 1, 0))
        last, room = first, self._browsing.size.page
        while last < len(view.lines) and last - first != count and (room := room - len(view.lines[last])) >= 0:
            last += 1
        numbered = [f"L{number}: {view.lines[number]}" for number in range(first, last)]
        where = f"**viewing lines [{first} - {max(last - 1, first)}] of {len(view.lines) - 1}**"
        return "\n".join([f"[{cursor}] {view.title} ({view.url})", where, "", *numbered])

    def _keep(self, cursor: int, view: _View) -> None:
        """Keep a view without its lines, and drop the links of old pages: a response may open many large pages."""
        self._views[cursor] = replace(view, lines=None)
        if view.is_page:
            pages = [at for at, each in self._views.items() if each.is_page and each.links is not None]
            for at in pages[:-_KEPT_LINKS]:
                self._views[at] = replace(self._views[at], links=None)

    def _restore_view(self, result: str) -> None:
        """Restore a view from an earlier output of this tool, by its first line and its numbered lines."""
        head, *rest = result.split("\n")
        title = _TITLE.fullmatch(head)
        if title is None:
            return
        lines = {int(line[1]): line[2] for line in map(_LINE.fullmatch, rest) if line}
        # The links of a page are read from the page again when they are needed.
        links = dict(_links_of_results(lines)) or dict(_links_of_matches(title[3], title[2], lines)) or None
        self._views[int(title[1])] = _View(title[3], title[2], None, links)


def _of_results(query: str, results: Sequence[Result], longest: int) -> _View:
    lines = ["", "# Search results"]
    for number, each in enumerate(results):
        lines += [f"{OPENS}{number}{DAGGER}{_named(each.title)}{DAGGER}{web_host(each.url)}{CLOSES}", each.url]
        lines += [*wrapped([sanitized(each.snippet)[:longest]], _LINE_CHARACTERS), ""]
    title = sanitized(query)
    links = dict(_links_of_results(dict(enumerate(lines))))
    return _View(f"{_SEARCHED}{title.replace(' ', '+')}", title, lines, links)


def _links_of_results(lines: dict[int, str]) -> Iterator[tuple[int, _Link]]:
    """Yield the links of search results: each URL is in the line after its marker."""
    for number, line in lines.items():
        marked = _MARKED.fullmatch(line)
        url = lines.get(number + 1, "")
        if marked and web_host(url):
            yield int(marked[1]), _Link(url, marked[2], number)


def _links_of_matches(url: str, title: str, lines: dict[int, str]) -> Iterator[tuple[int, _Link]]:
    """Yield the links of the matches within a page."""
    for number, line in lines.items():
        if match := _MATCH.fullmatch(line):
            yield int(match[1]), _Link(url, title, number, int(match[2]))


def _of_page(page: WebPage) -> _View:
    links: dict[int, _Link] = {}

    def marked(link: re.Match[str]) -> str:
        number = len(links)
        if number >= _MAX_LINKS:
            return link[0]
        links[number] = _Link(link[2], _named(link[1]), 0)
        return f"{OPENS}{number}{DAGGER}{_named(link[1])}{DAGGER}{web_host(link[2])}{CLOSES}"

    text = page.text.replace(OPENS, "[").replace(CLOSES, "]")
    lines = ["", f"URL: {page.url}", *wrapped(_LINK.sub(marked, text).splitlines(), _LINE_CHARACTERS)]
    return _View(page.url, _named(page.title), lines, links, is_page=True)


def _of_matches(view: _View, pattern: str) -> _View:
    """Return the matches of a text in a page; each links to its line."""
    assert view.lines is not None
    matches = lines_with(view.lines, pattern)[:_MAX_MATCHES]
    lines = ["", f"URL: {view.url}", ""]
    for number, at in enumerate(matches):
        lines += [f"# {OPENS}{number}{DAGGER}match at L{at}{CLOSES}", *view.lines[at : at + _LINES_FOUND], ""]
    if not matches:
        lines.append(f"No match for: {sanitized(pattern)}")
    title = f"Find results for text: `{sanitized(pattern)}` in `{view.title}`"
    return _View(view.url, title, lines, dict(_links_of_matches(view.url, title, dict(enumerate(lines)))))


def _named(text: str) -> str:
    """Return text for use inside a marker."""
    return sanitized(text).replace(DAGGER, " ")


def _searched(arguments: str) -> Json | None:
    query = named_arguments(arguments).get("query")
    if not isinstance(query, str) or not query.strip():
        return None
    return {"action": {"type": "search", "query": query, "queries": [query]}}


def _integer(value: Any, default: int) -> int:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return default


def _search_function(browsing: Browsing) -> Json:
    return chat_function(
        "browser.search",
        f"Searches for information related to `query` and displays the results.{browsing.where()}",
        {
            "type": "object",
            "properties": {"query": {"type": "string"}, "topn": {"type": "integer"}, "source": {"type": "string"}},
            "required": ["query"],
        },
    )


_CURSOR: Final = {"type": "integer", "description": "The page to look at; the last one if left out."}
_OPEN: Final = chat_function(
    "browser.open",
    f"Opens the link `id`, shown as {OPENS}id{DAGGER}...{CLOSES}, of the page `cursor`, or a URL, from line `loc` on.",
    {
        "type": "object",
        "properties": {
            "id": {"type": ["integer", "string"]},
            "cursor": _CURSOR,
            "loc": {"type": "integer"},
            "num_lines": {"type": "integer"},
            "view_source": {"type": "boolean"},
            "source": {"type": "string"},
        },
    },
)
_FIND: Final = chat_function(
    "browser.find",
    "Finds exact matches of `pattern` in the page `cursor`.",
    {
        "type": "object",
        "properties": {"pattern": {"type": "string"}, "cursor": _CURSOR},
        "required": ["pattern"],
    },
)
