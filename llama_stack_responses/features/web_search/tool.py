"""Web search: the stack's search service finds pages, and the model opens them and searches their text."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any, Final

from ...concurrency.offloading import in_thread
from ...core.types import Json
from ...fetch.address_policy import UrlRefused
from ...fetch.hosts import is_within, web_host
from ...fetch.pages import OpenPages, WebPage
from ...items.registry import HOSTED_TOOL_NAMES
from ...requests.request import CreateRequest
from ...requests.unavailable_tools import MissingTool
from ...stream.call_kinds import CallKind, no_fields
from ...stream.citations import CLOSES, DAGGER, OPENS, Citation
from ...tools.hosted.lenient_arguments import MAX_QUERIES, named_arguments, search_queries
from ...tools.hosted.runtime import ToolRuntime
from ...tools.hosted.sources import Sources, sanitized, sanitized_lines, sources_of, url_citation
from ...tools.tool import Cites, HoldsResources, NeedsCheck, NeedsPreparation
from ...tools.tool_function import Function, Invocation, ItemReporter, Outcome, ToolError, chat_function
from ...tools.tool_history import ToolHistory
from .kinds import FORM, SEARCH_SERVICE
from .search_results import Result, results_of

_NAMES: Final = [name for name, of in HOSTED_TOOL_NAMES.items() if of == "web_search"]
_MAX_MATCHES: Final = 20
_CONTEXT_LINES: Final = 2
"""Lines shown before and after a match."""
_LINE_CHARACTERS: Final = 500


@dataclass(frozen=True, slots=True)
class _Size:
    """How much the model is shown: results per search, characters of each snippet, characters of a page at a time."""

    results: int
    snippet: int
    page: int


_SIZES: Final = {"low": _Size(3, 300, 6_000), "medium": _Size(6, 800, 16_000), "high": _Size(12, 2_000, 48_000)}


@dataclass(frozen=True, slots=True)
class SearchServices:
    """Dependencies of a web search.

    Attributes:
        runtime: provides the search service.
        pages: creates the pages of one response; None if the tool cannot open pages.
        unavailable: how a request for an unavailable tool is handled.
    """

    runtime: ToolRuntime
    pages: Callable[[], OpenPages] | None


class Browsing:
    """The searches and pages of one response, independent of the functions that the model sees.

    Args:
        declared: the tool's entry.
        request: the whole request.
        services: dependencies.
    """

    def __init__(self, declared: Json, request: CreateRequest, services: SearchServices) -> None:
        self.size = _SIZES[declared.get("search_context_size") or "medium"]
        self.location: Json = declared.get("user_location") or {}
        self.domains: Sequence[str] = (declared.get("filters") or {}).get("allowed_domains") or ()
        self._declared = declared
        self._include = request.include
        self._runtime = services.runtime
        self._live = declared.get("external_web_access") is not False
        self._pages = services.pages() if services.pages and self._live else None

    @property
    def opens(self) -> bool:
        """Whether pages can be opened."""
        return self._pages is not None

    async def check(self) -> None:
        """Check that a search service exists.

        Without one, a request for no live access (Codex's default) proceeds without the tool: there is no index to
        search.

        Raises:
            MissingTool: there is none.
        """
        if not await self._runtime.has(SEARCH_SERVICE):
            raise MissingTool(str(self._declared["type"]), optional=not self._live)

    async def search(self, queries: Sequence[str]) -> list[Result]:
        """Return the best results of all queries.

        Raises:
            ToolError: all searches failed.
        """
        searches = (self._runtime.invoke(SEARCH_SERVICE, self._asking(query)) for query in queries)
        answers = await asyncio.gather(*searches, return_exceptions=True)
        results = [await in_thread(results_of, answer) for answer in answers if isinstance(answer, str)]
        if not results:
            raise next(answer for answer in answers if isinstance(answer, BaseException))
        best = {each.url: each for each in chain.from_iterable(zip_longest(*results)) if each}
        allowed = [each for each in best.values() if not self.domains or is_within(each.url, self.domains)]
        return allowed[: self.size.results * len(queries)]

    async def fetch(self, url: str) -> WebPage:
        """Return a page.

        Raises:
            ToolError: it cannot or may not be read.
        """
        assert self._pages
        try:
            self._allow(url)
            page = await self._pages.fetch(url)
            self._allow(page.url)
        except UrlRefused as error:
            raise ToolError(f"{url} cannot be opened. {error}") from None
        return page

    def release(self) -> None:
        """Drop the pages."""
        if self._pages:
            self._pages.release()

    def fields(self, action: Json, results: Sequence[Result]) -> Json:
        """Return the final fields of a search item."""
        fields: Json = {"action": action}
        if "web_search_call.action.sources" in self._include:
            fields["action"] = action | {"sources": sources_of(each.url for each in results)}
        if "web_search_call.results" in self._include:
            fields["results"] = [{"url": each.url, "title": each.title, "snippet": each.snippet} for each in results]
        return fields

    def where(self) -> str:
        """Return the user's location and the allowed domains, as text for the model."""
        parts = [self.location[key] for key in ("city", "region", "country", "timezone") if self.location.get(key)]
        near = f" The user is near: {', '.join(parts)}." if parts else ""
        return near + (f" Only pages of these domains are found: {', '.join(self.domains)}." if self.domains else "")

    def _asking(self, query: str) -> Json:
        arguments: Json = {"query": query}
        if self.domains:
            arguments["allowed_domains"] = list(self.domains)
        if self.location:
            arguments["user_location"] = self.location
        if size := self._declared.get("search_context_size"):
            arguments["search_context_size"] = size
        return arguments

    def _allow(self, url: str) -> None:
        if self.domains and not is_within(url, self.domains):
            raise UrlRefused(f"Only pages of these domains may be opened: {', '.join(self.domains)}.")


SEARCHED_NOTHING: Final[Json] = {"type": "search", "query": "", "queries": []}
OPENED_NOTHING: Final[Json] = {"type": "open_page", "url": None}
LOOKED_NOWHERE: Final[Json] = {"type": "find_in_page", "url": "", "pattern": ""}
"""The actions of calls whose arguments are invalid."""


def search_function(
    chat: Json,
    whole: Callable[[str], Json | None],
    nothing: Json,
    run: Callable[[Invocation], Awaitable[Outcome]],
) -> Function:
    """Create a function whose calls make a `web_search_call`; `nothing` is the action if `whole` finds no fields.

    Searching and reading have no side effects, so calls are repeatable.
    """
    kind = CallKind(FORM, no_fields, whole=whole, unread={"action": nothing}, hosted=True)
    return Function(chat, kind, run, repeatable=True)


class SearchTool(NeedsPreparation, NeedsCheck, Cites, HoldsResources):
    """The base of both forms of the tool: a search function and, if pages can be opened, two more functions."""

    def __init__(self, browsing: Browsing, search: Function, *on_pages: Function) -> None:
        self._browsing = browsing
        self._functions: tuple[Function, ...] = (search, *on_pages) if browsing.opens else (search,)

    def functions(self) -> Sequence[Function]:
        """Return the available functions."""
        return self._functions

    def handles(self) -> Collection[str]:
        """Return the handles of its types."""
        return _NAMES

    def chosen(self, choice: Json) -> Collection[str]:
        """Return all functions if the choice names one of the tool's types."""
        return [each.name for each in self._functions] if choice["type"] in _NAMES else []

    async def check(self) -> None:
        """Check the search service."""
        await self._browsing.check()

    async def prepare(self, history: ToolHistory, _: ItemReporter) -> None:
        """Check the search service, and restore the pages that the model knows from its conversation."""
        await self._browsing.check()
        await history.learn([each.name for each in self._functions], self._restore_view)

    def release(self) -> None:
        """Drop the pages at the end of the response."""
        self._browsing.release()

    @abstractmethod
    def _restore_view(self, result: str) -> None:
        """Restore the pages listed in an earlier output of the tool."""


class WebSearch(SearchTool):
    """The tool as three functions: `web_search`, `open_page` and `find_in_page`."""

    def __init__(self, declared: Json, request: CreateRequest, services: SearchServices) -> None:
        browsing = Browsing(declared, request, services)
        super().__init__(
            browsing,
            search_function(_search_function(browsing), _searched, SEARCHED_NOTHING, self._search),
            search_function(_OPEN_PAGE, self._opened, OPENED_NOTHING, self._open),
            search_function(_FIND_IN_PAGE, self._looked, LOOKED_NOWHERE, self._find),
        )
        self._sources = Sources()

    def _restore_view(self, result: str) -> None:
        self._sources.learn(result)

    def cite(self, key: str, _: str) -> Citation | None:
        """Return the citation of a page by its number."""
        source = self._sources.get(key)
        return url_citation(source) if source else None

    async def _search(self, invocation: Invocation) -> Outcome:
        invocation.advance("searching")
        action = invocation.item["action"]
        results = await self._browsing.search(action["queries"])
        return Outcome(self._listed(results), self._browsing.fields(action, results))

    def _listed(self, results: Sequence[Result]) -> str:
        if not results:
            return "Nothing was found. Try other words."
        output = []
        for each in results:
            heading = self._sources.heading(self._sources.number(each.url, each.title))
            output.append(f"{heading}\n{sanitized(each.snippet)[: self._browsing.size.snippet]}".rstrip())
        return "\n\n".join([_CITE, *output])

    async def _open(self, invocation: Invocation) -> Outcome:
        arguments = await invocation.arguments()
        number, lines = await self._lines(invocation)
        first = _line(arguments.get("line"), len(lines))
        last, room = first, self._browsing.size.page
        while last <= len(lines) and (room := room - len(lines[last - 1])) >= 0:
            last += 1
        last = max(last - 1, first)
        where = f"Lines {first} to {last} of {len(lines)}."
        more = f" Call open_page with 'line': {last + 1} for what follows." if last < len(lines) else ""
        return Outcome("\n".join([self._sources.heading(number), where + more, "", *_numbered(lines, first, last)]))

    async def _find(self, invocation: Invocation) -> Outcome:
        pattern = invocation.item["action"]["pattern"]
        number, lines = await self._lines(invocation)
        matches = [at + 1 for at in await in_thread(lines_with, lines, pattern)]
        if not matches:
            return Outcome(f"{self._sources.heading(number)}\n'{sanitized(pattern)}' is not on this page.")
        where = f"{len(matches)} lines have '{sanitized(pattern)}'."
        output = [where if len(matches) <= _MAX_MATCHES else f"{where} These are the first {_MAX_MATCHES}."]
        for at in matches[:_MAX_MATCHES]:
            output += ["", *_numbered(lines, max(at - _CONTEXT_LINES, 1), min(at + _CONTEXT_LINES, len(lines)))]
        return Outcome("\n".join([self._sources.heading(number), *output]))

    async def _lines(self, invocation: Invocation) -> tuple[int, Sequence[str]]:
        """Return the number and the lines of the page that a call refers to."""
        invocation.advance("searching")
        url = invocation.item["action"].get("url")
        if url is None or web_host(url) is None:
            raise ToolError("There is no such page. Name one by the number in front of it, or by its whole URL.")
        page = await self._browsing.fetch(url)
        number = self._sources.number(page.url, page.title)
        return number, await in_thread(_lines_of, page)

    def _opened(self, arguments: str) -> Json | None:
        named = named_arguments(arguments)
        return {"action": {"type": "open_page", "url": self._url(named.get("page"))}} if named else None

    def _looked(self, arguments: str) -> Json | None:
        named = named_arguments(arguments)
        pattern = named.get("pattern")
        if not isinstance(pattern, str) or not pattern:
            return None
        url = self._url(named.get("page")) or str(named.get("page") or "")
        return {"action": {"type": "find_in_page", "url": url, "pattern": pattern}}

    def _url(self, page: Any) -> str | None:
        """Return the URL of a page that the model refers to by number or URL."""
        name = str(page).strip(f" {OPENS}{CLOSES}")
        if source := self._sources.get(name):
            return source.url
        return name if web_host(name) else None


_CITE: Final = (
    f"Results, the best first. Cite what you use by its number right behind what it supports, as in: "
    f"Otters hold hands{OPENS}1{CLOSES}."
)
_PAGE: Final = {
    "type": "string",
    "description": "The number of a result or of a page that was opened, such as 3; or the URL of any page.",
}
_OPEN_PAGE: Final = chat_function(
    "open_page",
    f"Shows the text of a web page, line by line. Cite it by its number, if you like with lines: "
    f"{OPENS}1{DAGGER}L3-L5{CLOSES}.",
    {
        "type": "object",
        "properties": {
            "page": _PAGE,
            "line": {"type": "integer", "description": "The line to begin with; 1 if left out."},
        },
        "required": ["page"],
    },
)
_FIND_IN_PAGE: Final = chat_function(
    "find_in_page",
    "Shows the lines of a web page that contain a text, ignoring case.",
    {
        "type": "object",
        "properties": {"page": _PAGE, "pattern": {"type": "string", "description": "The text to look for."}},
        "required": ["page", "pattern"],
    },
)


def _search_function(browsing: Browsing) -> Json:
    queries = {
        "type": "array",
        "items": {"type": "string"},
        "minItems": 1,
        "maxItems": MAX_QUERIES,
        "description": "What to search for; several queries look at several sides of a question at once.",
    }
    description = f"Searches the web and shows the results, numbered.{browsing.where()}"
    return chat_function(
        SEARCH_SERVICE, description, {"type": "object", "properties": {"queries": queries}, "required": ["queries"]}
    )


def _searched(arguments: str) -> Json | None:
    """Return the action of a search."""
    queries = search_queries(arguments)
    return {"action": {"type": "search", "query": queries[0], "queries": queries}} if queries else None


def _line(value: Any, last: int) -> int:
    try:
        return max(1, min(int(value), last))
    except (TypeError, ValueError, OverflowError):
        return 1


def _numbered(lines: Sequence[str], first: int, last: int) -> Iterator[str]:
    return (f"L{number}: {lines[number - 1]}" for number in range(first, last + 1))


def _lines_of(page: WebPage) -> list[str]:
    return wrapped(sanitized_lines(page.text), _LINE_CHARACTERS)


def lines_with(lines: Sequence[str], pattern: str) -> list[int]:
    """Return the indexes of the lines that contain a text, ignoring case."""
    sought = pattern.casefold()
    return [at for at, line in enumerate(lines) if sought in line.casefold()]


def wrapped(lines: Sequence[str], width: int) -> list[str]:
    """Wrap lines at `width` characters, at spaces where possible."""
    return list(chain.from_iterable(_broken(line, width) for line in lines))


def _broken(line: str, width: int) -> Iterator[str]:
    at, size = 0, len(line)
    while size - at > width:
        blank = line.rfind(" ", at + 1, at + width + 1)
        end = blank if blank > 0 else at + width
        yield line[at:end]
        at = end
        while at < size and line[at] == " ":
            at += 1
    yield line[at:]
