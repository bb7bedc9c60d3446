"""The web search of a stack. Whether there is a search service is known for each user."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec

from ...chat.profile import Profile, profile_for
from ...core.owner import Owner
from ...core.types import Json
from ...feature import Feature, Stack
from ...fetch.pages import WebPages
from ...requests.request import CreateRequest
from ...tools.hosted.runtime import ToolRuntime
from ...tools.registry import HostedTool
from ...tools.tool import Tool
from .kinds import SEARCH_SERVICE
from .settings import PRESENTED


def open_feature(stack: Stack) -> Feature:
    """Return the tool, in the form that the model knows."""
    config = stack.config
    make = SearchMaker(stack.runtime, _pages(stack), stack.current_user, config.profiles)
    tool = HostedTool(make, partial(stack.runtime.has, SEARCH_SERVICE))
    return Feature(tools={"web_search": tool})


class SearchMaker:
    """Makes the tool.

    Args:
        runtime: provides the search service.
        pages: opens web pages; None if the tool cannot open any.
        current_user: returns the current user.
        profiles: which models search with a browser.
    """

    def __init__(
        self,
        runtime: ToolRuntime,
        pages: WebPages | None,
        current_user: Callable[[], Owner],
        profiles: Sequence[Profile],
    ) -> None:
        self._runtime = runtime
        self._pages = pages
        self._current_user = current_user
        self._profiles = profiles

    def __call__(self, declared: Json, request: CreateRequest) -> Tool:
        """Return the tool of a request. The first request that declares it imports the tool."""
        from .browser import Browser
        from .tool import SearchServices, WebSearch

        pages = partial(self._pages.of, self._current_user()) if self._pages else None
        browses = PRESENTED.of(profile_for(request.model, self._profiles)) == "browser"
        services = SearchServices(self._runtime, pages)
        return Browser(declared, request, services) if browses else WebSearch(declared, request, services)


def _pages(stack: Stack) -> WebPages | None:
    if find_spec("trafilatura") is None:
        return None
    fetching = stack.config.fetch
    return WebPages(stack.fetcher(fetching.max_bytes), stack.pool, fetching.seconds, stack.contents)
