"""Filters of the deltas before the assembler; a filter may wait for another service."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Protocol

from ..stream.deltas import Delta


class DeltaFilter(Protocol):
    """A filter of the deltas of successive rounds, each of which ends with its `Finish`."""

    def feed(self, delta: Delta) -> AsyncGenerator[Delta]:
        """Yield the deltas to pass on for this one. If a filter yields a `Finish`, the round ends there."""
        ...


async def apply_filters(filters: Sequence[DeltaFilter], delta: Delta) -> AsyncGenerator[Delta]:
    """Pass a delta through all filters in order. Closing the iterator also closes the filters' iterators."""
    if not filters:
        yield delta
        return
    async with aclosing(filters[0].feed(delta)) as passing:
        async for passed in passing:
            async with aclosing(apply_filters(filters[1:], passed)) as showing:
                async for shown in showing:
                    yield shown
