"""Warm-up: an empty response by which a WebSocket connection prepares its first turn, and from which it continues."""

from __future__ import annotations

import asyncio

from ..core.types import Json
from ..stream.assembler import Assembler
from .activity import Counts
from .loop import Ending


class WarmUp:
    """A generation that does not ask the model.

    Attributes:
        begun: whether it must not run a second time, as for a generation; it ends at once.
        accepted: done from the start.
        exchanges: none.
        left_out: none.
        counts: the owner's counts.
    """

    begun = True

    def __init__(self, assembler: Assembler, counts: Counts) -> None:
        self.counts = counts
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.accepted.set_result(None)
        self.exchanges: dict[str, Json] = {}
        self.left_out: None = None
        self._assembler = assembler

    def release(self) -> None:
        """Do nothing: a warm-up holds no resources."""

    async def run(self) -> Ending:
        """Complete the response without output and tokens."""
        self._assembler.finish_unasked("stop")
        return Ending("completed")
