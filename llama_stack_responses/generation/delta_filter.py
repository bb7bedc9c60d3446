"""Filters between the deltas of a round and the assembler, which may wait for another service."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Protocol

from ..core.stream.deltas import Delta


class Gate(Protocol):
    """Takes the deltas of one round after the other, each of which ends with its `Finish`."""

    def feed(self, delta: Delta) -> AsyncGenerator[Delta]:
        """The deltas that are shown for this one. After a `Finish` of any filter, no delta of the round follows."""
        ...


async def through(gates: Sequence[Gate], delta: Delta) -> AsyncGenerator[Delta]:
    """What comes out behind all the gates. Closing it also ends what the gates are doing."""
    if not gates:
        yield delta
        return
    async with aclosing(gates[0].feed(delta)) as passing:
        async for passed in passing:
            async with aclosing(through(gates[1:], passed)) as showing:
                async for shown in showing:
                    yield shown
