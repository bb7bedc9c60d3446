"""What the file search needs of the stack's vector stores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Passage:
    """A part of a file that a search found.

    Attributes:
        score: how well it fits; the higher the better, on a scale of the store's own.
        attributes: what the file's owner has said of it.
    """

    file_id: str
    filename: str
    score: float
    attributes: Mapping[str, str | float | bool]
    text: str


class VectorStores(Protocol):
    """The stores that the user who asks may see."""

    async def check(self, store_id: str) -> None:
        """Raises a 404 `ApiError` unless there is such a store."""
        ...

    async def search(self, store_id: str, query: str, options: Json) -> list[Passage]:
        """The passages that fit best, the best first.

        Args:
            options: `filters`, `max_num_results` and `ranking_options`, as OpenAI's file search has them.

        Raises:
            ToolError: the search did not work out.
        """
        ...
