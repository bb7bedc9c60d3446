"""What lies on the way of a round's deltas to the assembler and has to wait for somebody else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from ..core.deltas import Delta


class Gate(Protocol):
    """Takes the deltas of one round after the other, each of which ends with its `Finish`."""

    def feed(self, delta: Delta) -> AsyncIterator[Delta]:
        """The deltas that are shown for this one. Behind a `Finish`, whoever made it, nothing of the round comes."""
        ...


async def through(gates: Sequence[Gate], delta: Delta) -> AsyncIterator[Delta]:
    """What comes out behind all the gates."""
    if not gates:
        yield delta
        return
    async for passed in gates[0].feed(delta):
        async for shown in through(gates[1:], passed):
            yield shown
