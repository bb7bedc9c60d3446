"""The interface of the stack's vector stores for file search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ...core.types import Json


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage of a file that a search found.

    Attributes:
        score: relevance, higher is better; the scale depends on the store.
        attributes: metadata that the file's owner set.
    """

    file_id: str
    filename: str
    score: float
    attributes: Mapping[str, str | float | bool]
    text: str


class VectorStores(Protocol):
    """The vector stores that the current user may access."""

    async def check(self, store_id: str) -> None:
        """Raise a 404 `ApiError` if the store does not exist."""
        ...

    async def search(self, store_id: str, query: str, options: Json) -> list[Passage]:
        """Search a store; return the passages, the best first.

        Args:
            options: `filters`, `max_num_results` and `ranking_options`, as in OpenAI's file search.

        Raises:
            ToolError: the search failed.
        """
        ...
