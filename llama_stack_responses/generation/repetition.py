"""Finds out when a model makes the same calls with the same results again and again."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.types import Json


class Repetition:
    """Counts the rounds of one response that repeat the one before.

    Args:
        limit: number of such rounds, with the first of them, that is reached.
    """

    __slots__ = ("_calls", "_limit", "_rounds")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rounds = 0
        self._calls: list[tuple[str, str, object]] = []

    @property
    def reached(self) -> bool:
        """Whether the limit is reached. It stays so: the refusals of further calls are no other results."""
        return self._rounds >= self._limit

    def count(self, added: Sequence[Json]) -> None:
        """Count a round.

        Args:
            added: the items that it has added to the conversation.
        """
        if self.reached:
            return
        outputs = {item["call_id"]: item["output"] for item in added if item["type"] == "function_call_output"}
        made = [item for item in added if item["type"] == "function_call"]
        calls = [(item["name"], item["arguments"], outputs.get(item["call_id"])) for item in made]
        self._rounds = self._rounds + 1 if calls == self._calls else 1
        self._calls = calls
