"""The file search of a stack with vector stores."""

from __future__ import annotations

from functools import partial

from ...feature import Feature, Stack
from ...tools.registry import HostedTool


def open_feature(stack: Stack) -> Feature:
    """Return the tool, if the stack has vector stores."""
    if stack.vector_stores is None:
        return Feature()
    from .tool import FileSearch

    return Feature(tools={"file_search": HostedTool(partial(FileSearch, stores=stack.vector_stores))})
