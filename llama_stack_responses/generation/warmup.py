"""Responses that say nothing: a connection prepares its first turn with one, and goes on from it."""

from __future__ import annotations

import asyncio
from typing import Any

from ..core.stream.assembler import Assembler
from ..core.stream.deltas import Finish
from .loop import Ending

Json = dict[str, Any]


class Preparing:
    """Makes a response without asking a model.

    Attributes:
        accepted: done from the start.
        exchanges: none.
    """

    def __init__(self, assembler: Assembler) -> None:
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.accepted.set_result(None)
        self.exchanges: dict[str, Json] = {}
        self._assembler = assembler

    async def run(self) -> Ending:
        """Makes it: no output, no tokens."""
        self._assembler.feed(Finish("stop"))
        return Ending("completed")
