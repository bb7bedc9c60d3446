"""The tools that there are, by their type in a request."""

from __future__ import annotations

from dataclasses import dataclass

from .function import FunctionTool
from .toolset import Makers


@dataclass(frozen=True, slots=True)
class Services:
    """What hosted tools work with; what the stack does not have is None, and the tools that need it are refused."""


def tool_makers(services: Services) -> Makers:
    """All tools: those that the client runs, and those that this stack can run."""
    return {**client_tools(), **_hosted_tools(services)}


def client_tools() -> Makers:
    """Those that the client runs: they need nothing of the server."""
    return {"function": FunctionTool}


def _hosted_tools(_: Services) -> Makers:
    return {}
