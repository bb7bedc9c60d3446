"""Renders the Markdown of a view in a worker process, within bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ...concurrency.offloading import in_thread
from ...core import json_decoding
from ...core.errors import ApiError
from ...core.json_blocks import dumps
from ...core.json_values import count_values
from ...core.types import Json
from ...process_pool.pool import Task, WorkerPool
from .item_views import markdown_blocks

_TASK: Final = "llama_stack_responses.features.page.markup"
RENDER_SECONDS: Final = 5.0
"""Time limit of the Markdown of one view."""

_CHARACTERS: Final = 400_000
"""Maximum number of characters of Markdown that one view has rendered; the rest is shown as plain text."""

_ANSWER_BYTES: Final = 32 * 2**20
"""Maximum size of the HTML: a table of many empty cells grows by a factor of eight."""

_PIECE_CHARACTERS: Final = 65_536
"""Characters that are encoded at once."""


class Renderer:
    """Renders the Markdown of views.

    Args:
        pool: runs the work in processes.
        seconds: time limit of one view.
    """

    def __init__(self, pool: WorkerPool, seconds: float = RENDER_SECONDS) -> None:
        self._pool = pool
        self._seconds = seconds

    async def render(self, items: Sequence[Json]) -> None:
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
        html = await self.html([block["text"] for block in rendered])
        for number, block in enumerate(rendered):
            if html is None:
                _as_plain(block)
            else:
                block["html"] = html[number]

    async def html(self, texts: Sequence[str]) -> Sequence[str] | None:
        """Return the HTML of each text; None if it took too long, or if no process can be started."""
        task = Task(_TASK, dumps(texts), self._seconds, _ANSWER_BYTES)
        try:
            answer = await self._pool.run(task)
        except ApiError:
            return None
        return await in_thread(_texts, answer["text"], len(texts)) if "text" in answer else None


def _texts(answer: str, count: int) -> Sequence[str] | None:
    """Return the texts of an answer; None if it is not a list of that many, since the process read foreign text."""
    body = bytearray()
    for start in range(0, len(answer), _PIECE_CHARACTERS):
        body += answer[start : start + _PIECE_CHARACTERS].encode("utf-8", "replace")
    if count_values(body, count + 1) > count + 1:
        return None
    try:
        texts = json_decoding.loads(body)
    except json_decoding.InvalidJsonError:
        return None
    whole = isinstance(texts, list) and len(texts) == count and all(isinstance(each, str) for each in texts)
    return texts if whole else None


def _as_plain(block: Json) -> None:
    block["kind"] = "text"
    del block["html"], block["citations"]
