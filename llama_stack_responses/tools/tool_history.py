"""The earlier calls and lists of a conversation, for the tools of a new request."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Final

from ..concurrency.offloading import in_thread
from ..core.exchanges import EXCHANGE
from ..core.types import Json

_SHORT_CHARACTERS: Final = 65_536
"""Characters of earlier outputs that are read in the event loop."""


class ToolHistory:
    """The earlier calls and lists of a conversation, read once for all tools of a request.

    Args:
        items: the conversation, oldest first.

    Attributes:
        items: the conversation.
        lists: the last `mcp_list_tools` of each server, by its label.
    """

    def __init__(self, items: Iterable[Json]) -> None:
        self.lists: dict[str, Json] = {}
        self._outputs: list[tuple[str, str, str]] = []
        self.items = items = list(items)
        for item in items:
            kind = item["type"]
            if kind == "mcp_list_tools":
                self.lists[item["server_label"]] = item
            if EXCHANGE in item and isinstance(output := item[EXCHANGE]["output"], str):
                self._outputs.append((kind, item[EXCHANGE]["name"], output))

    async def learn(self, sought: Container[str], learn: Callable[[str], None]) -> None:
        """Call `learn` with the earlier outputs of these functions or types of calls; in a thread if they are long."""
        outputs = [output for kind, name, output in self._outputs if kind in sought or name in sought]

        def learn_all() -> None:
            for each in outputs:
                learn(each)

        if sum(map(len, outputs)) > _SHORT_CHARACTERS:
            await in_thread(learn_all)
        else:
            learn_all()
