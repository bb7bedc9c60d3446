"""Has the Markdown of a view rendered, in a worker process and within bounds."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final

import orjson

from ..core.errors import ApiError
from ..core.types import Json
from ..process_pool.pool import Task, WorkerPool
from ..store import codec
from .items import markdown_blocks

_TASK: Final = "llama_stack_responses.ui.markup"
_SECONDS: Final = 5.0
_CHARACTERS: Final = 400_000
"""Most characters of Markdown that one view has rendered; the rest is shown as plain text."""

_ANSWER_BYTES: Final = 32 * 2**20
"""Maximum size of the HTML: a table of many empty cells grows by a factor of eight."""


class Renderer:
    """Renders the Markdown of views.

    Args:
        pool: runs the work in processes.
        seconds: time limit of one view.
    """

    def __init__(self, pool: WorkerPool, seconds: float = _SECONDS) -> None:
        self._pool = pool
        self._seconds = seconds

    async def render(self, items: Sequence[Json], owner: Hashable) -> None:
        """Set the `html` of the Markdown in these items; where that is not possible, make it plain text."""
        rendered, left = list[Json](), _CHARACTERS
        for block in markdown_blocks(items):
            left -= len(block["text"])
            if left < 0:
                _as_plain(block)
            else:
                rendered.append(block)
        if not rendered:
            return
        found = await self._html([block["text"] for block in rendered], owner)
        for number, block in enumerate(rendered):
            if found is None:
                _as_plain(block)
            else:
                block["html"] = found[number]

    async def _html(self, texts: Sequence[str], owner: Hashable) -> Sequence[str] | None:
        """Return the HTML of each text; None if it took too long, or if no process can be started."""
        task = Task(_TASK, codec.dumps(texts), self._seconds, _ANSWER_BYTES)
        try:
            answer = await self._pool.run(task, owner)
        except ApiError:
            return None
        html: Sequence[str] | None = orjson.loads(answer["text"]) if "text" in answer else None
        return html


def _as_plain(block: Json) -> None:
    block["kind"] = "text"
    del block["html"], block["citations"]
