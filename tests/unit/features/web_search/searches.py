"""A stack with a search service."""

from __future__ import annotations

from typing import Any

from llama_stack_responses.chat.profile import Profile
from llama_stack_responses.core.owner import ANONYMOUS
from llama_stack_responses.features.web_search.feature import SearchMaker
from llama_stack_responses.fetch.pages import WebPages
from llama_stack_responses.tools.hosted.runtime import ToolRuntime
from llama_stack_responses.tools.registry import HostedTool


def search_of(runtime: ToolRuntime, pages: WebPages) -> dict[str, Any]:
    """Return the services of a stack whose model `gpt-oss` searches with a browser."""
    profiles = [Profile.model_validate({"match": "gpt-oss", "web_search": "browser"})]
    make = SearchMaker(runtime, pages, lambda: ANONYMOUS, profiles)
    return {"of_features": {"web_search": HostedTool(make)}}
