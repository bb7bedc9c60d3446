"""What lies on the way of a round's deltas to the assembler and has to wait for somebody else."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Protocol

from ..core.stream.deltas import Delta


class Gate(Protocol):
    """Takes the deltas of one round after the other, each of which ends with its `Finish`."""

    def feed(self, delta: Delta) -> AsyncGenerator[Delta]:
        """The deltas that are shown for this one. Behind a `Finish`, whoever made it, nothing of the round comes."""
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
