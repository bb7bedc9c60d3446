"""What waits in the queue, by class, for the view of what runs now."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Final, Protocol

from ...core.types import Json
from ...feature import Card
from ...jobs.queue import Backlog
from ...jobs.work_class import WorkClass

_NAMES: Final = {
    WorkClass.PRIORITY: "Priority",
    WorkClass.BACKGROUND: "Background",
    WorkClass.WINDOW: "Completion windows",
    WorkClass.FLEX: "Flex",
    WorkClass.BATCH: "Batches",
}
_MINUTE_SECONDS: Final = 60


class Backlogs(Protocol):
    """Knows what waits."""

    async def backlog(self) -> Mapping[WorkClass, Backlog]:
        """Return what waits in each class."""
        ...


def queue_card(jobs: Backlogs) -> Card:
    """Return the card of what waits of all users, with a section if anything does."""
    return Card("Queue", partial(_sections, jobs))


async def _sections(jobs: Backlogs) -> list[Json]:
    backlog = await jobs.backlog()
    waiting = {kind: each for kind, each in backlog.items() if each.length}
    if not waiting:
        return []
    total = sum(each.length for each in waiting.values())
    rows = [[_NAMES[kind], str(each.length), _span(each.age)] for kind, each in waiting.items()]
    return [
        {
            "title": "Waiting responses",
            "at": int(time.time()),
            "facts": [f"{total} wait", f"the longest for {_span(max(each.age for each in waiting.values()))}"],
            "trouble": None,
            "columns": ["class", "waiting", "longest for"],
            "rows": rows,
            "entry": None,
        }
    ]


def _span(seconds: float) -> str:
    """Return a time in the unit that people would use."""
    if seconds < _MINUTE_SECONDS:
        return f"{seconds:.0f} s"
    minutes, _ = divmod(int(seconds), _MINUTE_SECONDS)
    hours, minutes = divmod(minutes, _MINUTE_SECONDS)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
